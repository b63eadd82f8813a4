"""Compiled parallel modules compute what uncompiled ones do, and what one process does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters

import tensoropt_torch as to
from tensoropt_torch import api
from tensoropt_torch.emit import compilation
from tensoropt_torch.emit.compilation import compiled_parts
from tensoropt_torch.frontend import capture
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import run_ranks
from tests.distributed.parity import TOLERANCE, Job, differences, train, whole

HERE = "tests.distributed.emit.test_compilation"
CHECK = "tests.distributed.parity:check"
ROUNDING = 1e-6  # of float32, in gradients that are nearly zero
TRACED = "aot_eager"  # what Inductor gets is run as it is

# (processes, what is checked). Those that are not slow stand for the others.
WITHOUT_INDUCTOR = [
    (2, Job("gpt", torch.float64, points=2, randoms=2, compile=TRACED)),
    (2, Job("resnet", torch.float64, points=2, randoms=1, compile=TRACED)),
    (2, Job("mixture", torch.float64, points=2, randoms=2, compile=TRACED)),
    (2, Job("resnet", torch.float64, points=2, randoms=1, compile=TRACED, batch_norm_groups=4)),
    (2, Job("gpt", torch.float64, points=2, randoms=4, compile=TRACED, recompute=True)),
    (2, Job("gpt", torch.float64, points=2, randoms=2, compile=TRACED, inputs="sharded")),
    (3, Job("odd_257_tied", torch.float64, points=2, randoms=3, compile=TRACED)),
    (2, Job("mixed", torch.float64, points=2, randoms=2, compile=TRACED, tolerance=1e-4)),
    (2, Job("gpt", torch.float64, points=2, randoms=2, compile=TRACED, micro_batches=2)),
]
ZOO = (
    "gpt",
    "gpt_tied",
    "llama",
    "odd_257",
    "odd_1009_tied",
    "lstm",
    "gru",
    "transformer",
    "mlp",
    "vgg",
    "resnet",
    "mixture",
    "fused",
    "fused_otherwise",
    "grouped",
    "recommender",
    "experts",
    "sorted_experts",
    "routed_experts",
)
WITH_INDUCTOR = [(2, Job(model, torch.float64, points=2, randoms=1, compile=True)) for model in ZOO]


def in_words(value: int | Job) -> str:
    if isinstance(value, int):
        return f"{value} ranks"
    others = {"recompute": value.recompute, "micro": value.micro_batches > 1}
    return " ".join([value.model, value.inputs, *(name for name, on in others.items() if on)])


def assert_equal_to_one_process(world_size: int, job: Job) -> None:
    for count, wrong in run_ranks(world_size, CHECK, job, 580):
        assert count > 1
        assert not wrong, f"{len(wrong)} of {count} strategies differ:\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize(("world_size", "job"), WITHOUT_INDUCTOR[:1], ids=in_words)
def test_parts_that_are_traced(world_size: int, job: Job) -> None:
    assert_equal_to_one_process(world_size, job)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "job"), WITHOUT_INDUCTOR[1:], ids=in_words)
def test_other_parts_that_are_traced(world_size: int, job: Job) -> None:
    assert_equal_to_one_process(world_size, job)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "job"), WITH_INDUCTOR, ids=in_words)
def test_parts_that_are_compiled(world_size: int, job: Job) -> None:
    assert_equal_to_one_process(world_size, job)


class Block(nn.Module):
    """Half of a layer of a transformer, which drops; targets are given with the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return (x + self.drop(self.down(hidden)) - y).square().mean()


