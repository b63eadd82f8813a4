"""Random numbers of Python and NumPy: a captured graph would have those of its capture for ever."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import patch

import numpy
from torch import nn

from tensoropt_torch.errors import TensorOptError

_ELSEWHERE = 20011203  # where generators begin whose numbers are not to count
_DRAW_NOTHING = ("getstate", "setstate", "get_state", "set_state", "seed")
_LIBRARIES = ("/torch/", "/numpy/", "tensoropt_torch/frontend")


class Draws:
    """Notes what draws numbers from the generators of Python or NumPy, or from those that modules
    of ``model`` hold. Their states stay what they were.

    Args:
        share: instead of what they draw functions give the number that lies so far between the
            smallest and the largest, and generators begin elsewhere; None: all is as it is.

    Attributes:
        drawn: from what numbers were drawn; None: from nothing.
        line: the first line that did.
    """

    def __init__(self, model: nn.Module, share: float | None = None) -> None:
        self._generators = _generators(model)
        self._share = share
        self.drawn: str | None = None
        self.line: str | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile draws are noted."""
        before = [(state(), restore) for _, state, restore in self._generators]
        lines: list[str] = []
        for _, _, shift in self._generators if self._share is not None else ():
            shift(None)
        started = [repr(state()) for _, state, _ in self._generators]
        try:
            with _noted(random, lines, self._share), _noted(numpy.random, lines, self._share):
                yield
        finally:
            for (name, state, _), old in zip(self._generators, started, strict=True):
                if repr(state()) != old or (lines and self._share is not None):
                    self.drawn = self.drawn or name
            for old_state, restore in before:
                restore(old_state)
            self.line = self.line or next(iter(lines), None)


def refuse_draws(model: nn.Module, draws: Draws) -> NoReturn:
    """Raises TensorOptError: what was drawn counts."""
    where = f" (at {draws.line})" if draws.line else ""
    raise TensorOptError(
        f"the forward pass of {type(model).__name__} draws random numbers from {draws.drawn}"
        f"{where}, and what it computes depends on them; a captured graph would have the numbers "
        "of its capture in every step. Draw with torch, as torch.rand(()) < p, and choose with "
        "torch.where; or set the probability (LayerDrop's, say) to 0"
    )


State = tuple[str, Callable[[], Any], Callable[[Any], None]]


def _generators(model: nn.Module) -> list[State]:
    """What may draw: name, how its state is read, and how it is set."""
    found: list[State] = [
        ("random", random.getstate, _setter(random.setstate, random.seed)),
        ("numpy.random", _numpy_state, _setter(numpy.random.set_state, numpy.random.seed)),
    ]
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if id(value) in seen:
                continue
            seen.add(id(value))
            place = f"'{path}.{name}'" if path else f"'{name}'"
            if isinstance(value, random.Random):
                found.append((place, value.getstate, _setter(value.setstate, value.seed)))
            elif isinstance(value, numpy.random.RandomState):
                state = functools.partial(_numpy_state, value)
                found.append((place, state, _setter(value.set_state, value.seed)))
            elif isinstance(value, numpy.random.Generator):
                bits = value.bit_generator
                state = functools.partial(getattr, bits, "state")
                found.append((place, state, _setter(_state_setter(bits), _restart(bits))))
    return found


def _numpy_state(source: Any = numpy.random) -> Any:
    """With all of its numbers as text."""
    state = source.get_state(legacy=False)
    return _State(state)


class _State(dict[str, Any]):
    """A state of NumPy whose text has all of it."""

    def __repr__(self) -> str:
        key = self["state"]["key"]
        return f"{key.tobytes()!r}{self['state']['pos']}{self['has_gauss']}{self['gauss']}"


def _setter(restore: Callable[[Any], Any], seed: Callable[[int], Any]) -> Callable[[Any], None]:
    """Sets a state; None: another one than any program has."""
    return lambda state: seed(_ELSEWHERE) if state is None else restore(state)


def _state_setter(bits: Any) -> Callable[[Any], None]:
    return lambda state: setattr(bits, "state", state)


def _restart(bits: Any) -> Callable[[int], None]:
    return lambda seed: setattr(bits, "state", type(bits)(seed).state)


@contextmanager
def _noted(module: Any, lines: list[str], share: float | None) -> Iterator[None]:
    """Meanwhile the functions of the module note the user's line that calls them."""
    with ExitStack() as stack:
        for name in dir(module):
            function = getattr(module, name)
            bound = getattr(function, "__self__", None)
            if name[0] != "_" and isinstance(bound, (random.Random, numpy.random.RandomState)):
                answer = function if share is None else _answering(function, share)
                stack.enter_context(patch.object(module, name, _noting(answer, function, lines)))
        yield


def _noting(
    answer: Callable[..., Any], function: Callable[..., Any], lines: list[str]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        line = _user_line(sys._getframe(1))
        if line is not None and function.__name__ not in _DRAW_NOTHING:
            lines.append(line)
        return answer(*args, **kwargs)

    return noting


def _answering(function: Callable[..., Any], share: float) -> Callable[..., Any]:
    """What gives, of numbers between two bounds, the one so far between them."""
    name, is_numpy = function.__name__, isinstance(function.__self__, numpy.random.RandomState)  # type: ignore[attr-defined]
    if name == "uniform":
        return lambda low=0.0, high=1.0, size=None: _filled(low + (high - low) * share, size)
    if name == "rand":
        return lambda *size: _filled(share, size or None)
    if name in ("random", "random_sample"):
        return (lambda size=None: _filled(share, size)) if is_numpy else lambda: share
    return function


def _filled(value: Any, size: Any) -> Any:
    return value if size is None else numpy.full(size, value)


def _user_line(frame: FrameType | None) -> str | None:
    while frame is not None:
        name = frame.f_code.co_filename
        if not any(library in name for library in _LIBRARIES):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
