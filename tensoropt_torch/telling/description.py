"""What a plan does with every operator, parameter and value, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import Blocks
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.space.choices import Choices
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.space.settings import Settings


class Described(Protocol):
    """What is needed of a ``Plan`` to say what it does."""

    @property
    def captured(self) -> CapturedModel | None: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def choices(self) -> Choices: ...


@dataclass(frozen=True)
class Choice:
    """An operator or a parameter (``operator`` is ``parameter``) that could have been split
    otherwise, and the config that it has."""

    node: str
    operator: str
    config: str


@dataclass(frozen=True)
class PlanDescription:
    """A plan in words.

    Attributes:
        sizes: of the mesh axes, outermost first.
        choices: in execution order.
        num_edges: how many values go to a consumer.
        num_resharded: how many of them, or of their gradients, change their layout.
        kept: how often each kind of tensor reuse occurs among those.
        num_recomputed: how many operators run again in backward.
        micro_batches: as how many of them a step runs the batch.
        num_held: how many parameters of such a step are resharded once, and then held.
        num_summed: how many gradients of parameters it adds up before they are reduced, once.
        num_operators: how many there are.
    """

    sizes: tuple[int, ...]
    choices: tuple[Choice, ...]
    num_edges: int
    num_resharded: int
    kept: Mapping[str, int]
    num_recomputed: int = 0
    micro_batches: int = 1
    num_held: int = 0
    num_summed: int = 0
    num_operators: int = 0


def describe(plan: Described) -> PlanDescription:
    """Makes the strategy space of the plan once.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    return described(space_of(plan), plan)


def described(space: _C.SearchSpace, plan: Described) -> PlanDescription:
    """The description of a plan, by its strategy space."""
    strategy = plan.choices.strategy(space)
    rows = space.nodes()
    model = model_at_hand(plan)
    blocks = model.blocks
    choices = tuple(
        Choice(row.name, row.target or "parameter", shown_config(blocks, row, label))
        for row, label in zip(rows, plan.choices.labels, strict=True)
        if len(row.configs) > 1 and row.target != "relay"
    )
    edges = space.edges_of(strategy)
    moved = [edge for edge in edges if _changes_layout(edge)]
    kept = Counter(e.saved.edge_word for e in moved if e.saved != _C.Saved.NOTHING)
    sizes = tuple(size for size, _ in plan.settings.mesh_axes)
    chosen = zip(rows, strategy.config, strict=True)
    recomputed = sum(
        row.target != "relay" and row.saved[config] == _C.Saved.REMADE for row, config in chosen
    )
    return PlanDescription(
        sizes,
        choices,
        len(edges),
        len(moved),
        dict(sorted(kept.items())),
        recomputed,
        plan.settings.micro_batches,
        sum(edge.held for edge in edges),
        sum(edge.summed for edge in edges),
        sum(bool(row.target) and row.target != "relay" for row in rows),
    )


def _changes_layout(edge: _C.EdgeRow) -> bool:
    """Whether the layout of the value or of its gradient changes."""
    return edge.layout_from != edge.layout_to or edge.gradient_from != edge.gradient_to


def shown_config(blocks: Mapping[str, Blocks], row: _C.NodeRow, label: str) -> str:
    """The config of a space node (``SearchSpace.nodes``); that of a parameter says how it
    is stored by its own dims, also if the graph sees it by blocks (``CapturedModel.blocks``)."""
    seen = None if row.target else blocks.get(row.name)
    return label if seen is None else seen.label(label)


def space_of(plan: Described) -> _C.SearchSpace:
    """The strategy space of a plan.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    return make_space(model_at_hand(plan), plan.settings)


def model_at_hand(plan: Described) -> CapturedModel:
    """The model of a plan.

    Raises:
        TensorOptError: the plan was loaded without it.
    """
    if plan.captured is None:
        raise TensorOptError(
            "the plan has no model at hand; give it the captured one with plan.with_model()"
        )
    return plan.captured
