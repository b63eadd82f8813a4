"""Checks a rule by running its operator: split the inputs of a call as each config
says, run it for every rank, put outputs and gradients together, and compare them
with those of the whole call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.rules.bench import Bench, RuleError, gradients, tensors_of
from tensoropt_torch.rules.call import (
    REPLICA_TOLERANCES,
    TOLERANCES,
    Checks,
    OpCall,
    overload_of,
)

# Two parts, three, and two of each of two parts: the order of axes shows.
MESHES = ((2,), (3,), (2, 2))
# Sizes of a factor that all of these meshes can split.
GOOD_MULTIPLE = 12


@dataclass(frozen=True)
class RuleReport:
    """What was checked. ``splits`` are the splits of one mesh axis that were run:
    names of factors, ``+0.1`` for pending sums that pass
    from tensors 0 and 1."""

    operator: str
    rule: str
    num_configs: int
    splits: tuple[str, ...]
    gradients: bool  # whether they were compared, too


def check_rule(
    operator: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float | None = None,
) -> RuleReport:
    """Check the rule of an operator on example inputs, in every config on meshes of
    2, 3 and 2 x 2 devices, forward and gradients.

    Runs in one process, on the device of the inputs.

    Args:
        operator: ``"mylib::op"``, or the operator itself.
        args, kwargs: a call with real tensors, float64 if the operator takes it.
            Sizes that a rule splits should be multiples of 12.
        tolerance: relative and absolute error that is allowed; by default 1e-9 in
            float64, 1e-4 in float32, 5e-2 in bfloat16.

    Raises:
        TensorOptError: the rule does not compute the operator: says the split, the
            tensor and the difference; the operator has no rule; or a factor of the
            rule cannot be split in the example.
    """
    call = _example_call(overload_of(operator), args, kwargs or {}, tolerance)
    benches = [Bench(call, sizes) for sizes in MESHES]
    for bench in benches:
        for config in range(bench.num_configs):
            _check_config(bench, config)
    splits = _splits(benches)
    missing = [name for name in factors_of(benches[0].rule) if name not in splits]
    if missing:
        raise TensorOptError(
            f"the rule '{benches[0].rule}' of {call.overload} was not checked for factor "
            f"'{missing[0]}': neither 2 nor 3 parts divide its size in the example; give an "
            f"example in which it is a multiple of {GOOD_MULTIPLE}"
        )
    return RuleReport(
        str(call.overload),
        benches[0].rule,
        sum(bench.num_configs for bench in benches),
        splits,
        call.has_gradients,
    )


def factors_of(rule: str) -> tuple[str, ...]:
    """The names of the factors in a rule, in order of first appearance."""
    return tuple(dict.fromkeys(word for word in re.findall(r"\.*\w+", rule) if word != "_"))


def _splits(benches: Iterable[Bench]) -> tuple[str, ...]:
    uses = [use for bench in benches for label in bench.labels for use in label.split(",")]
    return tuple(use for use in dict.fromkeys(uses) if use != "-")


def _check_config(bench: Bench, config: int) -> None:
    try:
        bench.check(config)
    except RuleError as error:
        uses = dict.fromkeys(use for use in bench.labels[config].split(",") if use != "-")
        names = bench.operand_names
        splits = " and ".join(_describe(use, names) for use in uses) or "nothing is split"
        raise RuleError(
            f"the rule '{bench.rule}' does not compute {bench.op_call.overload} where {splits}: "
            f"{error}"
        ) from error


def _describe(use: str, operands: Sequence[str]) -> str:
    if use.startswith("+"):
        names = ", ".join(operands[int(number)] for number in use[1:].split("."))
        return f"pending sums pass from {names}"
    return f"factor '{use}' is split"


def _example_call(
    overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tolerance: float | None
) -> OpCall:
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if not tensors or any(tensor.is_meta for tensor in tensors):
        raise TensorOptError(
            f"the example of {overload} must have tensors with values, none on the meta device; "
            f"got {len(tensors)} tensors"
        )
    floating = [tensor for tensor in tensors if _has_gradients(tensor)]
    marked = any(tensor.requires_grad for tensor in floating)

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        wanted = value.requires_grad if marked else _has_gradients(value)
        return value.detach().clone().requires_grad_(wanted)

    own_args, own_kwargs = pytree.tree_map(leaf, (tuple(args), dict(kwargs)))
    coarsest = max(
        (t.real.dtype for t in floating), key=lambda t: torch.finfo(t).eps, default=torch.float64
    )
    given = tolerance if tolerance is not None else TOLERANCES.get(coarsest, 5e-2)
    replicas = REPLICA_TOLERANCES.get(coarsest, given)
    call = OpCall(overload, own_args, own_kwargs, str(overload), given, replicas)
    return _with_possible_checks(call)


def _has_gradients(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _with_possible_checks(call: OpCall) -> OpCall:
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    operands = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with torch.random.fork_rng(devices=[]):
        outputs = tensors_of(call.overload(*call.args, **call.kwargs))
        again = tensors_of(call.overload(*call.args, **call.kwargs))
    random = not all(map(torch.equal, outputs, again))
    checks = Checks.REPLICAS if random else Checks.VALUES
    return replace(call, checks=checks, has_gradients=_is_differentiable(operands, outputs))


def _is_differentiable(operands: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    if not any(output.requires_grad for output in outputs):
        return False
    try:
        gradients(operands, outputs, [torch.ones_like(output) for output in outputs])
    except RuntimeError:  # it has no autograd formula
        return False
    return True
