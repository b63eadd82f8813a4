"""What a plan does in a training step: operators, parameters, collectives, where memory and
time go, as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tensoropt_torch import _C
from tensoropt_torch.plan.collectives import Collectives, collectives_of, num_shards
from tensoropt_torch.plan.description import (
    Described,
    PlanDescription,
    config_label,
    described,
    model_at_hand,
    planner_of,
)


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
    """

    description: PlanDescription
    storage: tuple[Storage, ...]
    collectives: tuple[Collectives, ...]
    memory: Mapping[str, float]
    time: Mapping[str, float]
    operator_time: Mapping[str, float]


def details_of(plan: Described, planner: _C.Planner | None = None) -> PlanDetails:
    """In the strategy space of the plan, which is made unless it is given.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    planner = planner or planner_of(plan)
    description = described(planner, plan)
    parameters = _parameters(planner, plan)
    rows = _in_a_step(planner.describe_estimates(plan.strategy()), plan.settings.micro_batches)
    return PlanDetails(
        description,
        _storage(parameters),
        collectives_of(planner, plan),
        _memory(parameters, plan),
        _time(planner, plan, rows),
        {row["name"]: row["time_s"] for row in rows},
    )


def _in_a_step(rows: Sequence[Mapping[str, Any]], micro_batches: int) -> list[dict[str, Any]]:
    """Times of operators, which are those of one micro-batch, for all of them."""
    times = ("time_s", "again_s")
    return [{**row, **{name: micro_batches * row[name] for name in times}} for row in rows]


@dataclass(frozen=True)
class _Parameter:
    """A parameter, whose layout is that of its config."""

    name: str
    layout: str
    num_bytes: float
    shards: int
    state_bytes: float  # of the optimizer, whole
    trained: bool


def _parameters(planner: _C.Planner, plan: Described) -> list[_Parameter]:
    sizes = [size for size, _ in plan.settings.mesh_axes]
    model = model_at_hand(plan)
    layouts = {
        row["name"]: config_label(model, row, config)
        for row, config in zip(planner.describe_nodes(), plan.config, strict=True)
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
    dtype = str(parameter.dtype).removeprefix("torch.")
    return parameter.numel() * plan.settings.optimizer_state_bytes[dtype]


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
    rest = plan.strategy().memory - sum(found.values())
    return found | {"kept for backward": rest}


def _time(
    planner: _C.Planner, plan: Described, rows: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    strategy = plan.strategy()
    operators = sum(row["time_s"] for row in rows)
    compute = float(planner.compute_time(strategy))
    again = sum(row["again_s"] for row in rows)
    return {
        "operators": operators,
        **({"operators again in backward": again} if again > 0 else {}),
        "updates of parameters": compute - operators - again,
        "reshards and collectives": float(planner.network_time(strategy)),
    }
