"""Keywords of the public functions.

A function that takes the fields of a dataclass as keywords says so twice: with a
``TypedDict``, which editors and type checkers read, and with a decorator, which checks the
names of a call and tells ``inspect`` and ``help`` of them::

    @takes_keywords(planning=PlanningOptions)
    def find_frontier(model, args, **keywords: Unpack[PlanningKeywords]) -> Frontier: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from tensoropt_torch.errors import TensorOptError, close_match
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.tasks.example import Example, ExampleKeywords

F = TypeVar("F", bound=Callable[..., Any])

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes_keywords(*, collective: bool = False, **whole: type[Any]) -> Callable[[F], F]:
    """Names what ``**keywords`` of a function are: those of ``ExampleKeywords``, and for
    each ``name=dataclass`` its fields, and ``name`` itself for all of them together.

    A call with another keyword raises TensorOptError that names the nearest one; on every
    rank, if the function is ``collective`` and any rank calls it so.
    """

    def decorate(function: F) -> F:
        signature = _signature(function, whole)

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            def check() -> None:
                _check_names(function.__name__, keywords, signature)

            if not collective:
                check()
                return function(*args, **keywords)
            with doing(function.__name__):
                on_all_ranks(check)
                return function(*args, **keywords)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def _signature(function: Callable[..., Any], whole: dict[str, type[Any]]) -> inspect.Signature:
    """With every keyword by its name, those of the function itself first."""
    given = inspect.signature(function)
    own = [p for p in given.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    keywords = list(_parameters(Example, ExampleKeywords.__annotations__))
    for name, kind in whole.items():
        annotation = f"{kind.__name__} | None"
        keywords.append(inspect.Parameter(name, _KEYWORD, default=None, annotation=annotation))
        keywords += _parameters(kind, [part.name for part in fields(kind)])
    return given.replace(parameters=[*own, *keywords])


def _parameters(kind: type[Any], names: Collection[str]) -> Iterator[inspect.Parameter]:
    """Fields of a dataclass as keywords, with their types and defaults; its own come first."""
    for part in sorted(fields(kind), key=lambda part: part.name not in kind.__annotations__):
        if part.name in names:
            yield inspect.Parameter(
                part.name, _KEYWORD, default=_default(part), annotation=part.type
            )


def _default(part: Field[Any]) -> Any:
    return part.default if part.default_factory is MISSING else part.default_factory()


def _check_names(function: str, keywords: Mapping[str, Any], signature: inspect.Signature) -> None:
    allowed = signature.parameters
    for name in keywords:
        if name not in allowed:
            raise TensorOptError(
                f"{function}() takes no '{name}'; {close_match(name, allowed)}"
                f"allowed: {', '.join(allowed)}"
            )
