"""What a plan does in a training step: operators, parameters, collectives, where memory and
time go, as plain data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tensoropt_torch import _C
from tensoropt_torch.telling.collectives import Collectives, collectives_of, num_shards
from tensoropt_torch.telling.description import (
    Described,
    PlanDescription,
    described,
    model_at_hand,
    shown_config,
    space_of,
)
from tensoropt_torch.telling.roles import Role, roles_of
from tensoropt_torch.telling.work import WorkShare, shares_of, work_in_words, work_shares
from tensoropt_torch.units import dtype_name, format_bytes


@dataclass(frozen=True)
class Storage:
    """Parameters that are kept in one layout, such as ``S0,R``.

    Attributes:
        names: of the parameters.
        num_bytes: of all of them, whole.
        device_bytes: of what one device has of them.
    """

    layout: str
    names: tuple[str, ...]
    num_bytes: float
    device_bytes: float


@dataclass(frozen=True)
class PlanDetails:
    """A plan in figures, all of one device.

    Attributes:
        description: how operators and parameters are split.
        storage: of the parameters, the layout with the most bytes first.
        collectives: of a step.
        memory: bytes by what they are for; their sum is the plan's memory.
        time: seconds of a step by what it is for; their sum is the plan's step time.
        operator_time: seconds of forward and backward, by the name of an operator.
        work: what splits the work of operators, the most of it first.
        run_again: seconds of what runs again in backward by kind of operator, the most first.
        whole: bytes of parameters, of their gradients and of the optimizer's state, whole, of which
            ``memory`` says what one device has.
        roles: how modules are split, those that are split alike together.
    """

    description: PlanDescription
    storage: tuple[Storage, ...]
    collectives: tuple[Collectives, ...]
    memory: Mapping[str, float]
    time: Mapping[str, float]
    operator_time: Mapping[str, float]
    work: tuple[WorkShare, ...]
    run_again: Mapping[str, float] = field(default_factory=dict)
    whole: Mapping[str, float] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()

    @property
    def summary(self) -> str:
        """What the plan does, in a few sentences."""
        held = _held_in_words(self.storage, math.prod(self.description.sizes))
        gathered = sum(
            one.num_bytes
            for one in self.collectives
            if one.kind == "all_gather" and one.moved.startswith("parameters")
        )
        if gathered:
            held += f", and gathers {format_bytes(gathered)} of them in a step"
        again = self.description.num_recomputed
        return _joined(
            work_in_words(self.work, math.prod(self.description.sizes)),
            held,
            f"{again} operators run again in backward" if again else "",
            _micro_batches_in_words(self.description.micro_batches),
        )


def details_of(plan: Described, space: _C.SearchSpace | None = None) -> PlanDetails:
    """In the strategy space of the plan, which is made unless it is given.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    space = space or space_of(plan)
    description = described(space, plan)
    parameters = _parameters(space.nodes(), plan)
    strategy = plan.choices.strategy(space)
    estimates, work = space.estimates(strategy), space.work(strategy)
    each = plan.settings.micro_batches  # of which estimates tell the times of one
    return PlanDetails(
        description,
        _storage(parameters),
        collectives_of(space, plan),
        _memory(parameters, plan),
        _time(space, plan, estimates),
        {row.name: each * row.time_s for row in estimates},
        shares_of(work, description.sizes),
        _run_again(estimates, description, each),
        _whole(parameters),
        roles_of(
            ((row.name, row.splits, row.flops) for row in work),
            ((one.name, one.layout, one.num_bytes) for one in parameters),
            description.sizes,
        ),
    )


def outlines_of(plans: Sequence[Described], space: _C.SearchSpace) -> list[str]:
    """Of plans in one strategy space: their ``summary``, but for what is gathered and run again,
    which takes ten times as long to find."""
    nodes = space.nodes()
    return [_outline(plan, space, nodes) for plan in plans]


def _outline(plan: Described, space: _C.SearchSpace, nodes: Sequence[_C.NodeRow]) -> str:
    count = plan.settings.num_devices
    return _joined(
        work_in_words(work_shares(space, plan), count),
        _held_in_words(_storage(_parameters(nodes, plan)), count),
        _micro_batches_in_words(plan.settings.micro_batches),
    )


