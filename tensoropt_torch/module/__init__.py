"""The module that runs on every rank: its stand-ins, its variants, and what programs do with it."""

from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.parallelize import parallelize
from tensoropt_torch.module.whole_model import whole_model

__all__ = ["ParallelModule", "parallelize", "whole_model"]
