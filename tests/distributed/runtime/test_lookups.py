"""Ids out of range: the same error on all ranks, whoever has them, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, varied_strategy
from tests.distributed.harness import run_ranks
from tests.distributed.lookup_models import RoutedExperts
from tests.distributed.models import CASES
from tests.distributed.parity import share

HERE = "tests.distributed.runtime.test_lookups"
RANKS = 4
STRATEGIES = 6
IGNORED = 99  # not among the classes

Args = tuple[torch.Tensor, ...]


class Chosen(RoutedExperts):
    """Experts that the caller chooses."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return self.experts(x, chosen, weights).square().mean()


class Classes(nn.Module):
    """A head over classes, targets of which some do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.head(x)
        mean = F.cross_entropy(logits, target, ignore_index=IGNORED, label_smoothing=0.1)
        return mean + F.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum") / 64


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(x), target)


class Vectors(nn.Module):
    """One-hot vectors, and rows that are written where ids say."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 12)

    def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows = self.head(F.one_hot(ids, 12).float())
        added = torch.zeros(12, 12).index_add(0, places, rows)
        return (added.gather(1, ids[:12, None]) + added.sum()).square().mean()


def chosen() -> tuple[nn.Module, Args]:
    generator = torch.Generator().manual_seed(1)
    x, weights = torch.randn(16, 8, generator=generator), torch.rand(16, 2, generator=generator)
    return Chosen(), (x, torch.randint(0, 4, (16, 2), generator=generator), weights)


def classes() -> tuple[nn.Module, Args]:
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 12, (16,), generator=generator)
    target[[1, 5, 6, 12]] = IGNORED
    return Classes(), (torch.randn(16, 8, generator=generator), target)


def vectors() -> tuple[nn.Module, Args]:
    ids = torch.randint(0, 12, (2, 16), generator=torch.Generator().manual_seed(1))
    return Vectors(), (ids[0], ids[1])


def of_case(name: str) -> Callable[[], tuple[nn.Module, Args]]:
    def make() -> tuple[nn.Module, Args]:
        case = CASES[name]()
        return case.model, (*case.args, *case.targets)

    return make


@dataclass(frozen=True)
class Mistake:
    """One number of an argument, at a position of the last ranks', that is out of range."""

    model: str
    argument: int
    value: int
    says: str  # in the message
    inputs: str = "replicated"

    def args(self, args: Args) -> Args:
        wrong = [arg.clone() for arg in args]
        wrong[self.argument].view(-1)[-1] = self.value
        return tuple(wrong)


MODELS: dict[str, Callable[[], tuple[nn.Module, Args]]] = {
    "chosen": chosen,
    "classes": classes,
    "vectors": vectors,
    **{name: of_case(name) for name in ("experts", "sorted_experts", "routed_experts")},
}
# One of each operator; those that are slow make the other mistakes.
MISTAKES = (
    Mistake("experts", 0, 12, "(aten.embedding.default)"),
    Mistake("classes", 1, -100, "(aten.cross_entropy_loss.default)", "sharded"),
    Mistake("sorted_experts", 0, -1, "(aten.index.Tensor)"),
    Mistake("sorted_experts", 1, 12, "(aten.gather.default)"),
    Mistake("chosen", 1, 4, "(tensoropt.routed_experts.default)"),
    Mistake("vectors", 0, 12, "(aten.one_hot.default)"),
    Mistake("vectors", 1, -1, "(aten.index_add.default)", "sharded"),
)
MORE_MISTAKES = (
    Mistake("experts", 0, -1, "(aten.embedding.default)", "sharded"),
    Mistake("experts", 1, 12, "(aten.cross_entropy_loss.default)"),
    Mistake("experts", 1, -1, "(aten.cross_entropy_loss.default)", "sharded"),
    Mistake("classes", 1, 12, "(aten.cross_entropy_loss.default)"),
    Mistake("sorted_experts", 0, 24, "(aten.index.Tensor)", "sharded"),
    Mistake("routed_experts", 0, 10**9, "(aten.embedding.default)"),
    Mistake("chosen", 1, -1, "(tensoropt.routed_experts.default)", "sharded"),
    Mistake("vectors", 1, 12, "(aten.index_add.default)"),
)


