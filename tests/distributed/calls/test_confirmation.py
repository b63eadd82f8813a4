"""What runs while the ranks agree on a call: nothing that another rank takes part in, and
nothing that is left of a call on which they do not agree."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.agreement import PendingAgreement, confirming
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.distributed.models import make

HERE = "tests.distributed.calls.test_confirmation"
MODELS = [["gpt", "lstm"], ["resnet", "experts", "recommender"]]


class Probe(PendingAgreement):
    """An agreement that notes what has been done when it is asked for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._before = self._buffers()
        self.sent: list[int] = []
        ops.reset_collective_counts()

    def is_reached(self) -> bool:
        self.sent.append(ops.collective_counts().collectives)
        for before, now in zip(self._before, self._buffers(), strict=True):
            assert torch.equal(before, now)
        return True

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer.clone() for buffer in self._module.buffers()]


def check_model(name: str) -> tuple[int, int]:
    """The graphs of random strategies, which ask once; how many send something in forward, and
    how many of these compute before they ask."""
    case = make(name, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    task = PlanningTask(captured, tensoropt_torch.load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    space = make_space(captured, settings)
    plans = [Plan.of(space, settings, captured, space.random_strategy(seed)) for seed in range(6)]
    (plain,) = find_baselines(task, dist.get_world_size(), ("data parallel",))
    plans += [plain.plan(0)] if plain.points else []
    context = RankContext.make([size for size, _ in settings.mesh_axes], torch.device("cpu"))
    senders = early = 0
    for plan in plans:
        module = parallelize(case.model, captured, plan, context.device, context)
        probe = Probe(module)
        with confirming(probe):
            inputs = (*case.args, *case.targets)
            programs = programs_of(module)
            programs.executor.run(programs.base, inputs, 0, (), reduces=True)
        assert probe.sent == [0]
        names = [node.name for node in module.rank_graph.graph.nodes if node.op == "call_function"]
        sends = ops.collective_counts().collectives > 0
        senders += sends
        early += sends and names.index("confirm_call") > 0
    return senders, early


@pytest.mark.parametrize("models", [MODELS[0], pytest.param(MODELS[1], marks=pytest.mark.slow)])
def test_nothing_is_sent_or_changed_before_the_ranks_agree(models: list[str]) -> None:
    found = [run_ranks(2, f"{HERE}:check_model", name, 100)[0] for name in models]
    senders, early = (sum(column) for column in zip(*found, strict=True))
    assert 0 < early <= senders


class Net(nn.Module):
    """Draws numbers, and counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.body(x)).relu()))


def net() -> ParallelModule:
    torch.manual_seed(0)
    x, y = torch.randn(8, 16), torch.randn(8, 4)
    return tensoropt_torch.auto_parallel(
        Net(), (x,), loss_fn=F.mse_loss, targets=(y,), measure=False, inputs="sharded"
    )


def step(module: ParallelModule, rows: int = 4) -> torch.Tensor:
    """A step of each mode, on shares of so many rows."""
    torch.manual_seed(dist.get_rank())
    x, y = torch.randn(rows, 16), torch.randn(rows, 4)
    module.zero_grad()
    loss = module(x, y)
    loss.backward()
    module.eval()
    with torch.no_grad():
        evaluated = module(x)
    module.train()
    return torch.stack([loss.detach(), evaluated.sum()])


def check_disagreement(_: None) -> None:
    """In modes that were used before, so that calls begin at once; and with unequal rows."""
    disturbed, calm = net(), net()
    for module in (disturbed, calm):
        step(module)
    for wrong_rank in range(dist.get_world_size()):
        disturbed.train(dist.get_rank() != wrong_rank)
        with pytest.raises(TensorOptError, match="ranks call the module differently") as caught:
            disturbed(torch.randn(4, 16), torch.randn(4, 4))
        assert caught.value.__context__ is None
        disturbed.train()
        assert torch.equal(step(disturbed), step(calm))
    rows = 4 - dist.get_rank() % 2
    assert torch.equal(step(disturbed, rows), step(calm, rows))
    for one, other in zip(disturbed.parameters(), calm.parameters(), strict=True):
        assert torch.equal(one.grad.to_local(), other.grad.to_local())
    for one, other in zip(disturbed.buffers(), calm.buffers(), strict=True):
        assert torch.equal(one, other)


def test_a_call_that_differs_leaves_nothing() -> None:
    run_ranks(2, f"{HERE}:check_disagreement", None, 100)


class Checked(nn.Module):
    """Rows of a table, looked up before anything is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(8, 16), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


def check_local_error(_: None) -> None:
    """A rank fails by itself while the others make another call, all of kinds that ran before:
    they differ, on all ranks, and the next call goes on."""
    torch.manual_seed(0)
    ids, y = torch.randint(8, (8,)), torch.randn(8, 4)
    module = tensoropt_torch.auto_parallel(
        Checked(), (ids,), loss_fn=F.mse_loss, targets=(y,), measure=False, inputs="sharded"
    )

    def call(training: bool, wrong: bool = False) -> torch.Tensor:
        module.train(training)
        own = ids.chunk(2)[dist.get_rank()]
        own = own + 8 if wrong else own
        return module(own, y.chunk(2)[dist.get_rank()]) if training else module(own)

    expected = [call(True), call(False)]
    is_first = dist.get_rank() == 0
    with pytest.raises(TensorOptError, match="ranks call the module differently"):
        call(not is_first, wrong=is_first)
    assert torch.equal(call(True), expected[0])
    assert torch.equal(call(False), expected[1])


def test_a_rank_that_fails_in_another_call_leaves_nobody_waiting() -> None:
    run_ranks(2, f"{HERE}:check_local_error", None, 100)
