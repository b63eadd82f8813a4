"""A parallel module that goes on under another plan, in place."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.operators import OPS
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, varied_strategy
from tensoropt_torch.values.moves import Moved
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.module.test_moving"
RANKS = 4
BUCKET = 2**16
SMALL_BYTES = 4096  # of tensors that hold numbers of a rank
TOLERANCE = 1e-10  # relative, float64; sums are taken in another order


class Net(nn.Module):
    """Tied weights, one that is split inside of its blocks, running statistics, a large buffer, a
    frozen parameter, and sizes that ranks do not divide."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(52, 24)
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.odd, self.back = nn.Linear(24, 15), nn.Linear(15, 24)
        self.norm = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, 52, bias=False)
        self.head.weight = self.embed.weight
        self.out.bias.requires_grad_(False)
        self.register_buffer("table", torch.randn(64, 24))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens)) + self.table[tokens]
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + self.out(F.silu(q) * k + v)
        return F.cross_entropy(self.head(x + self.back(self.odd(x).tanh())), targets)


def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 52, (2, 16), generator=torch.Generator().manual_seed(step))
    return tokens[0], tokens[1]


def random_plans(model: nn.Module) -> Iterator[Plan]:
    """One after the other; seeds count from 0."""
    task = PlanningTask(capture(model, batch(0)), load_cluster("cpu"), recompute=True)
    settings = task.settings(dist.get_world_size())
    space = make_space(task.captured, settings)
    seed = 0
    while True:
        yield Plan.of(space, settings, task.captured, varied_strategy(space, seed))
        seed += 1


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


