"""Steps of optimizers on what a rank has of the parameters."""

from tensoropt_torch.steps.clipping import clip_grad_norm_
from tensoropt_torch.steps.local_step import local_step

__all__ = ["clip_grad_norm_", "local_step"]
