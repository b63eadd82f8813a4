"""Regions without gradient and with autocast become calls of the graph."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import autocast, cleanup, regions
from tests.frontend.graphs import (
    Body,
    check_after_every_pass,
    exported,
    normalised,
    targets,
)
from tests.frontend.training import (
    Layer,
    assert_bit_equal,
    batch,
    train_captured,
    train_module,
)

# --- without gradient --------------------------------------------------------


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


def cast_to_what_it_is(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Calls that give the very tensor they are given, in a region that computes something."""
    hidden = self.linear(x)
    with torch.no_grad():
        order = hidden.to(hidden.dtype).float().contiguous().argsort(-1)
        dropped = F.dropout(hidden, 0.5, training=False).sum()
    return (hidden.gather(-1, order) * hidden).sum() / dropped


def given_back(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        same = hidden.to(torch.float32)
        copied = hidden.to(torch.float32, copy=True)
        doubled = (same * 2).to(torch.float32)
    return (same * copied * doubled).sum()


def buffer_written_with_a_cast(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        self.get_buffer("offset").copy_(hidden.to(torch.float32)[0])
    return (hidden * self.get_buffer("offset")).sum()


OWN_TENSORS = [cast_to_what_it_is, given_back, buffer_written_with_a_cast]


@pytest.mark.parametrize("body", OWN_TENSORS)
def test_tensors_from_outside_of_a_region_keep_their_gradient(body: Body) -> None:
    module = Layer(body)
    expected = train_module(copy.deepcopy(module), (batch(),))
    captured = capture(module, (batch(),))
    assert_bit_equal(train_captured(module, captured, (batch(),)), expected)


NO_GRAD = [detached_weights, nested_regions, view_made_without_grad]


@pytest.mark.parametrize("body", NO_GRAD)
def test_no_grad_region_is_inlined_and_stays_without_gradient(body: Body) -> None:
    region = "wrap_with_set_grad_enabled"
    assert region in targets(normalised(body)[1])
    _, module = normalised(body, regions.inline_regions)
    assert region not in targets(module)
    assert "aten.detach.default" in targets(module)


@pytest.mark.parametrize("body", NO_GRAD)
def test_numbers_stay_the_same_after_every_pass(body: Body) -> None:
    check_after_every_pass(body)


# --- autocast ----------------------------------------------------------------


def low_precision(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Products in bfloat16, the sum with float32 promoted, the loss in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = F.gelu(self.linear(x)) + x
        scores = hidden @ hidden.T
        return F.mse_loss(scores.softmax(-1) @ x, x) + torch.cat([hidden, x]).mean()


def one_weight_twice(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Autocast casts it once, so its gradients are added in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.linear(self.linear(x)).float().square().sum()


def disabled_inside(self: Layer, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = self.linear(x)
        with torch.autocast("cpu", enabled=False):
            exact = self.linear(hidden.float())
        return (self.linear(exact) * hidden).sum()


def region_in_low_precision_module(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Operators that autocast keeps in float32 get bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = self.linear(x)
        return F.mse_loss(hidden, x.bfloat16()) + F.l1_loss(hidden, x.bfloat16())


def made_of_products(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Autocast knows products, which einsum and this sum of squares are made of."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.einsum("ij,kj->ik", x, x) + torch.tensordot(x, x, dims=([1], [1]))
        return hidden.float().sum() + torch.einsum("ij,j->ij", x, x[0]).square().sum()


AUTOCAST = [
    low_precision,
    made_of_products,
    one_weight_twice,
    disabled_inside,
    region_in_low_precision_module,
]


@pytest.mark.parametrize("body", AUTOCAST)
def test_autocast_becomes_casts_with_the_same_bits(body: Body) -> None:
    _, module = normalised(body, regions.inline_regions)
    assert "wrap_with_autocast" not in targets(module)
    assert "aten.to.dtype" in targets(module)


def test_values_say_the_dtypes_that_are_computed() -> None:
    _, module = normalised(low_precision, regions.inline_regions)
    products = module.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    assert [node.meta["val"].dtype for node in products] == [torch.bfloat16]
    assert {used.meta["val"].dtype for used in products[0].all_input_nodes} == {torch.bfloat16}


def cross_entropy(self: Layer, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = self.linear(x)
        return F.cross_entropy(hidden, torch.arange(len(x)) % hidden.shape[1])


def test_a_loss_is_computed_in_float32() -> None:
    """Of low scores, where PyTorch on CPUs rounds the logarithms."""
    _, module = normalised(cross_entropy, regions.inline_regions)
    (loss,) = module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.cross_entropy_loss.default
    )
    assert loss.args[0].meta["val"].dtype == loss.meta["val"].dtype == torch.float32


def normalised_products(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(self.linear(x), x.shape[1:]).sum()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_autocast_casts_depends_on_the_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, the casts are those that are made where there is one."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    _, module = normalised(normalised_products)
    region = autocast.AutocastRegion(device, torch.float16, enabled=True)
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
        region.call(module.graph, node)
    (norm,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.layer_norm.default)
    region.call(module.graph, norm)
    assert norm.meta["val"].dtype == (torch.float32 if device == "cuda" else torch.float16)


def test_parameters_are_cast_once_in_a_region() -> None:
    _, module = normalised(one_weight_twice, regions.inline_regions)
    first, second = module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.linear.default
    )
    assert first.args[1] is second.args[1]


def test_autocast_on_the_meta_device_gives_the_same_calls() -> None:
    """There it does nothing by itself."""
    layer = Layer(low_precision)
    real = exported(layer, batch())
    meta = exported(layer.to("meta"), batch().to("meta"))
    for module in (real, meta):
        regions.inline_regions(module.graph)
        cleanup.strip_assertions(module.graph)
    assert targets(real) == targets(meta)
    dtypes = [
        [
            value.dtype
            for node in module.graph.nodes
            for value in pytree.tree_leaves(node.meta.get("val", ()))
        ]
        for module in (real, meta)
    ]
    assert dtypes[0] == dtypes[1]


@pytest.mark.parametrize("body", AUTOCAST)
def test_autocast_stays_the_same_after_every_pass(body: Body) -> None:
    check_after_every_pass(body)
