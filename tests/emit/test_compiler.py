"""How what ranks compute is compiled, and which graphs can be CUDA graphs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from tensoropt_torch import CompileOptions, TensorOptError
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.ahead import Backend
from tensoropt_torch.emit.collective_buckets import Buckets
from tensoropt_torch.emit.compiler import CUDA_GRAPHS, compiler_of, modes
from tensoropt_torch.emit.cuda_graphs import check_can_be_captured
from tensoropt_torch.emit.overlap_times import OverlapTimes
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.functional import NotFunctionalError
from tensoropt_torch.runtime.random import keep_mask


def test_names_are_those_of_pytorch() -> None:
    assert compiler_of(False) is None
    assert compiler_of(True) == CompileOptions()
    assert compiler_of("aot_eager") == CompileOptions(backend="aot_eager")
    for mode in modes():
        assert compiler_of(mode) == CompileOptions(mode=mode)
    given = CompileOptions(collectives="inductor")
    assert compiler_of(given) is given


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"backend": "inductr"}, "inductr"),
        ({"mode": "fast"}, "reduce-overhead"),
        ({"collectives": "mine"}, "inductor"),
        ({"backend": "aot_eager", "mode": "max-autotune"}, "are of Inductor"),
        ({"backend": "aot_eager", "collectives": "inductor"}, "are of Inductor"),
    ],
)
def test_what_is_not_there_is_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(TensorOptError, match=words):
        CompileOptions(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_need_a_gpu(mode: str) -> None:
    options = CompileOptions(mode=mode)
    assert options.patches[CUDA_GRAPHS]
    options.check_device(torch.device("cuda"))
    with pytest.raises(TensorOptError, match="runs steps as CUDA graphs, and the device is 'cpu'"):
        options.check_device(torch.device("cpu"))
    CompileOptions(mode="max-autotune-no-cudagraphs").check_device(torch.device("cpu"))


def test_inductors_pass_needs_a_gpu() -> None:
    options = CompileOptions(collectives="inductor")
    options.check_device(torch.device("cuda"))
    with pytest.raises(TensorOptError, match="asks a GPU for its speed"):
        options.check_device(torch.device("cpu"))


def test_times_can_be_copied_as_options_are() -> None:
    with torch.device("meta"):
        captured = capture(torch.nn.Linear(4, 4), (torch.zeros(8, 4),), loss_fn=torch.sum)
    settings = PlanningTask(captured, load_cluster("h100-8")).settings(8)
    times = OverlapTimes(settings, [7], lambda axes: f"group {axes}")
    gathers = torch.ops._c10d_functional.all_gather_into_tensor.default
    graph = fx.Graph()
    part = graph.placeholder("part")
    part.meta["val"] = torch.empty(1024, device="meta")
    whole = graph.call_function(gathers, (part, 8, "group 7"))
    whole.meta["val"] = torch.empty(8192, device="meta")
    found = times(whole, None)  # which makes what is of C++
    assert found is not None and found > 0
    assert copy.deepcopy(times)(whole, None) == pickle.loads(pickle.dumps(times))(whole, None)
    assert copy.deepcopy(times)(whole, None) == found


def test_what_is_kept_is_not_of_a_cuda_graph() -> None:
    backend = Backend("inductor", Buckets(), CompileOptions(mode="max-autotune").patches)
    kept = backend.without_cuda_graphs
    assert CUDA_GRAPHS not in kept.patches and kept.patches["max_autotune"]


def traced_on_gpu(function: object, *args: torch.Tensor) -> fx.Graph:
    """The graph of a function as if its tensors were on a GPU."""
    graph: fx.Graph = make_fx(function, tracing_mode="fake")(*args).graph  # type: ignore[arg-type]
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            value.fake_device = torch.device("cuda")  # type: ignore[attr-defined]
    return graph


def test_fixed_shapes_can_be_captured() -> None:
    graph = traced_on_gpu(lambda x: torch.softmax(x @ x, -1).sum(), torch.randn(4, 4))
    assert len(graph.nodes) > 3
    check_can_be_captured(graph)  # does not raise


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: keep_mask(x, 0.5, torch.ones(()), [1]) * x, "seed of the step"),
        (lambda x: torch.nonzero(x), "reads numbers of the device"),
        (lambda x: x.masked_select(x > 0), "reads numbers of the device"),
    ],
)
def test_what_the_host_reads_is_refused(function: object, words: str) -> None:
    with pytest.raises(NotFunctionalError, match=words):
        check_can_be_captured(traced_on_gpu(function, torch.randn(4, 4)))


def test_tensors_of_the_host_are_refused() -> None:
    graph = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.randn(4)).graph
    with pytest.raises(NotFunctionalError, match="on the device 'cpu'"):
        check_can_be_captured(graph)


def test_times_of_the_pass_are_those_of_the_plan() -> None:
    with torch.device("meta"):
        captured = capture(torch.nn.Linear(4, 4), (torch.zeros(8, 4),), loss_fn=torch.sum)
    cluster = load_cluster("h100-8")
    settings = PlanningTask(captured, cluster).settings(8)
    times = OverlapTimes(settings, [7], lambda axes: f"group {axes}")
    collectives = torch.ops._c10d_functional

    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    graph = make_fx(function, tracing_mode="fake")(torch.randn(512, 512)).graph
    (product,) = (node for node in graph.nodes if node.op == "call_function")
    device = cluster.device
    rate = device.flops_per_s["float32"] * device.efficiency.matmul
    assert times(product, None) == pytest.approx(1e3 * 2 * 512**3 / rate)
    with graph.inserting_after(product):
        sent = graph.call_function(collectives.all_reduce.default, (product, "sum", "group 7"))
    sent.meta["val"] = product.meta["val"]
    small, large = times(sent, None), times(sent, 2**30)
    # A ring sends it twice but for one part.
    assert large == pytest.approx(1e3 * 2**30 * 2 * 7 / 8 / 450e9, rel=0.05)
    assert small is not None and 0 < small < large
    sent.update_arg(2, "another group")
    assert times(sent, None) is None
