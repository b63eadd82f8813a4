"""Each pass does what it says and keeps the numbers, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from tensoropt_torch.frontend.passes import cleanup, forms
from tests.frontend.graphs import (
    Body,
    check_after_every_pass,
    normalised,
    targets,
)
from tests.frontend.training import Layer

# --- strip_assertions --------------------------------------------------------


def checked(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x.to(torch.float64).to(torch.float32)).sum()


def test_assertions_are_stripped() -> None:
    _, before = normalised(checked)
    assertion = "aten._assert_tensor_metadata.default"
    assert assertion in targets(before)
    _, after = normalised(checked, cleanup.strip_assertions)
    assert assertion not in targets(after)


def test_guards_are_stripped() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_module("_guards_fn", (x,))
    graph.output((x,))
    cleanup.strip_assertions(graph)
    assert not graph.find_nodes(op="call_module")


# --- remove_identities -------------------------------------------------------


def casts(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x.float().to(x.device).type_as(self.offset).to(self.offset))
    return hidden.to(torch.float64).sum()


def copies(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x.to(torch.float32, copy=True)).sum()


def test_casts_that_change_nothing_go() -> None:
    _, module = normalised(casts, cleanup.strip_assertions, cleanup.remove_identities)
    names = ["aten.linear.default", "aten.to.dtype", "aten.sum.default"]
    assert targets(module) == names


def test_copies_stay() -> None:
    _, module = normalised(copies, cleanup.strip_assertions, cleanup.remove_identities)
    assert "aten.to.dtype" in targets(module)


@pytest.mark.parametrize(
    ("probability", "train", "stays"),
    [(0.0, True, False), (0.5, False, False), (0.5, True, True)],
)
def test_dropout_that_drops_nothing_goes(probability: float, train: bool, stays: bool) -> None:
    def body(self: Layer, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.linear(x), probability, train).sum()

    _, module = normalised(body, cleanup.drop_idle_dropouts)
    assert ("aten.dropout.default" in targets(module)) == stays


def empty_caches(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    cached = torch.cat([torch.zeros(0), hidden], dim=-2)
    return torch.cat([hidden.sin(), torch.zeros(0), cached], dim=-2).square().sum()


def test_empty_parts_go() -> None:
    _, module = normalised(empty_caches, cleanup.drop_empty_parts)
    assert targets(module).count("aten.cat.default") == 1
    (joined,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert len(joined.args[0]) == 2


def test_alias_goes() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    alias = graph.call_function(torch.ops.aten.alias.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.neg.default, (alias,)),))
    cleanup.remove_identities(graph)
    assert [node.name for node in graph.nodes] == ["x", "neg_default", "output"]


# --- broadcasts_to_expands, views_to_reshapes, eliminate_dead_code -----------


def loss_of_broadcast(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(self.linear(x), x[:1])


@pytest.mark.filterwarnings("ignore:Using a target size")
def as_others(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    ones = torch.ones(4, dtype=torch.int64)
    return (hidden * ones.type_as(hidden) + torch.ops.aten.to.other(ones, hidden)).sum()


def test_casts_need_no_example() -> None:
    _, module = normalised(as_others, forms.casts_without_example)
    assert {"aten.type_as.default", "aten.to.other"}.isdisjoint(targets(module))
    casts = module.graph.find_nodes(op="call_function", target=torch.ops.aten.to.dtype)
    assert [len(cast.all_input_nodes) for cast in casts] == [1, 1]


def test_broadcasts_become_expands_of_what_is_smaller() -> None:
    assert "aten.broadcast_tensors.default" in targets(normalised(loss_of_broadcast)[1])
    _, module = normalised(loss_of_broadcast, forms.broadcasts_to_expands)
    calls = ["linear.default", "slice.Tensor", "expand.default", "mse_loss.default"]
    assert targets(module) == [f"aten.{call}" for call in calls]


def views(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).view(2, 2, 2).sum()


def test_views_become_reshapes() -> None:
    _, module = normalised(views, forms.views_to_reshapes)
    assert "aten.reshape.default" in targets(module)
    assert "aten.view.default" not in targets(module)


def unused(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.linear(x).exp()
    return x.sum()


def test_unused_calls_go_and_inputs_stay() -> None:
    _, module = normalised(unused, cleanup.eliminate_dead_code)
    assert targets(module) == ["aten.sum.default"]
    assert len(module.graph.find_nodes(op="placeholder")) == 4


# --- all of them -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "body", [checked, casts, copies, loss_of_broadcast, as_others, views, unused]
)
def test_numbers_stay_the_same_after_every_pass(body: Body) -> None:
    check_after_every_pass(body)