def block(rows: int = 8) -> tuple[Block, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = Block()
    generator = torch.Generator().manual_seed(rows)
    x, y = torch.randn(2, rows, 16, generator=generator)
    return model, (x, y)


def planned(model: nn.Module, inputs: Any) -> Plan:
    return api.find_strategy(model, inputs, measure=False)


def compiled_and_not(_: object) -> dict[str, Any]:
    """Of a model that drops, with Inductor: what was wrong, and what the compiler did."""
    model, inputs = block()
    plan = planned(model, inputs)
    modules = []
    for compile in (False, True):
        torch.manual_seed(3)  # of what the modules drop
        modules.append(api.parallelize(copy.deepcopy(model), plan, compile=compile))
    plain, fast = modules
    wrong: list[str] = []
    counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        expected, got = (train(m, lambda m=m: m(*inputs)) for m in modules)
        graphs = counters["stats"]["unique_graphs"]
        wrong += differences(got, expected, TOLERANCE[torch.float32], ROUNDING)
        one = copy.deepcopy(model)
        one.load_state_dict({name: whole(p) for name, p in plain.state_dict().items()})
        fast.load_state_dict(one.state_dict())
        for rows in (8, 4):  # evaluation, also of another batch
            _, other = block(rows)
            for module in (one, fast):
                module.eval()
            with torch.no_grad():
                a, b = (float(module(*other)) for module in (fast, one))
            if not abs(a - b) <= 1e-5 * abs(b):
                wrong.append(f"evaluation of {rows} rows: {a} instead of {b}")
    return {
        "wrong": wrong,
        "graphs": graphs,
        "whole": programs_of(fast).base.is_compiled_whole,
        "breaks": dict(counters["graph_break"]),
        "text": repr(fast),
        "compiled": repr(plain).count("compiled"),
    }


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_inductor_drops_the_same_and_compiles_once(world_size: int) -> None:
    for found in run_ranks(world_size, f"{HERE}:compiled_and_not", None, 500):
        assert not found["wrong"]
        assert found["whole"] and found["graphs"] == 0  # of Dynamo, which sees no step
        assert not found["breaks"]
        assert "compiled: " in found["text"] and not found["compiled"]


def drawn(_: object) -> list[bool]:
    """Whether dropout in a compiled part is bit for bit what it is outside of one."""
    from tensoropt_torch.runtime.random import call_seeded, seed_tensor, seeded_dropout

    x = torch.randn(64, 33).t()  # no contiguous one
    found = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for p in (0.0, 0.1, 0.5, 1.0):
            value = x.to(dtype)
            dropout = torch.ops.aten.dropout.default
            expected = call_seeded(dropout, 2**61 + 5, (3, 1), value, p, True)
            got = seeded_dropout(value, p, True, seed_tensor(2**61 + 5), (3, 1))
            found.append(torch.equal(got, expected))
    return found


def test_dropout_is_the_same() -> None:
    (found,) = run_ranks(1, f"{HERE}:drawn")
    assert all(found)


def accumulated(_: object) -> list[str]:
    """Gradients of two passes, the first without synchronisation, of modules with and without
    compiled parts."""
    model, inputs = block()
    model.drop.p = 0.0
    plan = planned(model, inputs)
    wrong = []
    gradients = []
    for compile in (False, TRACED):
        module = api.parallelize(model, plan, compile=compile)
        with module.no_sync():
            module(*inputs).backward()
        module(*inputs).backward()
        gradients.append({name: whole(p.grad) for name, p in module.named_parameters()})
    for name, expected in gradients[0].items():
        if not torch.allclose(gradients[1][name], expected, rtol=1e-5, atol=1e-7):
            wrong.append(name)
    return wrong


def test_gradients_are_added_up() -> None:
    assert run_ranks(2, f"{HERE}:accumulated") == [[], []]


def cut_by_gradients(_: object) -> list[tuple[int, list[str]]]:
    """How many parts there are when they end with so many bytes of gradients, and what differs
    from a module that is not compiled."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)])
    x = torch.randn(8, 16)
    task = PlanningTask(capture(model, (x,)), to.load_cluster("cpu"))
    (baseline,) = find_baselines(task, 2, ("data parallel",))
    plan = baseline.plan(0)
    plain = api.parallelize(model, plan)
    expected = train(plain, lambda: plain(x).sum())
    parts = []
    for num_bytes in (1 << 30, 2 * 16 * 17 * 4, 1):
        compilation.GRADIENT_BYTES = num_bytes
        module = api.parallelize(model, plan, compile=TRACED)
        programs_of(module).base.whole = None
        found = train(module, lambda m=module: m(x).sum())
        wrong = list(differences(found, expected, TOLERANCE[torch.float32], ROUNDING))
        parts.append((len(compiled_parts(module.rank_graph)), wrong))
    return parts


def test_parts_end_with_many_bytes_of_gradients() -> None:
    for found in run_ranks(2, f"{HERE}:cut_by_gradients", None, 300):
        # The first layer and the last activation are one operator each, which stays as it is.
        assert found == [(1, []), (2, []), (3, [])]


def fails_on_rank_1(graph: Any, _: Any) -> Any:
    if dist.get_rank() == 1:
        raise RuntimeError("no registers left")
    return graph.forward


def failing(_: object) -> list[str]:
    """What every rank is told if the compiler of one fails, and whether it goes on."""
    torch._dynamo.register_backend(fails_on_rank_1, name="fails_on_rank_1")
    model, inputs = block()
    plan = planned(model, inputs)
    module = api.parallelize(model, plan, compile="fails_on_rank_1")
    told = []
    try:
        module(*inputs)
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")
    other = api.parallelize(model, plan)
    other(*inputs).backward()
    return told


def test_a_compiler_that_fails_on_one_rank_is_an_error_on_all() -> None:
    first, second = run_ranks(2, f"{HERE}:failing")
    assert "no registers left" in second[0]
    assert first[0].startswith("FailedRankError: rank 1: ") and "no registers left" in first[0]


def refused(arguments: dict[str, Any]) -> str:
    model, inputs = block()
    plan = planned(model, inputs)
    with pytest.raises(to.TensorOptError) as error:
        api.parallelize(model, plan, **arguments)
    return str(error.value)


def test_what_cannot_be_compiled_is_refused() -> None:
    (text,) = run_ranks(1, f"{HERE}:refused", {"compile": "inductr"})
    assert "compile='inductr' is no backend or mode" in text and "inductor" in text
    (text,) = run_ranks(1, f"{HERE}:refused", {"compile": True, "one_process_random": True})
    assert "do not go together" in text


def wrapped(_: object) -> list[float]:
    """Losses of a parallel module, of a compiled one, and of both in ``torch.compile``."""
    model, inputs = block()
    model.drop.p = 0.0
    plan = planned(model, inputs)
    modules = [
        api.parallelize(copy.deepcopy(model), plan, compile=compile) for compile in (False, TRACED)
    ]
    wrappers = [torch.compile(module, backend=TRACED) for module in modules]
    return [float(module(*inputs).detach()) for module in (*modules, *wrappers)]


def test_compile_around_a_parallel_module_does_no_harm() -> None:
    for first, *others in run_ranks(2, f"{HERE}:wrapped", None, 300):
        assert others == pytest.approx([first] * 3, rel=1e-6)