# Operators' own errors, where all ranks have the same ids and make the call of one process.
OWN = (
    "index out of range in self",
    "is out of bounds",
    "Class values must be",
    "routed_experts: choices from",
)


def loss_or_error(module: nn.Module, args: Args) -> float | str:
    try:
        return float(module(*args))
    except IndexError as error:
        return str(error)
    except RuntimeError as error:
        if any(text in str(error) for text in OWN):
            return str(error)
        raise


def checks_of(graph: torch.fx.GraphModule) -> set[str]:
    names = {str(node.target) for node in graph.graph.nodes}
    return {name for name in names if "lookup" in name}


def run_strategies(mistake: Mistake) -> tuple[list[str], set[str]]:
    """The messages of all strategies, and the operators that check in their graphs."""
    torch.manual_seed(0)
    model, args = MODELS[mistake.model]()
    expected = float(model(*args))
    task = PlanningTask(capture(model, args), load_cluster("cpu"), inputs=mistake.inputs)
    settings = task.settings(RANKS)
    space = make_space(task.captured, settings)
    sizes = [size for size, _ in settings.mesh_axes]
    context = RankContext.make(sizes, torch.device("cpu"))
    messages, checks = [], set()
    for seed in range(STRATEGIES):
        plan = Plan.of(space, settings, task.captured, varied_strategy(space, seed))
        module = parallelize(model, task.captured, plan, torch.device("cpu"), context)
        checks |= checks_of(module.rank_graph)
        right, wrong = share(args, mistake.inputs), share(mistake.args(args), mistake.inputs)
        assert loss_or_error(module, right) == pytest.approx(expected, rel=1e-4), seed
        message = loss_or_error(module, wrong)
        # Nothing is left of it, and the job goes on.
        assert loss_or_error(module, right) == pytest.approx(expected, rel=1e-4), seed
        messages.append(f"no error, but {message}" if isinstance(message, float) else message)
    return messages, checks


@pytest.mark.parametrize(
    "mistake",
    [*MISTAKES, *(pytest.param(mistake, marks=pytest.mark.slow) for mistake in MORE_MISTAKES)],
    ids=str,
)
def test_an_id_out_of_range_is_the_same_error_on_all_ranks(mistake: Mistake) -> None:
    model, args = MODELS[mistake.model]()
    if mistake.model != "chosen":  # Hugging Face's experts read rows that nobody wrote
        with pytest.raises((IndexError, RuntimeError)):  # in one process
            model(*mistake.args(args))
    results = run_ranks(RANKS, f"{HERE}:run_strategies", mistake, 200)
    first, checks = results[0]
    for messages, _ in results:
        assert messages == first
    named = [message for message in first if mistake.says in message]
    assert named, first
    for message in first:
        assert not message.startswith("no error"), message
        assert ": index out of range: " in message or any(text in message for text in OWN)
    assert "tensoropt.check_lookups.default" in checks


def run_probabilities(_: None) -> tuple[float, float]:
    torch.manual_seed(0)
    model = Probabilities()
    args = (torch.randn(16, 8), torch.rand(16, 12).softmax(1))
    task = PlanningTask(capture(model, args), load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    space = make_space(task.captured, settings)
    plan = Plan.of(space, settings, task.captured, varied_strategy(space, 3))
    context = RankContext.make([size for size, _ in settings.mesh_axes], torch.device("cpu"))
    module = parallelize(model, task.captured, plan, torch.device("cpu"), context)
    assert not checks_of(module.rank_graph)
    return float(module(*args)), float(model(*args))


def test_targets_that_are_probabilities_are_not_looked_up() -> None:
    for got, expected in run_ranks(2, f"{HERE}:run_probabilities"):
        assert got == pytest.approx(expected, rel=1e-5)
