"""What a job keeps of a parallel module: weights for other programs, and random states.

Parameters and optimizers go through ``torch.distributed.checkpoint`` as they are
(docs/checkpoints.md).
"""

from tensoropt_torch.checkpoint.checkpoints import Checkpoints
from tensoropt_torch.checkpoint.one_file import save
from tensoropt_torch.checkpoint.optimizers import full_optimizer_state_dict, load_optimizer
from tensoropt_torch.checkpoint.random_state import RandomState
from tensoropt_torch.checkpoint.whole import full_state_dict, save_pretrained

__all__ = [
    "Checkpoints",
    "RandomState",
    "full_optimizer_state_dict",
    "full_state_dict",
    "load_optimizer",
    "save",
    "save_pretrained",
]
