"""Checks of values that a forward pass makes while it is captured.

Whether ``if labels.max() >= vocabulary: raise ValueError(...)`` raises depends on
values, which nobody knows while a model is captured. Such a check changes nothing
unless it raises; so it is taken not to, with a warning. Layers of ``nn.Transformer`` ask
whether a mask is the causal one, to choose a kernel; they are told that it is not, for which they
use the mask as it is. What else depends on values is refused, as the source of the statement tells.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

# Instructions that ask for the truth of a value because a statement does.
_ASKS = ("POP_JUMP", "JUMP_IF", "TO_BOOL", "UNARY_NOT")
# Asks whether a mask is causal, where no flag says so; the mask is used if it is not.
_ASKS_FOR_CAUSAL = transformer._detect_is_causal_mask.__code__
# The module that calls the model.
_END = "tensoropt_torch.frontend.capture"
# What evaluates some of its parts only, or asks for their truth on its own.
_BRANCHING = (ast.IfExp, ast.BoolOp, ast.Not, ast.Lambda, ast.NamedExpr, ast.comprehension)


class AssumedChecks(TorchFunctionMode):
    """Answers for tensors without values that are asked for their truth, where a statement
    asks that does nothing but raise: so that it does not; or that chooses how a mask is used."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__bool__ and _has_no_value(args[0]):
            frame = sys._getframe(1)
            if frame.f_code is _ASKS_FOR_CAUSAL:
                return False
            answer = _answer(frame)
            if answer is not None:
                _warn(frame)
                return answer
        return func(*args, **(kwargs or {}))


def _has_no_value(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def _warn(frame: FrameType) -> None:
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    line = (inspect.getframeinfo(frame).code_context or [""])[0].strip()
    warnings.warn(
        f"the check at {where} ({line}) depends on the values of tensors; the captured model "
        "assumes that it passes, and does not make it",
        stacklevel=3,
    )


def _answer(frame: FrameType) -> bool | None:
    """What the value that is asked for has to be for the check not to raise; None where
    the statement is no such check, or cannot be read."""
    tree = _source(frame)
    if tree is None or _is_caught(frame):
        return None
    conditions = _conditions(tree)
    found = [(test, passes) for test, passes in conditions if _covers(test, frame.f_lineno)]
    if len(found) != 1:
        return None
    leaves = [leaf for leaf in _leaves(*found[0]) if not _is_no_tensor(leaf[0])]
    answers = {wanted for _, wanted in leaves}
    simple = all(_is_simple(leaf) for leaf, _ in leaves)
    asked = _is_asked_by(frame, [leaf for leaf, _ in leaves])
    return answers.pop() if simple and asked and len(answers) == 1 else None


def _source(frame: FrameType) -> ast.AST | None:
    """The function that the frame runs, with the lines and columns of its file."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        indented = lines[0][:1].isspace()
        tree = ast.parse("".join(["if True:\n", *lines] if indented else lines))
    except (OSError, SyntaxError, IndexError):
        return None
    ast.increment_lineno(tree, max(first, 1) - (2 if indented else 1))
    return tree


def _is_caught(frame: FrameType | None) -> bool:
    """Whether the model may go on after the check raises."""
    while frame is not None and frame.f_globals.get("__name__") != _END:
        in_torch = str(frame.f_globals.get("__name__")).split(".")[0] == "torch"
        tree = None if in_torch else _source(frame)
        if tree is not None and any(_goes_on(n, frame.f_lineno) for n in ast.walk(tree)):
            return True
        frame = frame.f_back
    return False


def _goes_on(node: ast.AST, line: int) -> bool:
    """Whether it catches what the line raises, and does not raise in turn."""
    return (
        isinstance(node, ast.Try)
        and any(_covers(statement, line) for statement in node.body)
        and any(not isinstance(handler.body[-1], ast.Raise) for handler in node.handlers)
    )


def _conditions(tree: ast.AST) -> Iterator[tuple[ast.expr, bool | None]]:
    """Each with the truth at which a check passes; None for those of other statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            raises = all(isinstance(statement, ast.Raise) for statement in node.body)
            yield node.test, False if raises else None
        elif isinstance(node, ast.Assert):
            yield node.test, True
        elif isinstance(node, (ast.While, ast.IfExp)):
            yield node.test, None


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _leaves(test: ast.expr, wanted: bool | None) -> Iterator[tuple[ast.expr, bool | None]]:
    """The parts of a condition that are asked for their truth, each with the one that makes
    the condition what is wanted."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, None if wanted is None else not wanted)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value, wanted)
    else:
        yield test, wanted


def _is_no_tensor(leaf: ast.expr) -> bool:
    """``x is None`` and the like."""
    if isinstance(leaf, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in leaf.ops)
    return _calls(leaf, "isinstance")


def _is_simple(leaf: ast.expr) -> bool:
    """Whether no part of it is asked for its truth on its own."""
    return not any(isinstance(node, _BRANCHING) for node in ast.walk(leaf))


def _is_asked_by(frame: FrameType, leaves: Sequence[ast.expr]) -> bool:
    """Whether the statement asks, or ``bool`` in its place, not a function in its condition
    (such as ``max``)."""
    now = next(i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti)
    if now.opname.startswith(_ASKS):
        return True
    where = now.positions
    return where is not None and any(
        _calls(leaf, "bool")
        and (leaf.lineno, leaf.col_offset, leaf.end_lineno, leaf.end_col_offset)
        == (where.lineno, where.col_offset, where.end_lineno, where.end_col_offset)
        for leaf in leaves
    )


def _calls(leaf: ast.expr, function: str) -> bool:
    return (
        isinstance(leaf, ast.Call) and isinstance(leaf.func, ast.Name) and leaf.func.id == function
    )
