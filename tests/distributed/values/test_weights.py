"""A model on the meta device gets its values part by part."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError, WeightSource
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.values.test_weights"
SEED = 7


class Tied(nn.Module):
    """A tied weight, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.norm = nn.BatchNorm1d(16)
        self.scale = Scale(16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.scale(self.norm(self.embed(tokens))))
        return F.cross_entropy(logits, tokens)


class Scale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("by", torch.full((size,), 0.5), persistent=False)

    def reset_parameters(self) -> None:
        self.by = torch.full(self.by.shape, 0.5)  # a new tensor, not the old one filled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


TOKENS = torch.arange(8)


M = TypeVar("M", bound=nn.Module)


def on_meta(build: Callable[[], M]) -> M:
    with torch.device("meta"):
        return build()


def in_one_process() -> Tied:
    """What the modules' own initialisation gives."""
    torch.manual_seed(SEED)
    model = on_meta(Tied).to_empty(device="cpu")
    model.head.weight = model.embed.weight  # to_empty() parts them
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


def parallel(weights: WeightSource | None, model: nn.Module | None = None) -> ParallelModule:
    """The plan of least memory, in which parameters are sharded."""
    model = model or on_meta(Tied)
    frontier = tensoropt_torch.find_frontier(model, (TOKENS,))
    torch.manual_seed(SEED + 100 * dist.get_rank())
    return tensoropt_torch.parallelize(model, frontier.smallest.plan, weights=weights)


def values(module: ParallelModule) -> dict[str, torch.Tensor]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}


def from_source(kind: str) -> None:
    expected = in_one_process()
    with tempfile.TemporaryDirectory() as name:
        folder = [name]
        dist.broadcast_object_list(folder, 0)
        source = source_of(kind, expected, Path(folder[0]))
        module = parallel(source)
        dist.barrier()
    assert any(
        p.to_local().numel() < p.numel() for p in module.parameters() if isinstance(p, DTensor)
    )
    assert module.get_parameter("head.weight") is module.get_parameter("embed.weight")
    own = {**dict(expected.named_parameters()), **dict(expected.named_buffers())}
    for name, tensor in values(module).items():
        assert torch.equal(tensor, own[name]), name
    loss = module(TOKENS)
    torch.testing.assert_close(loss, expected(TOKENS))


def source_of(kind: str, model: nn.Module, folder: Path) -> WeightSource | None:
    if kind == "modules":
        return None
    state = model.state_dict()
    if kind == "mapping":
        return WeightSource(checkpoint=state)
    if kind == "folder":
        dcp.save(state, checkpoint_id=folder / "saved")
        return WeightSource(checkpoint=folder / "saved")
    if kind == "incomplete":  # the rest has the values of reset_parameters
        return WeightSource(checkpoint=without("norm.bias"), initialise=reset)
    path = folder / "saved.pt"
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()
    return WeightSource(checkpoint=path)


@pytest.mark.parametrize("kind", ["modules", "mapping", "file", "folder", "incomplete"])
def test_values_equal_those_of_one_process(kind: str) -> None:
    run_ranks(2, f"{HERE}:from_source", kind, 90)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weight[tokens].sum()


def reset(module: nn.Module) -> None:
    module.reset_parameters()  # type: ignore[operator]


def nothing(module: nn.Module) -> None:
    """An initialiser that forgets everything."""


def without(name: str) -> dict[str, torch.Tensor]:
    return {n: t for n, t in in_one_process().state_dict().items() if n != name}


WRONG: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "no reset_parameters": (lambda: parallel(None, on_meta(Bare)), ["Bare", "initialise="]),
    "nothing set": (
        lambda: parallel(WeightSource(initialise=nothing)),
        ["embed.weight", "Embedding", "does not set it"],
    ),
    "name": (
        lambda: parallel(WeightSource(checkpoint={"x": TOKENS})),
        ["embed.weight", "it has x"],
    ),
    "shape": (
        lambda: parallel(
            WeightSource(checkpoint={**in_one_process().state_dict(), "norm.bias": TOKENS})
        ),
        ["norm.bias", "(8,)", "(16,)"],
    ),
    "file": (
        lambda: parallel(WeightSource(checkpoint="/nowhere.pt")),
        ["/nowhere.pt", "torch.save"],
    ),
    "buffer": (
        lambda: parallel(WeightSource(checkpoint=without("norm.running_var"))),
        ["no 'norm.running_var'", "initialise="],
    ),
    "buffer that nothing sets": (
        lambda: parallel(WeightSource(checkpoint=without("norm.running_var"), initialise=nothing)),
        ["norm.running_var", "meta device", "does not set it"],
    ),
}


def error_of(name: str) -> str:
    try:
        WRONG[name][0]()
    except TensorOptError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("name", list(WRONG))
def test_what_gets_no_value_is_one_clear_error(name: str) -> None:
    for message in run_ranks(2, f"{HERE}:error_of", name, 60):
        for part in WRONG[name][1]:
            assert part in message, message


MIB = 2**20
LAYERS, WIDTH = 32, 2048  # 16 MiB each, 512 MiB in all
ROOM = 464 * MIB  # what a process may allocate: less than the parameters


def large() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def in_little_memory(_: None) -> tuple[bool, float]:
    """Whether the whole model fits, and the loss of its parts after a step."""
    x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(SEED))
    model = on_meta(large)
    frontier = tensoropt_torch.find_frontier(
        model, (x,), loss_fn=torch.mean, optimizer="sgd", num_devices=4
    )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + ROOM, hard))
    torch.manual_seed(SEED)
    module = tensoropt_torch.parallelize(model, frontier.smallest.plan)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2, foreach=False)
    loss = module(x)
    loss.backward()
    optimizer.step()
    del module, optimizer
    try:
        large()
    except RuntimeError:  # DefaultCPUAllocator: can't allocate memory
        return False, float(loss)
    return True, float(loss)


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA now."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmData"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's limits")
def test_a_model_larger_than_a_process_starts_and_trains() -> None:
    torch.manual_seed(SEED)
    whole = on_meta(large).to_empty(device="cpu")
    for layer in whole.children():
        layer.reset_parameters()  # type: ignore[operator]
    x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(SEED))
    expected = float(whole(x).mean())
    for fits, loss in run_ranks(4, f"{HERE}:in_little_memory", None, 180):
        assert not fits
        assert loss == pytest.approx(expected, rel=1e-4, abs=1e-7)
