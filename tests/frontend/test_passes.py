"""Each pass does what it says and keeps the numbers, bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import passes
from tensoropt_torch.frontend.passes import Pass, target_name
from tests.frontend.training import (
    Layer,
    assert_bit_equal,
    batch,
    train_graph,
    train_module,
)

Body = Callable[..., Any]


def exported(model: nn.Module, *args: Any) -> fx.GraphModule:
    program = torch.export.export(model, args, strict=False)
    module = program.graph_module
    module.graph.owning_module = module
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta[passes.BUFFER] = node.name in program.graph_signature.inputs_to_buffers
    return module


def normalised(body: Body, *run: Pass) -> tuple[Layer, fx.GraphModule]:
    """The layer and its graph after these passes, checked against the layer."""
    layer = Layer(body)
    module = exported(layer, batch())
    for one in run:
        one(module.graph)
        module.graph.lint()
    check_same(layer, module)
    return layer, module


def check_same(layer: Layer, module: fx.GraphModule) -> None:
    """Outputs, gradients and buffers."""
    ran = copy.deepcopy(layer)
    sources = {
        "p_linear_weight": ran.linear.weight,
        "p_linear_bias": ran.linear.bias,
        "b_offset": ran.offset,
    }
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    values = [sources.get(name, batch()) for name in names]
    assert_bit_equal(train_graph(ran, module, values), train_module(layer, (batch(),)))
    assert torch.equal(ran.offset, layer.offset)


def targets(module: fx.GraphModule) -> list[str]:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return [target_name(node) or str(node.target) for node in calls]


# --- strip_assertions --------------------------------------------------------


def checked(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x.to(torch.float64).to(torch.float32)).sum()


def test_assertions_are_stripped() -> None:
    _, before = normalised(checked)
    assertion = "aten._assert_tensor_metadata.default"
    assert assertion in targets(before)
    _, after = normalised(checked, passes.strip_assertions)
    assert assertion not in targets(after)


def test_guards_are_stripped() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_module("_guards_fn", (x,))
    graph.output((x,))
    passes.strip_assertions(graph)
    assert not graph.find_nodes(op="call_module")


# --- inline_no_grad_regions --------------------------------------------------


def detached_weights(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        weights = hidden.softmax(-1)
        scale = weights.sum()
    return (hidden * weights).sum() / scale


def nested_regions(self: Layer, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        fixed = self.linear(x)
        with torch.enable_grad():
            trained = self.linear(fixed)
        fixed = fixed + trained
    return (fixed * trained).sum()


def view_made_without_grad(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        view = hidden.view(-1)
    return (view * hidden.view(-1)).sum()


NO_GRAD = [detached_weights, nested_regions, view_made_without_grad]


@pytest.mark.parametrize("body", NO_GRAD)
def test_no_grad_region_is_inlined_and_stays_without_gradient(body: Body) -> None:
    region = "wrap_with_set_grad_enabled"
    assert region in targets(normalised(body)[1])
    _, module = normalised(body, passes.inline_no_grad_regions)
    assert region not in targets(module)
    assert "aten.detach.default" in targets(module)


# --- functionalise_in_place --------------------------------------------------


def chained(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    hidden.mul_(2).sub_(x)
    hidden += 1
    hidden.masked_fill_(x > 0, 0.5)
    return (hidden.tanh_() * x).sum()


def in_place_module(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return nn.ReLU(inplace=True)(self.linear(x)).sum()


def overwritten(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    zeros = hidden * 2
    zeros.zero_()
    ones = x.clone()
    ones.fill_(1)
    return (hidden * ones + zeros).sum()


def without_grad(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    fixed = hidden.detach().clone()
    with torch.no_grad():
        fixed.add_(1)
    return (hidden * fixed).sum()


IN_PLACE = [chained, in_place_module, overwritten]


@pytest.mark.parametrize("body", IN_PLACE)
def test_in_place_calls_become_functional(body: Body) -> None:
    _, module = normalised(body, passes.functionalise_in_place)
    names = [name.split(".")[1] for name in targets(module)]
    assert not any(name.endswith("_") for name in names), names


def copied(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    other = torch.empty_like(hidden)
    other.copy_(hidden)
    return (other * x).sum()


def test_copy_into_a_tensor_keeps_the_gradient() -> None:
    normalised(copied, *passes.PASSES)


class ChangeInput(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.relu_()
        return self.linear(x).sum()


class ChangePartOfBuffer(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.offset[0].add_(1)
        return (self.linear(x) + self.offset).sum()


class ChangeParameter(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.5)
        return self.linear(x).sum()


class ChangeColumn(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        hidden[:, 0] = 0
        return hidden.sum()


@pytest.mark.parametrize(
    ("layer", "call", "changed", "line"),
    [
        (ChangeInput, "aten.relu_", "'x'", "x.relu_()"),
        (ChangePartOfBuffer, "aten.add_", "'select'", "self.offset[0].add_(1)"),
        (ChangeParameter, "aten.mul_", "'p_linear_weight'", "weight.mul_(0.5)"),
        (ChangeColumn, "aten.fill_", "'select'", "hidden[:, 0] = 0"),
    ],
)
def test_in_place_change_of_something_else_is_refused(
    layer: type[Layer], call: str, changed: str, line: str
) -> None:
    module = exported(layer(), batch())
    passes.inline_no_grad_regions(module.graph)
    with pytest.raises(TensorOptError) as error:
        passes.functionalise_in_place(module.graph)
    for part in (call, changed, "in place", line, __file__):
        assert part in str(error.value)


def count(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Nobody reads the new number."""
    self.offset.add_(1)
    return self.linear(x).sum()