def everything(module: ParallelModule, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Parameters, gradients, buffers and states, whole."""
    found: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, DTensor)
        found[name] = whole(parameter)
        if parameter.grad is not None:
            found[f"{name}.grad"] = whole(parameter.grad)
    found |= {name: whole(buffer) for name, buffer in module.named_buffers()}
    states = optimizer.state_dict()["state"]
    for index, state in states.items():
        for name, value in state.items():
            found[f"{index}.{name}"] = whole(value) if isinstance(value, torch.Tensor) else value
    return copy.deepcopy(found)


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    return [
        name
        for name, value in one.items()
        if not (
            torch.equal(value, other[name])
            if isinstance(value, torch.Tensor)
            else value == other[name]
        )
    ]


def peak_of_move(module: ParallelModule, plan: Plan) -> tuple[Moved, int]:
    """What a move says, and the most bytes of tensors beside those before, counted from its first
    bucket on: the graph of the plan is made before."""
    gc.collect()
    OPS.count_allocations(True)
    try:
        OPS.reset_peak_allocated()
        moved = module.move_to(plan, bucket_bytes=BUCKET)
        return moved, OPS.peak_allocated()
    finally:
        OPS.count_allocations(False)


def held_bytes(module: ParallelModule, optimizer: torch.optim.Optimizer) -> int:
    tensors: list[Any] = [*module.parameters(), *module.buffers()]
    tensors += [p.grad for p in module.parameters() if p.grad is not None]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    own = (t._local_tensor if isinstance(t, DTensor) else t for t in tensors)
    return sum(tensor.nbytes for tensor in own if isinstance(tensor, torch.Tensor))


class Run:
    """A module, its optimizer and the scheduler of that."""

    def __init__(self, module: nn.Module, optimizer: str) -> None:
        self.module = module
        self.optimizer = OPTIMIZERS[optimizer](module.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)

    def step(self, number: int) -> float:
        self.optimizer.zero_grad()
        loss = self.module(*batch(number))
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.detach())


@dataclass
class Chain:
    optimizer: str
    moves: int


def run_chain(chain: Chain) -> tuple[list[str], int]:
    """What is wrong, by the seed of a plan, and how often a parameter got another layout."""
    model = net()
    plans = random_plans(model)
    module = tensoropt_torch.parallelize(model, next(plans))
    parameters = list(module.parameters())
    run, alone = Run(module, chain.optimizer), Run(net(), chain.optimizer)
    wrong, relaid = [], 0
    for seed in range(1, chain.moves + 1):
        loss, expected = run.step(seed), alone.step(seed)
        if loss != pytest.approx(expected, rel=TOLERANCE):
            wrong.append(f"{seed}: loss {loss}, but {expected} in one process")
        before, bytes_before = everything(module, run.optimizer), held_bytes(module, run.optimizer)
        layouts = [parameter.placements for parameter in parameters]
        moved, peak = peak_of_move(module, next(plans))
        relaid += sum(p.placements != old for p, old in zip(parameters, layouts, strict=True))
        for name in differing(before, everything(module, run.optimizer)):
            wrong.append(f"{seed}: '{name}' differs")
        if [*map(id, parameters)] != [*map(id, module.parameters())]:
            wrong.append(f"{seed}: other parameters")
        largest = max(parameter._local_tensor.nbytes for parameter in parameters)
        if moved.extra_bytes > 2 * BUCKET + max(BUCKET, largest):
            wrong.append(f"{seed}: {moved}")
        growth = max(held_bytes(module, run.optimizer) - bytes_before, 0)
        least = 1 if moved.tensors else 0
        if not least <= peak <= growth + moved.extra_bytes + SMALL_BYTES:
            wrong.append(f"{seed}: peak of {peak} B, growth of {growth} B, {moved}")
    return wrong, relaid


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_chain_of_random_plans_keeps_every_bit_and_trains_as_one_process(optimizer: str) -> None:
    for wrong, relaid in run_ranks(RANKS, f"{HERE}:run_chain", Chain(optimizer, 3), 150):
        assert wrong == []
        assert relaid >= 6


@pytest.mark.slow
def test_thirty_pairs_of_random_plans_keep_every_bit() -> None:
    for wrong, relaid in run_ranks(RANKS, f"{HERE}:run_chain", Chain("adamw", 30), 500):
        assert wrong == []
        assert relaid >= 60


def frontier_of(model: nn.Module, **options: Any) -> tensoropt_torch.Frontier:
    return tensoropt_torch.find_frontier(model, batch(0), recompute=False, **options)


def error_of(module: ParallelModule, plan: Any, *optimizers: Any) -> str:
    with pytest.raises(TensorOptError) as caught:
        module.move_to(plan, *optimizers)
    return str(caught.value)


def run_refusals(_: None) -> list[str]:
    frontier = frontier_of(net())
    module = tensoropt_torch.parallelize(net(), frontier.fastest.plan)
    run = Run(module, "adamw")
    run.step(0)
    before = everything(module, run.optimizer)
    found = [
        error_of(module, frontier_of(net(), num_devices=2).fastest.plan),
        error_of(module, frontier_of(net(), inputs="sharded").fastest.plan),
        error_of(module, frontier_of(Net().float()).fastest.plan),
        error_of(module, frontier.smallest),
        error_of(module, frontier.smallest.plan, module),
        error_of(module, tensoropt_torch.find_stages(net(), batch(0), stages=2, measure=False)),
    ]
    assert differing(before, everything(module, run.optimizer)) == []
    run.step(1)
    loss = module(*batch(2))
    module.move_to(frontier.smallest.plan)
    with pytest.raises(TensorOptError) as caught:
        loss.backward()
    run.step(2)
    return [*found, str(caught.value)]


def test_what_cannot_be_moved_is_told_and_nothing_has_changed() -> None:
    expected = [
        "is for 2 devices, but 4 processes run",
        "the plan has inputs='sharded' and the module inputs='replicated'",
        "was made for another model",
        "plan is a FrontierPoint",
        "move_to was given a ParallelModule",
        "move_to goes to plans without stages, and this one has 2: save a checkpoint",
        "was made before move_to",
    ]
    for found in run_ranks(RANKS, f"{HERE}:run_refusals", None, 90):
        for text, words in zip(found, expected, strict=True):
            assert words in text


def run_loaded(_: None) -> list[str]:
    """States that were loaded, and an optimizer that has made no step."""
    frontier, alone = frontier_of(net()), Run(net(), "adamw")
    for number in range(2):
        alone.step(number)
    states, weights = (
        copy.deepcopy(alone.optimizer.state_dict()),
        copy.deepcopy(alone.module.state_dict()),
    )
    expected = alone.step(2), alone.step(3)
    texts = []
    for given in (True, False):
        module = tensoropt_torch.parallelize(net(), frontier.fastest.plan)
        module.load_state_dict(weights)
        run = Run(module, "adamw")
        tensoropt_torch.load_optimizer(run.optimizer, states)
        module.move_to(frontier.smallest.plan, *([run.optimizer] if given else []))
        if given:
            assert (run.step(2), run.step(3)) == pytest.approx(expected, rel=TOLERANCE)
        else:
            with pytest.raises(TensorOptError) as caught:
                run.step(2)
            texts.append(str(caught.value))
    return texts


def test_states_that_were_loaded_go_with_their_parameters_or_are_an_error() -> None:
    for (text,) in run_ranks(RANKS, f"{HERE}:run_loaded", None, 90):
        assert "give the optimizer to move_to(plan, optimizer)" in text


def run_in_between(_: None) -> tuple[list[float], list[float]]:
    """Gradients that wait, micro-batches, and evaluation."""
    found = []
    for moves in (False, True):
        frontier = tensoropt_torch.find_frontier(Layers(), inputs_of(0), max_micro_batches=2)
        module = tensoropt_torch.parallelize(Layers(), frontier.fastest.plan)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        losses = []
        for number in range(4):
            if number % 2 == 0:
                with module.no_sync():
                    module(*inputs_of(number + 10)).backward()
                if moves:
                    module.move_to((frontier.smallest, frontier.fastest)[number // 2].plan)
            loss = module(*inputs_of(number))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            module.eval()
            with torch.no_grad():
                losses += [float(loss), float(module(*inputs_of(number)))]
            module.train()
        found.append(losses)
    return found[0], found[1]


class Layers(nn.Module):
    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 6)).double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


def inputs_of(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 12, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 6, (8,), generator=generator)


def test_gradients_that_wait_micro_batches_and_evaluation_go_on() -> None:
    for expected, got in run_ranks(RANKS, f"{HERE}:run_in_between", None, 90):
        assert got == pytest.approx(expected, rel=TOLERANCE)


def test_one_process_moves_too() -> None:
    tensoropt_torch.init()
    try:
        wrong, relaid = run_chain(Chain("adamw", 2))
        assert (wrong, relaid) == ([], 0)
    finally:
        dist.destroy_process_group()
