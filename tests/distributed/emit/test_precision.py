"""Mixed precision: copies of parameters are moved in their own dtype, and gradients are summed
over ranks in the dtype that was asked for."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch.module.parallel_module import ParallelModule
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.emit.test_precision"
RANKS = 4
WIDTH = 8
ROWS = 4096  # of a rank: too many to be gathered
# In bfloat16 1 + 2**-9 is 1.
ONES = [1.0, *[2.0**-9] * (RANKS - 1)]


class Scaled(nn.Module):
    """The gradient of the weight is the sum of the rows of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output = self.linear(x)
        return output.float().sum()


def data_parallel(model: nn.Module, x: torch.Tensor, **keywords: Any) -> ParallelModule:
    """The fastest: the batch is split."""
    frontier = tensoropt_torch.find_frontier(
        model, (x,), num_devices=RANKS, inputs="sharded", optimizer="sgd", **keywords
    )
    return tensoropt_torch.parallelize(model, frontier.fastest.plan)


def batch() -> torch.Tensor:
    """Rows that are zero, but for one in the share of each rank."""
    x = torch.zeros(RANKS, ROWS, WIDTH)
    x[:, 0] = torch.tensor(ONES)[:, None]
    return x.flatten(0, 1)


def own(x: torch.Tensor) -> torch.Tensor:
    """The rank's share."""
    return x.chunk(RANKS)[torch.distributed.get_rank()]


def gradient_of(reduce_dtype: str) -> tuple[torch.dtype, list[float]]:
    torch.manual_seed(0)
    x = batch()
    parallel = data_parallel(Scaled(), x, reduce_dtype=reduce_dtype)
    parallel(own(x)).backward()
    gradient = parallel.linear.weight.grad
    assert isinstance(gradient, DTensor)
    return gradient.dtype, gradient.full_tensor().flatten().tolist()


@pytest.mark.parametrize("reduce_dtype", ["parameter", "compute"])
def test_gradients_are_summed_in_the_dtype_asked_for(reduce_dtype: str) -> None:
    exact = sum(ONES)
    for dtype, gradient in run_ranks(RANKS, f"{HERE}:gradient_of", reduce_dtype, 120):
        assert dtype == torch.float32
        assert len(gradient) == WIDTH
        if reduce_dtype == "parameter":
            assert gradient == [exact] * WIDTH
        else:
            assert gradient != [exact] * WIDTH
            assert gradient == pytest.approx([exact] * WIDTH, rel=0.01)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output = self.layers(x)
        return output.float().square().mean()


def calls(graph: fx.Graph, *names: str) -> list[fx.Node]:
    targets = [getattr(torch.ops.tensoropt, name).default for name in names]
    return [node for node in graph.nodes if node.target in targets]


def gathers(overlap: bool) -> tuple[int, int, list[torch.dtype | None], float]:
    """Of the plan with the least memory: how many gather a parameter, how many casts are calls,
    the dtypes that are moved, by themselves and together; and the error of the loss."""
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(512, 64)
    expected = float(model(x))
    frontier = tensoropt_torch.find_frontier(
        model, (x,), num_devices=RANKS, inputs="sharded", overlap=overlap
    )
    parallel = tensoropt_torch.parallelize(model, frontier.smallest.plan)
    loss = parallel(own(x))
    loss.backward()
    graph = parallel.rank_graph.graph
    found = [n for n in calls(graph, "reshard", "reshard_parameter") if _is_gather(n)]
    casts = [n for n in graph.nodes if n.target is torch.ops.aten.to.dtype]
    begun = calls(graph, "begin_value", "begin_gathers")
    dtypes = [node.kwargs.get("dtype") for node in (*found, *begun)]
    return len(found), len(casts), dtypes, abs(float(loss) - expected) / expected


def _is_gather(node: fx.Node) -> bool:
    """Of a weight."""
    source = node.args[0]
    while isinstance(source, fx.Node) and source.op != "placeholder":
        operand = source.args[0]
        if source.target is operator.getitem:  # of what await_gradients gives
            operand = operand.args[0][source.args[1]]
        source = operand
    assert isinstance(source, fx.Node)
    return bool(node.args[2]) and source.name.endswith("weight")


@pytest.mark.parametrize("overlap", [False, True])
def test_gathers_move_the_narrow_copies(overlap: bool) -> None:
    for count, casts, dtypes, error in run_ranks(RANKS, f"{HERE}:gathers", overlap, 120):
        assert count >= 2
        assert len(dtypes) > count  # some are begun apart
        assert set(dtypes) == {torch.bfloat16}
        assert casts == 2  # of the input and of the output
        assert error < 0.01


def kept(_: None) -> list[tuple[float, float]]:
    """Errors of gradients of two passes of which the first is kept: to what is exact, with sums
    in the dtype of the parameter and in that of its copy."""
    x = batch()
    errors = []
    for reduce_dtype in ("parameter", "compute"):
        parallel = data_parallel(Scaled(), x, reduce_dtype=reduce_dtype)
        with parallel.no_sync():
            parallel(own(x)).backward()
        parallel(own(x)).backward()
        gradient = parallel.linear.weight.grad
        assert isinstance(gradient, DTensor)
        errors.append(float((gradient.full_tensor() - 2 * sum(ONES)).abs().max()))
    return errors  # type: ignore[return-value]


def test_passes_are_accumulated_in_the_dtype_of_the_parameter() -> None:
    """Sums of passes always are, which is also how they are reduced then."""
    for errors in run_ranks(RANKS, f"{HERE}:kept", None, 120):
        assert errors == [0, 0]


class TwoDtypes(nn.Module):
    """Parameters of two dtypes that are used one after the other, without autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(8, 8).double() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for narrow, wide in zip(self.narrow, self.wide, strict=True):
            x = wide(narrow(x).tanh().double()).tanh().float()
        return x.square().mean()


def in_two_dtypes(_: None) -> tuple[int, float]:
    """Collectives that gather several parameters, and the largest error of a gradient."""
    torch.manual_seed(0)
    model, x = TwoDtypes(), torch.randn(16, 8)
    model(x).backward()
    frontier = tensoropt_torch.find_frontier(model, (x,), num_devices=RANKS, inputs="sharded")
    parallel = tensoropt_torch.parallelize(model, frontier.smallest.plan)
    parallel(own(x)).backward()
    errors = [
        float((p.grad.full_tensor() - q.grad).abs().max())  # type: ignore[union-attr, operator]
        for p, q in zip(parallel.parameters(), model.parameters(), strict=True)
    ]
    return len(calls(parallel.rank_graph.graph, "begin_gathers")), max(errors)


def test_parameters_of_each_dtype_are_gathered_by_themselves() -> None:
    for gathers_of_several, error in run_ranks(RANKS, f"{HERE}:in_two_dtypes", None, 120):
        assert gathers_of_several == 2
        assert error < 1e-6
