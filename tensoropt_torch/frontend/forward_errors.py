"""What an error of a forward pass says while it is captured.

An error of the model itself is shown as what it is. Other words are for what a graph cannot have:
values of tensors that Python asks for, and what ``torch.export`` does not follow.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.user_lines import line_of_error

_LONGEST = 300  # letters of an error's own words
_BY_DATA = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "PendingUnbackedSymbolNotFound",
)
# Words of other errors that ask for values which nobody has at capture.
_ASKS_FOR_VALUES = (
    ".numpy() is not supported",
    "data-dependent",
    "cannot be called on meta tensors",
    "out of meta tensor; no data",
)
_UNKNOWN_CONTAINER = "which is not a known type"
_UNKNOWN_INPUT = "Unsupported input type "
_TRACING = ("torch._dynamo", "torch._subclasses", "torch.fx", "torch._export", "torch.export")
# What writes tracebacks of errors that are caught, and remarks on them.
_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
WAYS_AROUND_VALUES = (
    "keep it in tensors (torch.where instead of if, masks instead of sizes that vary, no .item(), "
    ".tolist() or .numpy()), decide before the call and pass a number, or make the function an "
    "operator (torch.library.custom_op)"
)
_FIXED_SIZES = (
    "pad to fixed sizes, with torch.where(mask, x, 0) in place of x[mask]; or compute this part "
    "outside of the module, from what it returns (a loss: leave the labels away); or make the "
    "function an operator (torch.library.custom_op)"
)


@contextmanager
def errors_of(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Around a call of a module that is captured.

    Raises:
        TensorOptError: the call fails; says why and where.
    """
    try:
        yield
    except TensorOptError:
        raise
    except Exception as error:
        _check_signature(model, args, kwargs, error)
        raise_as(f"the forward pass of {type(model).__name__}", type(model).__name__, error)


@contextmanager
def errors_of_loss(model: str) -> Iterator[None]:
    """Around a call of the loss function; ``model`` is the name of the module.

    Raises:
        TensorOptError: the call fails; says why and where.
    """
    try:
        yield
    except TensorOptError:
        raise
    except Exception as error:
        raise_as(f"loss_fn, called with the output of {model} and the targets,", model, error)


def raise_as(what: str, model: str, error: Exception) -> NoReturn:
    """Raises TensorOptError for what went wrong in the code ``what``."""
    words, line = f"{type(error).__name__}: {_words(error)}", line_of_error(error)
    if type(error).__name__ == "DynamicOutputShapeException":
        operator = str(error).strip() or "an operator"
        raise TensorOptError(
            f"the sizes of what {operator} returns{line} depend on values of tensors, which are "
            f"known only when it runs, so {what} cannot be captured; {_FIXED_SIZES}"
        ) from None
    if _UNKNOWN_INPUT in str(error):
        kind = str(error).partition(_UNKNOWN_INPUT)[2].partition(".")[0]
        raise TensorOptError(
            f"{what} cannot be captured: among the inputs is one of type {kind}; give tensors, "
            "numbers, strings, or tuples, lists and dicts of these"
        ) from None
    if _UNKNOWN_CONTAINER in str(error):
        raise TensorOptError(
            f"{what} takes or returns a container that a graph does not know ("
            f"{_first_sentence(error)}): return tensors, tuples, lists or dicts. With models of "
            "Hugging Face that is their cache: give use_cache=False, or set "
            "model.config.use_cache = False"
        ) from None
    if _asks_for_values(error):
        raise TensorOptError(
            f"{what} needs the value of a tensor{line}, which is known only when it runs, so a "
            f"captured graph cannot depend on it; {WAYS_AROUND_VALUES}"
        ) from None
    if type(error).__module__.startswith(_TRACING):
        raise TensorOptError(
            f"torch.export cannot capture {model}: {words}{line}; write it with other calls, or "
            "make the function an operator (torch.library.custom_op)"
        ) from error
    raise TensorOptError(
        f"{what} raises {words}{line}; it has to run with the inputs that are given: look at that "
        "line, and at the shapes and dtypes of the inputs"
    ) from error


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0]


def _asks_for_values(error: Exception) -> bool:
    asks = any(words in str(error) for words in _ASKS_FOR_VALUES)
    return type(error).__name__ in _BY_DATA or (isinstance(error, RuntimeError) and asks)


def _words(error: Exception) -> str:
    """An error's own words, in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if type(error).__module__.startswith(_TRACING):
        lines = lines[:1]  # the rest are remarks on how it was traced
    text = " ".join(line for line in lines if line) or "no message"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _check_signature(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> None:
    """Raises TensorOptError if it is the number or the names of the inputs that are wrong."""
    if not isinstance(error, TypeError):
        return
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as mismatch:
        raise TensorOptError(
            f"{type(model).__name__}.forward{signature} cannot be called with these inputs: "
            f"{mismatch}; give what it takes, and the targets of a loss_fn after that"
        ) from error


@contextmanager
def export_is_quiet() -> Iterator[None]:
    """Meanwhile PyTorch does not log errors of this thread's forward pass, which are raised as
    well; unless logs are asked for by ``TORCH_LOGS``."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    thread = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(is_of_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_of_others)
