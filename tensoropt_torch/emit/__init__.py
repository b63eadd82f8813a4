"""From a plan to the module that one rank runs."""

from tensoropt_torch.emit.clipping import clip_grad_norm_
from tensoropt_torch.emit.local_step import local_step
from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.parallelize import parallelize
from tensoropt_torch.emit.weights import WeightSource
from tensoropt_torch.emit.whole_model import whole_model

__all__ = [
    "ParallelModule",
    "WeightSource",
    "clip_grad_norm_",
    "local_step",
    "parallelize",
    "whole_model",
]
