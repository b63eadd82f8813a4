"""Operators that graphs call: importing this loads those of C++ and defines those of Python."""

from tensoropt_torch.operators import ctc_losses as _ctc_losses  # noqa: F401
from tensoropt_torch.operators.library import OPS

__all__ = ["OPS"]
