"""Calls of operators on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.eager_writer import EagerWriter
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.local_calls import (
    CallSite,
    Invocation,
    draws,
    invocation,
    operator_named,
)
from tensoropt_torch.program.passes import RankRecords
from tensoropt_torch.program.records import Call, Input, Output, Value
from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.runtime.recomputation import recomputed_draw
from tensoropt_torch.space.local_form import LocalForm
from tensoropt_torch.space.search_space import make_space
from tests.distributed.models import make

SITE = CallSite(torch.device("cpu"), lambda axes: f"group {axes}", step_seed=3)
DEVICES = 4

# A node, what C++ says of its call on one rank, and shapes, dtypes and whether trained.
Case = tuple[fx.Node, LocalForm, list[_C.LocalOperand]]


def cases(captured: CapturedModel, space: _C.SearchSpace, seed: int) -> Iterator[Case]:
    """The calls of a random strategy."""
    nodes = {number: node for node, number in captured.lowering.nodes.items()}
    strategy = space.random_strategy(seed)
    for row in space.estimates(strategy):
        call = space.local_call(row.node, strategy.config[row.node])
        node = nodes[space.nodes()[row.node].graph_node]
        yield node, LocalForm.of(call), call.operands


def captured_model(name: str) -> tuple[CapturedModel, _C.SearchSpace]:
    case = make(name, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    settings = PlanningTask(captured, load_cluster("cpu")).settings(DEVICES)
    return captured, make_space(captured, settings)


def tensor(like: _C.LocalOperand) -> torch.Tensor:
    return torch.ones(like.shape, dtype=getattr(torch, like.dtype))


def written(
    call: Invocation, values: Sequence[Value], *, runs_again: bool = False
) -> fx.GraphModule:
    """The graph of a call."""
    inputs = [Input(value, f"x{index}") for index, value in enumerate(values)]
    made = Call(Value(), call.function, call.args, call.kwargs, runs_again=runs_again)
    output = Output(made.result, fx.Graph().placeholder("x"))
    return EagerWriter(RankRecords([*inputs, made, output], False, str)).emit()


@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_a_written_call_gives_what_the_call_gives(name: str) -> None:
    captured, space = captured_model(name)
    count = 0
    for node, form, metas in cases(captured, space, seed=0):
        if form.groups:
            continue
        operands = [tensor(meta) for meta in metas]
        number = count if draws(node, form, captured.lowering.rules.targets()) else None
        expected = invocation(node, form, operands, SITE, number)()
        values = [Value() for _ in operands]
        got = written(invocation(node, form, values, SITE, number), values)(*operands)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        count += 1
    assert count > 20


def test_other_targets_get_the_names_of_their_groups_last() -> None:
    captured, space = captured_model("lstm")
    seen = 0
    for seed in range(4):
        for node, form, metas in cases(captured, space, seed):
            if not form.groups:
                continue
            found = invocation(node, form, [tensor(meta) for meta in metas], SITE)
            names = [f"group {axes}" if axes else "" for axes in form.groups]
            assert found.function is operator_named(form.target)
            assert list(found.args[-len(names) :]) == names
            assert set(form.groups) - {0} <= form.axis_sets
            seen += 1
    assert seen > 0


class Dropping(nn.Module):
    """Attention with dropout under a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, 1, 16, 8) -> a scalar."""
        return F.scaled_dot_product_attention(x @ self.weight, x, x, None, 0.5, True).sum()


def test_random_calls_of_other_targets_are_seeded() -> None:
    captured = capture(Dropping(), (torch.ones(1, 1, 16, 8),))
    settings = PlanningTask(captured, load_cluster("cpu")).settings(DEVICES)
    space = make_space(captured, settings)
    known = captured.lowering.rules.targets()
    seen = 0
    for seed in range(20):
        for node, form, metas in cases(captured, space, seed):
            if "attention" not in form.target:
                continue
            assert draws(node, form, known)
            found = invocation(node, form, [tensor(meta) for meta in metas], SITE, 7)
            target, step_seed, (number, _), *arguments = found.args
            assert found.function is call_seeded
            assert target is operator_named(form.target)
            assert (step_seed, number) == (3, 7)
            assert arguments[-1] == f"group {form.groups[0]}"
            values = [Value() for _ in "qkv"]
            graph = written(invocation(node, form, values, SITE, 7), values, runs_again=True)
            (call,) = graph.graph.find_nodes(op="call_function", target=recomputed_draw)
            assert call.args[0] is target
            seen += 1
    assert seen > 0


class Noisy(nn.Module):
    """A random operator with a rule, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 16))

    def forward(self, x: torch.Tensor) -> Any:
        """(16, 16) -> a scalar."""
        kept = nn.functional.dropout(x @ self.weight, 0.5)
        return (kept + torch.ops.aten._standard_gamma.default(x.detach() + 2)).sum()


@pytest.mark.filterwarnings("ignore:.*has no rule")
def test_random_calls_are_known_with_and_without_a_rule() -> None:
    captured = capture(Noisy(), (torch.ones(16, 16),))
    settings = PlanningTask(captured, load_cluster("cpu")).settings(DEVICES)
    space = make_space(captured, settings)
    known = captured.lowering.rules.targets()
    random = {
        str(node.target): str(node.target) in known
        for node, form, _ in cases(captured, space, seed=0)
        if draws(node, form, known)
    }
    assert random == {"aten.dropout.default": True, "aten._standard_gamma.default": False}


@pytest.mark.filterwarnings("ignore:.*has no rule")
def test_equal_streams_draw_equal_numbers() -> None:
    captured = capture(Noisy(), (torch.ones(16, 16),))
    (node,) = captured.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.dropout.default
    )
    form = LocalForm("", [], {}, [], [], [], 1.0, True)
    x = torch.ones(64)
    first, again, other = (invocation(node, form, [x], SITE, number)() for number in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
