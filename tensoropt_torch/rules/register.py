"""Rules for operators of the user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.rules import call_rules
from tensoropt_torch.rules.call import overload_of
from tensoropt_torch.rules.check import check_rule

# A tensor argument of an operator, by name or by position among them.
TensorArgument = str | int


@dataclass(frozen=True)
class LocalCall:
    """What the literals of a call on one rank are computed from.

    ``arguments`` are the literals of the whole call by name; ``parts`` and ``part``
    say for each factor into how many parts it is split, and which of them the rank
    has.
    """

    arguments: Mapping[str, Any]
    parts: Mapping[str, int]
    part: Mapping[str, int]


def register_rule(
    operator: Any,
    rule: str,
    *,
    linear_in: Sequence[Sequence[TensorArgument]] | Sequence[TensorArgument] = (),
    additive: Sequence[TensorArgument] = (),
    mean: Sequence[str] = (),
    sizes: Mapping[str, str] | None = None,
    local: Callable[[LocalCall], Mapping[str, Any]] | None = None,
    saves: Sequence[TensorArgument] = (),
    saves_outputs: Sequence[int] = (),
    flops: float | Callable[..., float] = 1.0,
    random: bool = False,
    repeatable: bool = True,
    example: Sequence[Any] | None = None,
) -> None:
    """Say how an operator of your own can be split, as an einsum-like rule.

    ::

        register_rule("mylib::scaled_add", "b n, b n, n -> b n", saves=["x", "scale"])

    A term for each tensor argument and output, a word for each dim: the name of a
    factor, ``_`` for a dim that stays whole, ``...`` for any number of leading or
    middle dims. A factor that the output lacks is a reduction, whose parts are summed.
    Register before capturing a model, the same on every rank; an operator that is
    registered again has the new rule from then on (docs/adding-an-operator.md).

    Args:
        operator: ``"mylib::op"``, what ``torch.library.custom_op`` returned, or a
            ``torch.autograd.Function``, whose tensors are those of ``apply`` by position.
        rule: e.g. ``"b k, n k, n -> b n"``.
        linear_in: sets of tensor arguments in which the operator is jointly linear, so
            that pending sums can pass: ``[["x", "y"]]`` for ``x + y``, ``[["x"], ["y"]]``
            for ``x * y``; a plain list is one set.
        additive: tensor arguments that are added to a sum over a reduction, as a bias.
        mean: reductions that are means instead of sums.
        sizes: integer arguments that say the size of a factor where a dim holds
            several elements for each of its indices, as ``{"h": "num_heads"}``; on a
            rank the argument is the local size.
        local: other literals that differ on a rank, by argument name.
        saves, saves_outputs: what autograd keeps for backward, for the costs.
        flops: of forward, for each element of the first output; or a function of the
            shapes of the tensors that gives those of the whole call.
        random: whether it draws random numbers.
        repeatable: plans that recompute may run it once more in backward. False for an
            operator that does something else than computing its result.
        example: arguments of a call on which the rule is checked (``check_rule``).

    Raises:
        TensorOptError: there is no such operator, it comes with a rule or changes its
            arguments; the rule contradicts itself or, in the example, the operator. Then
            nothing is registered.
    """
    if call_rules.is_function(operator):
        options = {**locals(), "example": None}
        del options["operator"]
        call_rules.register(operator, rule, partial(register_rule, **options))
        if example is not None:
            _check_example(operator, example)
        return
    overload = overload_of(operator)
    declared = _C.DeclaredRule(str(overload), rule, _tensor_arguments(overload))
    declared.linear_in = [_names(overload, names) for names in _sets(linear_in)]
    declared.additive = _names(overload, additive)
    declared.saves = _names(overload, saves)
    declared.saves_outputs = list(saves_outputs)
    declared.mean = list(mean)
    declared.sizes = _integer_arguments(overload, sizes or {})
    declared.random = random
    declared.repeatable = repeatable
    _set_functions(declared, flops, local)
    _C.declare_rule(declared)
    if example is not None:
        try:
            check_rule(overload, example)
        except BaseException:
            _C.withdraw_rule(str(overload))
            raise


def unregister_rule(operator: Any) -> None:
    """Forget the rule of an operator; models that were captured keep it.

    Raises:
        TensorOptError: none was registered.
    """
    if call_rules.is_function(operator):
        call_rules.unregister(operator)
        return
    _C.withdraw_rule(str(overload_of(operator)))


def _check_example(function: Any, example: Sequence[Any]) -> None:
    """That of an ``autograd.Function``."""
    try:
        operator, tensors, keywords = call_rules.operator_call(function, example)
        check_rule(operator, tensors, keywords)
    except BaseException:
        call_rules.unregister(function)
        raise


def declare_found(overload: OpOverload, rule: str, kept: Sequence[int]) -> None:
    """A rule that trials have found for a call of Python."""
    register_rule(overload, rule, saves=kept, repeatable=False)


def _tensor_arguments(overload: OpOverload) -> list[str]:
    names = []
    for argument in overload._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            raise TensorOptError(
                f"operator {overload} changes its argument '{argument.name}' in place, so it can "
                "have no rule; return a new tensor instead"
            )
        if "Tensor" in str(argument.type):
            names.append(argument.name)
    return names


def _names(overload: OpOverload, arguments: Sequence[TensorArgument]) -> list[str]:
    """Positions become names."""
    known = _tensor_arguments(overload)
    names = []
    for argument in arguments:
        if isinstance(argument, int) and not 0 <= argument < len(known):
            raise TensorOptError(
                f"rule of {overload}: there is no tensor argument {argument}, it has "
                f"{len(known)}: {', '.join(known)}"
            )
        names.append(known[argument] if isinstance(argument, int) else argument)
    return names


def _sets(
    linear_in: Sequence[Sequence[TensorArgument]] | Sequence[TensorArgument],
) -> Iterable[Sequence[TensorArgument]]:
    plain = [item for item in linear_in if isinstance(item, (str, int))]
    if plain:
        return [plain]
    return [item for item in linear_in if not isinstance(item, (str, int))]


def _integer_arguments(overload: OpOverload, sizes: Mapping[str, str]) -> dict[str, str]:
    integers = [a.name for a in overload._schema.arguments if str(a.type) == "int"]
    for factor, argument in sizes.items():
        if argument not in integers:
            raise TensorOptError(
                f"rule of {overload}: sizes= says that argument '{argument}' is the size of factor "
                f"'{factor}', but the integer arguments are: {', '.join(integers) or 'none'}"
            )
    return dict(sizes)


def _set_functions(
    declared: _C.DeclaredRule,
    flops: float | Callable[..., float],
    local: Callable[[LocalCall], Mapping[str, Any]] | None,
) -> None:
    texts = []
    if callable(flops):
        count = flops
        declared.flops = lambda shapes: float(count(*map(tuple, shapes)))
        texts.append(_text_of(flops))
    else:
        declared.flops_per_element = float(flops)
    if local is not None:
        literals = local
        declared.set_local(lambda *call: dict(literals(LocalCall(*call))))
        texts.append(_text_of(local))
    declared.functions = " ".join(texts)


def _text_of(function: Callable[..., Any]) -> str:
    """Tells a function from others, alike in all processes that run one program."""
    code = getattr(function, "__code__", None)
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
    if code is None:
        return name
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [v for v in cells if isinstance(v, (bool, int, float, str))]
    digest = hashlib.sha256(repr((_content(code), values)).encode()).hexdigest()[:16]
    return f"{name}:{digest}"


def _content(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, [_constant(constant) for constant in code.co_consts]


def _constant(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return _content(constant)
    # The order of a set's strings differs between processes.
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