def _joined(*clauses: str) -> str:
    return " ".join(f"{clause}." for clause in clauses if clause)


def _held_in_words(storage: Sequence[Storage], num_devices: int) -> str:
    whole = sum(one.num_bytes for one in storage)
    if not whole or num_devices == 1:
        return ""
    share = sum(one.device_bytes for one in storage) / whole
    if share == 1:
        return "Every device holds all parameters"
    return f"A device holds {share:.1%} of the parameters"


def _micro_batches_in_words(count: int) -> str:
    return f"A step runs its batch as {count} micro-batches" if count > 1 else ""


@dataclass(frozen=True)
class _Parameter:
    """A parameter, whose layout is that of its config."""

    name: str
    layout: str
    num_bytes: float
    shards: int
    state_bytes: float  # of the optimizer, whole
    trained: bool


def _parameters(nodes: Sequence[_C.NodeRow], plan: Described) -> list[_Parameter]:
    """By the nodes of the strategy space (``SearchSpace.nodes``)."""
    sizes = [size for size, _ in plan.settings.mesh_axes]
    model = model_at_hand(plan)
    blocks = model.blocks
    layouts = {
        row.name: shown_config(blocks, row, label)
        for row, label in zip(nodes, plan.choices.labels, strict=True)
        if not row.target
    }
    found = []
    for source in model.parameters:
        value = source.placeholder.meta["val"]
        layout = layouts[source.names[0]]
        found.append(
            _Parameter(
                source.names[0],
                layout,
                value.numel() * value.element_size(),
                num_shards(layout, sizes),
                _state_bytes(value, plan) if value.requires_grad else 0.0,
                bool(value.requires_grad),
            )
        )
    return found


def _state_bytes(parameter: torch.Tensor, plan: Described) -> float:
    each = plan.settings.optimizer_state_bytes[dtype_name(parameter.dtype)]
    return parameter.numel() * each


def _storage(parameters: Sequence[_Parameter]) -> tuple[Storage, ...]:
    groups: dict[str, list[_Parameter]] = defaultdict(list)
    for parameter in parameters:
        groups[parameter.layout].append(parameter)
    found = [
        Storage(
            layout,
            tuple(p.name for p in group),
            sum(p.num_bytes for p in group),
            sum(p.num_bytes / p.shards for p in group),
        )
        for layout, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda storage: -storage.num_bytes))


def _memory(parameters: Sequence[_Parameter], plan: Described) -> dict[str, float]:
    trained = [p for p in parameters if p.trained]
    found = {
        "parameters": sum(p.num_bytes / p.shards for p in parameters),
        "gradients": sum(p.num_bytes / p.shards for p in trained),
        "optimizer state": sum(p.state_bytes / p.shards for p in trained),
    }
    rest = plan.memory_bytes - sum(found.values())
    return found | {"kept for backward": rest}


def _whole(parameters: Sequence[_Parameter]) -> dict[str, float]:
    trained = [p for p in parameters if p.trained]
    return {
        "parameters": sum(p.num_bytes for p in parameters),
        "gradients": sum(p.num_bytes for p in trained),
        "optimizer state": sum(p.state_bytes for p in trained),
    }


def _run_again(
    rows: Sequence[_C.EstimateRow], description: PlanDescription, each: int
) -> dict[str, float]:
    kinds = {choice.node: choice.operator for choice in description.choices}
    found: dict[str, float] = {}
    for row in rows:
        if row.again_s > 0:
            kind = kinds.get(row.name, row.name)
            found[kind] = found.get(kind, 0.0) + each * row.again_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _time(
    space: _C.SearchSpace, plan: Described, rows: Sequence[_C.EstimateRow]
) -> dict[str, float]:
    strategy = plan.choices.strategy(space)
    each = plan.settings.micro_batches
    operators = each * sum(row.time_s for row in rows)
    compute, network = space.compute_time(strategy), space.network_time(strategy)
    late = space.host_time(strategy) - compute - network
    again = each * sum(row.again_s for row in rows)
    return {
        "operators": operators,
        **({"operators again in backward": again} if again > 0 else {}),
        "updates of parameters": compute - operators - again,
        "reshards and collectives": network,
        **({"waiting for the host": late} if late > 0 else {}),
    }
