"""Values of parameters and buffers: where they come from, and which part of each a rank has."""

from tensoropt_torch.values.weights import WeightSource

__all__ = ["WeightSource"]
