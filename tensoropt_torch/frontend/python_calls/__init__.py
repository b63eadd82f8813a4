"""Calls of Python that are no operators of PyTorch, and act on values or gradients: as
operators of the captured graph."""

from tensoropt_torch.frontend.python_calls.recording import python_calls_recorded

__all__ = ["python_calls_recorded"]
