"""From a plan to the module that one rank runs."""

from tensoropt_torch.emit.clipping import clip_grad_norm_
from tensoropt_torch.emit.local_step import local_step
from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.parallelize import parallelize
from tensoropt_torch.emit.real_modules import whole_model
from tensoropt_torch.emit.weights import WeightSource

__all__ = [
    "ParallelModule",
    "WeightSource",
    "clip_grad_norm_",
    "local_step",
    "parallelize",
    "whole_model",
]