def changed_and_read(self: Layer, x: torch.Tensor) -> torch.Tensor:
    before = self.linear(x) + self.offset.sum()
    self.offset.mul_(0.5)
    return (before * self.offset).sum()


def average(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        self.offset.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
    self.offset.sub_(1)
    return (hidden * self.offset).sum()


def overwritten_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    self.offset.copy_(hidden[0].detach())
    self.offset.add_(x[1].double())
    return (hidden * self.offset).sum()


BUFFER_CHANGES = [count, changed_and_read, average, overwritten_buffer]


@pytest.mark.parametrize("body", BUFFER_CHANGES)
def test_a_changed_buffer_is_written_once_at_the_end(body: Body) -> None:
    _, module = normalised(body, passes.inline_no_grad_regions, passes.functionalise_in_place)
    names = targets(module)
    in_place = [name for name in names if name.split(".")[1].endswith("_")]
    assert in_place == ["aten.copy_.default"]
    assert names[-1] == "aten.copy_.default"


def view_of_changed_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    view = self.offset.view(2, 2)
    self.offset.add_(1)
    return (self.linear(x) * view.view(-1)).sum()


def test_a_buffer_seen_under_another_name_is_refused() -> None:
    with pytest.raises(TensorOptError, match="seen under another name"):
        normalised(view_of_changed_buffer, *passes.PASSES)


# --- check_running_statistics ------------------------------------------------


def normalise_batch(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(self.linear(x), self.offset, self.offset, training=True).square().sum()


def unused_normalisation(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    F.batch_norm(hidden, self.offset, self.offset, training=True)
    return hidden.sum()


RUNNING = [normalise_batch, unused_normalisation]


def statistics_of_an_input(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    return F.batch_norm(hidden, x[0], x[1], training=True).sum()


def changed_statistics(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.offset.add_(1)
    return F.batch_norm(self.linear(x), self.offset, self.offset, training=True).sum()


@pytest.mark.parametrize("body", [statistics_of_an_input, changed_statistics])
def test_running_statistics_that_are_not_a_buffer_are_refused(body: Body) -> None:
    module = exported(Layer(body), batch())
    passes.functionalise_in_place(module.graph)
    with pytest.raises(TensorOptError, match=r"updates running statistics '(select|add_)'"):
        passes.check_running_statistics(module.graph)


def view_read_after(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    view = hidden.view(-1)
    hidden.relu_()
    return view.sum() + hidden.sum()


def base_read_after(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    view = hidden.view(-1)
    view.relu_()
    return view.sum() + hidden.sum()


@pytest.mark.parametrize("body", [view_read_after, base_read_after])
def test_in_place_change_seen_through_an_alias_is_kept_or_refused(body: Body) -> None:
    """The functional call leaves the alias as it was."""
    try:
        normalised(body, *passes.PASSES)
    except TensorOptError:
        return


def add_wider(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    hidden += self.offset.double()
    return hidden.sum()


def test_in_place_call_keeps_the_dtype() -> None:
    normalised(add_wider, *passes.PASSES)


# --- remove_identities -------------------------------------------------------


def casts(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x.float().to(x.device).type_as(self.offset).to(self.offset))
    return hidden.to(torch.float64).sum()


def copies(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x.to(torch.float32, copy=True)).sum()


def test_casts_that_change_nothing_go() -> None:
    _, module = normalised(casts, passes.strip_assertions, passes.remove_identities)
    names = ["aten.linear.default", "aten.to.dtype", "aten.sum.default"]
    assert targets(module) == names


def test_copies_stay() -> None:
    _, module = normalised(copies, passes.strip_assertions, passes.remove_identities)
    assert "aten.to.dtype" in targets(module)


@pytest.mark.parametrize(
    ("probability", "train", "stays"),
    [(0.0, True, False), (0.5, False, False), (0.5, True, True)],
)
def test_dropout_that_drops_nothing_goes(probability: float, train: bool, stays: bool) -> None:
    def body(self: Layer, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.linear(x), probability, train).sum()

    _, module = normalised(body, passes.remove_identities)
    assert ("aten.dropout.default" in targets(module)) == stays


def test_alias_goes() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    alias = graph.call_function(torch.ops.aten.alias.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.neg.default, (alias,)),))
    passes.remove_identities(graph)
    assert [node.name for node in graph.nodes] == ["x", "neg_default", "output"]


# --- broadcasts_to_expands, views_to_reshapes, eliminate_dead_code -----------


def loss_of_broadcast(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(self.linear(x), x[:1])


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_broadcasts_become_expands_of_what_is_smaller() -> None:
    assert "aten.broadcast_tensors.default" in targets(normalised(loss_of_broadcast)[1])
    _, module = normalised(loss_of_broadcast, passes.broadcasts_to_expands)
    calls = ["linear.default", "slice.Tensor", "expand.default", "mse_loss.default"]
    assert targets(module) == [f"aten.{call}" for call in calls]


def views(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).view(2, 2, 2).sum()


def test_views_become_reshapes() -> None:
    _, module = normalised(views, passes.views_to_reshapes)
    assert "aten.reshape.default" in targets(module)
    assert "aten.view.default" not in targets(module)


def unused(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.linear(x).exp()
    return x.sum()


def test_unused_calls_go_and_inputs_stay() -> None:
    _, module = normalised(unused, passes.eliminate_dead_code)
    assert targets(module) == ["aten.sum.default"]
    assert len(module.graph.find_nodes(op="placeholder")) == 4


# --- all of them -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "body",
    [
        checked,
        *NO_GRAD,
        *IN_PLACE,
        *BUFFER_CHANGES,
        *RUNNING,
        without_grad,
        casts,
        copies,
        loss_of_broadcast,
        views,
        unused,
    ],
)
def test_numbers_stay_the_same_after_every_further_pass(body: Body) -> None:
    for count in range(len(passes.PASSES) + 1):
        normalised(body, *passes.PASSES[:count])
