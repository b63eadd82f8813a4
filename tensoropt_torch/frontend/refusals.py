"""What is said of a module that ``torch.export`` cannot capture: why, where, and what to try."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from tensoropt_torch.errors import TensorOptError

_WRITTEN_BY_DATA = "fake tensor in the exported program constant's list"
_VALUE = "Python asks for a value of a tensor, which is known only when it runs"
_SIZES = (
    "the sizes of what {} returns depend on values of tensors, which are known only when it runs"
)

_NO_VALUES = (
    "The forward pass must not depend on the values of tensors (no .item(), no Python if on a "
    "tensor)"
)
_ANOTHER_VALUE = (
    f"{_NO_VALUES}; try torch.where, or torch.cond, give a number that Python needs as a plain "
    "number among the inputs, or mark the function as a custom op"
)
_FIXED_SIZES = (
    "Sizes must be fixed: pad, and take torch.where(mask, x, 0) in place of x[mask]; or compute "
    "this part outside of the module, from what it returns (a loss: leave the labels away); or "
    "mark the function as a custom op"
)
_ANYTHING = (
    f"{_NO_VALUES} and must accept the example inputs; try torch.where, or torch.cond, or mark "
    "the function as a custom op"
)


def refuse_capture(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> TensorOptError:
    """The error for what ``torch.export`` raised of ``model(*args, **kwargs)``."""
    mismatch = _mismatch(model, args, kwargs, error)
    if mismatch is not None:
        return mismatch
    name = type(model).__name__
    if _WRITTEN_BY_DATA in str(error):
        return TensorOptError(
            f"the forward pass of {name} writes into .data of a parameter or buffer, which a graph "
            "has no call for; write to buffers in place without .data (self.name.mul_(0.9), under "
            "torch.no_grad), and change parameters in the training loop"
        )
    reason, way_out = _reason(error)
    kind = type(error).__name__
    where = _user_line(error)
    return TensorOptError(f"torch.export cannot capture {name}: {kind}: {reason}{where}. {way_out}")


def _reason(error: Exception) -> tuple[str, str]:
    """Why it cannot, and what to try."""
    lines = str(error).strip().splitlines()
    first = lines[0] if lines else "no message"
    kind = type(error).__name__
    if kind in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
        return _VALUE, _ANOTHER_VALUE
    if kind == "DynamicOutputShapeException":
        return _SIZES.format(first), _FIXED_SIZES
    return first, _ANYTHING


def _mismatch(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> TensorOptError | None:
    """If it is the number or the names of the inputs that are wrong."""
    if not isinstance(error, TypeError):
        return None
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as mismatch:
        return TensorOptError(
            f"{type(model).__name__}.forward{signature} cannot be called with these inputs: "
            f"{mismatch}; give what it takes, and the targets of a loss_fn after that"
        )
    return None


def _user_line(error: BaseException) -> str:
    """The innermost line of the user's code on the way to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and "tensoropt_torch" not in f.filename]
    if not own:
        return ""
    frame = own[-1]
    return f" (at {frame.filename}:{frame.lineno}: {frame.line})"
