"""What a program writes into parameters that are split is what one process writes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.parameters.test_parameter_writes"
Write = Callable[[nn.Module], object]
init = nn.init


class Net(nn.Module):
    """With a fused weight, which is split inside of its blocks, and a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 8)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(self.conv(torch.nn.functional.silu(q) * k + v)).square().mean()


def batch() -> torch.Tensor:
    return torch.randn(8, 4, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def each(write: Callable[[nn.Parameter], object]) -> Write:
    def of_all(module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.dim() > 1:
                write(parameter)

    return of_all


def without_grad(write: Callable[[nn.Parameter], object]) -> Write:
    return each(torch.no_grad()(write))


def values(p: torch.Tensor) -> torch.Tensor:
    return torch.arange(p.numel(), dtype=p.dtype).view(p.shape) / 64


def set_vector(module: nn.Module) -> None:
    count = sum(p.numel() for p in module.parameters())
    vector = torch.arange(count, dtype=torch.float64) / count
    nn.utils.vector_to_parameters(vector, module.parameters())


def scale_vector(module: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(module.parameters())
    nn.utils.vector_to_parameters(vector * 2, module.parameters())


def swap(module: nn.Module) -> None:
    """Averages take the places of weights, and go again."""
    before = {name: p.data for name, p in module.named_parameters()}
    for p in module.parameters():
        p.data = p.data * 3
    for name, p in module.named_parameters():
        p.data = before[name] if "weight" in name else p.data


def initialise(module: nn.Module) -> None:
    def of_one(inner: nn.Module) -> None:
        if isinstance(inner, nn.Linear | nn.Conv1d):
            inner.weight.data.normal_(0, 0.5)
            init.zeros_(inner.bias)

    module.apply(of_one)


def set_item(p: nn.Parameter) -> None:
    p[0] = 5.0
    p[:, 1] = values(p)[:, 1]
    p[p > 0.1] = 0
    p[torch.tensor([1, 2])] = 7.0


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def set_data(p: nn.Parameter) -> None:
    p.data = values(p)


RIGHT: dict[str, Write] = {
    "data": each(set_data),
    "vector": set_vector,
    "scaled vector": scale_vector,
    "swap": swap,
    "apply": initialise,
    "normal": each(lambda p: init.normal_(p, 0, 2)),
    "truncated": each(lambda p: init.trunc_normal_(p, std=0.02)),
    "uniform": each(lambda p: init.uniform_(p, -1, 2)),
    "kaiming": each(init.kaiming_normal_),
    "xavier": each(init.xavier_uniform_),
    "orthogonal": lambda m: init.orthogonal_(m.qkv.weight),  # type: ignore[union-attr, arg-type]
    "eye": lambda m: [init.eye_(layer.weight) for layer in (m.qkv, m.out)],  # type: ignore[union-attr, arg-type]
    "dirac": lambda m: init.dirac_(m.conv.weight),  # type: ignore[union-attr, arg-type]
    "sparse": lambda m: init.sparse_(m.out.weight, 0.3),  # type: ignore[union-attr, arg-type]
    "copy": without_grad(lambda p: p.copy_(values(p))),
    "items": without_grad(set_item),
    "own generator": without_grad(lambda p: p.normal_(generator=generator())),
    "noise": without_grad(lambda p: p.add_(torch.randn_like(p), alpha=0.1)),
    "mask": without_grad(lambda p: p.mul_(torch.bernoulli(torch.full_like(p, 0.5)))),
    "exponential": without_grad(lambda p: p.exponential_()),
    "clamp": without_grad(lambda p: p.clamp_(-0.1, 0.1)),
}


def plans(model: nn.Module) -> Iterator[Plan]:
    """The smallest of the frontier, and random ones."""
    captured = capture(model, (batch(),))
    task = PlanningTask(captured, load_cluster("cpu"))
    settings = task.settings(dist.get_world_size())
    space = make_space(captured, settings)
    yield tensoropt_torch.find_frontier(model, (batch(),)).smallest.plan
    for seed in (2, 5):
        yield Plan.of(space, settings, captured, space.random_strategy(seed))


def made() -> Net:
    torch.manual_seed(0)
    return Net().double()


def errors_of(one: nn.Module, module: ParallelModule) -> list[str]:
    theirs = dict(one.named_parameters())
    return [
        name
        for name, p in module.named_parameters()
        if not torch.allclose(p.full_tensor(), theirs[name], rtol=1e-12, atol=1e-14)  # type: ignore[attr-defined]
    ]


def write_all(_: None) -> list[str]:
    """What differs from one process: parameters, and the loss that they give."""
    wrong, split = [], 0
    for number, plan in enumerate(plans(made())):
        module = tensoropt_torch.parallelize(made(), plan)
        split += sum(p.to_local().numel() < p.numel() for p in module.parameters())  # type: ignore[attr-defined]
        for name, write in RIGHT.items():
            one = made()
            module.load_state_dict(one.state_dict())
            for network in (one, module):
                torch.manual_seed(7)
                write(network)
            wrong += [f"{name}, plan {number}: {n}" for n in errors_of(one, module)]
            if abs(float(module(batch()).detach()) / float(one(batch()).detach()) - 1) > 1e-9:
                wrong.append(f"{name}, plan {number}: the loss")
    assert split
    return wrong


@pytest.mark.parametrize("world_size", [2, 4])
def test_writes_are_those_of_one_process(world_size: int) -> None:
    for wrong in run_ranks(world_size, f"{HERE}:write_all", None, 240):
        assert wrong == []


def seeds_differ(_: None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is drawn when each rank has numbers of its own, and what it draws next."""
    module = tensoropt_torch.parallelize(made(), next(plans(made())))
    torch.manual_seed(10 + dist.get_rank())
    init.normal_(module.qkv.weight)
    after = torch.randn(2)
    torch.manual_seed(10)
    expected = init.normal_(made().qkv.weight.detach())
    torch.manual_seed(10)
    return module.qkv.weight.full_tensor().detach(), init.normal_(expected), after


def test_where_ranks_have_other_seeds_that_of_rank_0_counts() -> None:
    results = run_ranks(2, f"{HERE}:seeds_differ")
    for found, expected, _ in results:
        assert torch.equal(found, expected)
    torch.manual_seed(11)
    assert torch.equal(results[1][2], torch.randn(2))  # its own stream has not moved


LOST: dict[str, Callable[[torch.Tensor], object]] = {
    "a row": lambda p: p[0].zero_(),
    "of data": lambda p: p.data[0].fill_(2),
    "narrow": lambda p: p.narrow(0, 1, 3).mul_(2),
    "diagonal": lambda p: p.diagonal().fill_(1),
    "chunk": lambda p: init.normal_(p.chunk(3)[1]),
    "a row and then an item": lambda p: p[0].__setitem__(1, 2.0),
}


UNKNOWN: dict[str, Callable[[torch.Tensor], object]] = {
    "a whole factor": lambda p: p.mul_(values(p)),
    "a whole mask": lambda p: p.masked_fill_(values(p) > 0.5, 0.0),
    "a triangle": lambda p: p.tril_(),
    "wide": lambda p: init.orthogonal_(p.detach().t()),
}


def lose(_: None) -> dict[str, str]:
    module = tensoropt_torch.parallelize(made(), next(plans(made())))
    p = module.qkv.weight
    assert isinstance(p, DTensor) and p.placements[0].is_shard(0) | (p.to_local().shape[0] < 48)
    before = p.full_tensor().clone()
    told = {}
    for name, write in LOST.items():
        with torch.no_grad(), pytest.raises(TensorOptError) as error:
            write(p)
        told[name] = str(error.value)
    with torch.no_grad():  # of columns a rank has all
        p[:, 2:4].zero_()
        before[:, 2:4] = 0
    assert torch.equal(p.full_tensor(), before)
    with torch.no_grad():
        for name, unknown in UNKNOWN.items():
            with pytest.raises(TensorOptError, match=r"not supported.*w = p.full_tensor"):
                unknown(p)
            assert torch.equal(p.full_tensor(), before), name
    with pytest.raises(TensorOptError, match="give a tensor of that shape and dtype"):
        p.data = torch.zeros(3, 3)
    with pytest.raises(TensorOptError, match="float32"):
        p.data = p.data.float()
    return told


def test_what_would_be_lost_is_refused() -> None:
    for told in run_ranks(2, f"{HERE}:lose"):
        for name in LOST:
            assert "would be lost" in told[name] and "p.full_tensor()" in told[name]


def others(_: None) -> bool:
    """Tensors on a mesh of the program's own: as without a parallel module."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("axis0",))

    def drawn() -> list[torch.Tensor]:
        tensor = distribute_tensor(torch.zeros(8, 6), mesh)
        torch.manual_seed(3)
        found = [tensor.normal_().to_local().clone(), torch.rand_like(tensor).to_local()]
        tensor[0].fill_(4)
        return [*found, tensor.to_local()]

    before = drawn()
    parallel = tensoropt_torch.parallelize(copy.deepcopy(made()), next(plans(made())))
    parallel(batch()).backward()
    return all(map(torch.equal, before, drawn()))


def test_other_dtensors_are_left_alone() -> None:
    assert run_ranks(2, f"{HERE}:others") == [True, True]
