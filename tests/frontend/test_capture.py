"""What capture gives for a module, and what it says when it cannot."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, capture
from tests.frontend.training import (
    Layer,
    assert_bit_equal,
    batch,
    scaled,
    train_captured,
    train_module,
)


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8, bias=False)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    """Tied embedding and head, dropout, a causal block, the loss inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(10, 8)
        self.block = Block()
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.block(self.embedding(tokens)))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(10, (2, 6), generator=torch.Generator().manual_seed(seed))


def targets(captured: CapturedModel) -> list[str]:
    graph = captured.graph_module.graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def sources(captured: CapturedModel) -> list[tuple[str, tuple[str, ...]]]:
    return [(source.kind, source.names) for source in captured.sources]


# --- Same numbers ------------------------------------------------------------


def test_language_model_trains_with_the_same_bits() -> None:
    model, args = LanguageModel(), (tokens(0), tokens(1))
    captured = capture(model, args)
    assert_bit_equal(train_captured(model, captured, args), train_module(model, args))


def test_captured_graph_is_a_function_of_its_inputs() -> None:
    """Not of the example it was captured with."""
    model = LanguageModel()
    captured = capture(model, (tokens(0), tokens(1)))
    other = (tokens(2), tokens(3))
    assert_bit_equal(train_captured(model, captured, other), train_module(model, other))


def several_outputs(self: Layer, x: torch.Tensor) -> dict[str, Any]:
    hidden = self.linear(x)
    return {"hidden": hidden, "rest": (x, [hidden.sum(), None, hidden])}


def constants_inside(self: Layer, x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return (self.linear(x) * table + torch.arange(4) + self.offset).sum()


@pytest.mark.parametrize("body", [several_outputs, constants_inside])
def test_module_and_capture_give_the_same_bits(body: Callable[..., Any]) -> None:
    layer, args = Layer(body), (batch(),)
    captured = capture(layer, args)
    assert_bit_equal(train_captured(layer, captured, args), train_module(layer, args))


def test_loss_function_outside_is_captured_after_the_module() -> None:
    model, x, y = nn.Linear(4, 3), batch(), torch.randn(2, 3)
    captured = capture(model, (x,), loss_fn=nn.MSELoss(), targets=(y,))
    assert targets(captured) == ["aten.linear.default", "aten.mse_loss.default"]
    (loss,), gradients = train_captured(model, captured, (x, y))
    model.zero_grad()
    expected = nn.MSELoss()(model(x), y)
    expected.backward()
    assert torch.equal(loss, expected)
    assert model.weight.grad is not None
    assert torch.equal(gradients["weight"], model.weight.grad)


# --- Autocast and gradients --------------------------------------------------


def fixed_under_autocast(self: Layer, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            fixed = self.linear(x)
        return (self.linear(x) * fixed).sum()


def test_no_gradient_flows_where_the_module_lets_none_under_autocast() -> None:
    """Export forgets it."""
    layer, args = Layer(fixed_under_autocast), (batch(),)
    captured = capture(layer, args)
    assert_bit_equal(train_captured(layer, captured, args), train_module(layer, args))


# --- Containers --------------------------------------------------------------


@dataclass
class Output:
    """As ``ModelOutput`` of transformers."""

    hidden: torch.Tensor | None = None
    loss: torch.Tensor | None = None


@dataclass
class Inputs:
    """A batch."""

    x: torch.Tensor
    weights: torch.Tensor


def losses(self: Layer, batch: Inputs, more: dict[str, Any]) -> Output:
    hidden = self.linear(batch.x) * batch.weights + more["shift"][0]
    return Output(hidden=hidden, loss=hidden.square().mean())


def containers(seed: int) -> tuple[Inputs, dict[str, Any]]:
    return Inputs(batch(seed), batch(seed + 1)), {"shift": [batch(seed + 2)], "name": "x"}


def test_of_an_output_with_a_loss_that_is_kept() -> None:
    layer = Layer(losses)
    captured = capture(layer, containers(0))
    outputs, gradients = train_captured(layer, captured, containers(3))
    expected = layer(*containers(3))
    kept = pytree.tree_unflatten(outputs, captured.out_spec)
    assert isinstance(kept, Output)
    assert kept.hidden is None
    assert torch.equal(kept.loss, expected.loss)
    layer.zero_grad()
    expected.loss.backward()
    assert torch.equal(gradients["linear.weight"], layer.linear.weight.grad)


def test_dict_with_a_loss_keeps_its_key() -> None:
    captured = capture(Layer(lambda self, x: {"loss": self.linear(x).mean(), "x": x}), (batch(),))
    assert captured.out_spec.context == ["loss"]


def no_loss(self: Layer, x: torch.Tensor) -> Output:
    return Output(hidden=self.linear(x))


def loss_of_each(self: Layer, x: torch.Tensor) -> Output:
    return Output(loss=self.linear(x).mean(1))


@pytest.mark.parametrize(
    ("body", "found"), [(no_loss, "is None"), (loss_of_each, r"is torch.float32 \(2,\)")]
)
def test_an_output_without_a_scalar_loss_is_refused(body: Callable[..., Any], found: str) -> None:
    with pytest.raises(TensorOptError, match=found) as error:
        capture(Layer(body), (batch(),))
    assert "loss_fn=" in str(error.value)


def test_a_loss_function_without_a_scalar_is_refused() -> None:
    with pytest.raises(TensorOptError, match="what loss_fn returns for Layer"):
        capture(Layer(no_loss), (batch(),), loss_fn=lambda output: output.hidden)


# --- What was captured already -----------------------------------------------


def test_exported_programs_and_graph_modules_give_the_graph_of_the_module() -> None:
    model, args = LanguageModel(), (tokens(0), tokens(1))
    program = torch.export.export(model, args, strict=False)
    expected = capture(model, args)
    again = [capture(program), capture(program, args), capture(program.module(), args)]
    for captured in again:
        assert targets(captured) == targets(expected)
        assert {s.names for s in captured.parameters} == {s.names for s in expected.parameters}
        assert_bit_equal(train_captured(model, captured, args), train_module(model, args))


# --- Lowering ----------------------------------------------------------------


def indexed(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x)[:, torch.tensor([1, 1])].sum()


def test_rules_are_told_which_dims_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    add_op = _C.Graph.add_op

    def spy(graph: Any, name: str, target: str, arguments: Any, *rest: Any, **more: Any) -> Any:
        given.append((target, dict(arguments)))
        return add_op(graph, name, target, arguments, *rest, **more)

    monkeypatch.setattr(_C.Graph, "add_op", spy)
    capture(Layer(indexed), (batch(),))
    (arguments,) = [found for target, found in given if target == "aten.index.Tensor"]
    hole, index = arguments["indices"]
    assert hole is None
    assert isinstance(index, _C.Ref)


# --- Sources -----------------------------------------------------------------


def test_sources_have_the_names_of_the_module() -> None:
    captured = capture(Layer(constants_inside), (batch(),))
    kinds = dict.fromkeys(kind for kind, _ in sources(captured))
    assert list(kinds) == ["parameter", "constant", "input"]
    named = [names for kind, names in sources(captured) if kind == "parameter"]
    assert named == [("linear.weight",), ("linear.bias",)]
    assert torch.equal(captured.constants["offset"], torch.ones(4))
    assert [source.names for source in captured.inputs] == [("args_0",)]


def test_tied_weights_are_one_source_with_two_names() -> None:
    captured = capture(LanguageModel(), (tokens(), tokens()))
    names = [source.names for source in captured.parameters]
    assert ("embedding.weight", "head.weight") in names
    assert sum("head.weight" in tied for tied in names) == 1


def test_keyword_inputs_keep_their_names() -> None:
    layer, kwargs = Layer(scaled), {"scale": torch.tensor(3.0)}
    captured = capture(layer, (batch(),), kwargs)
    assert [source.names for source in captured.inputs] == [("args_0",), ("scale",)]
    actual = train_captured(layer, captured, (batch(),), kwargs)
    assert_bit_equal(actual, train_module(layer, (batch(),), kwargs))


def test_inputs_that_are_not_tensors_are_fixed() -> None:
    layer, kwargs = Layer(scaled), {"scale": 3.0, "mode": "sum"}
    captured = capture(layer, (batch(),), kwargs)
    literals = [names for kind, names in sources(captured) if kind == "literal"]
    assert literals == [("mode",), ("scale",)]
    assert targets(captured)[-1] == "aten.sum.default"
    actual = train_captured(layer, captured, (batch(),), kwargs)
    assert_bit_equal(actual, train_module(layer, (batch(),), kwargs))


def test_frozen_parameters_are_parameters() -> None:
    layer = Layer(scaled)
    layer.linear.bias.requires_grad_(False)
    captured = capture(layer, (batch(),))
    assert [source.names[0] for source in captured.parameters] == [
        "linear.weight",
        "linear.bias",
    ]
    actual = train_captured(layer, captured, (batch(),))
    assert actual[1].keys() == {"linear.weight"}


# --- Buffers that change -----------------------------------------------------


class Statistics(nn.Module):
    """Batch normalisation, and a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return F.relu(self.norm(self.linear(x)), inplace=True).sum() / self.calls


def new_tensor(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.offset = self.offset * 0.5
    hidden = self.linear(x) * self.offset
    self.offset = self.offset + hidden.mean(0).detach()
    return hidden.sum()


def changed_then_new(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.offset.add_(1)
    self.offset = self.offset * 0.5
    self.offset += x[0].double()
    return (self.linear(x) * self.offset).sum()


@pytest.mark.parametrize("body", [None, new_tensor, changed_then_new])
def test_buffers_change_as_in_the_module(body: Callable[..., Any] | None) -> None:
    torch.manual_seed(3)
    model = Layer(body) if body else Statistics()
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}
    x, ran = torch.randn(8, 4), copy.deepcopy(model)
    captured = capture(ran, (x,))
    for _ in range(2):
        assert_bit_equal(train_captured(ran, captured, (x,)), train_module(model, (x,)))
    for name, buffer in model.named_buffers():
        assert not torch.equal(buffer, start[name]), name
        assert torch.equal(buffer, dict(ran.named_buffers())[name]), name


# --- Example inputs that are one tensor --------------------------------------


def product(self: Layer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (self.linear(x) * y).sum()


def product_of_dict(self: Layer, both: dict[str, torch.Tensor]) -> torch.Tensor:
    return product(self, both["x"], both["y"])


@pytest.mark.parametrize(
    ("body", "arrange"),
    [
        (product, lambda x, y: ((x, y), {})),
        (product, lambda x, y: ((x,), {"y": y})),
        (product, lambda x, y: ((), {"x": x, "y": y})),
        (product_of_dict, lambda x, y: (({"x": x, "y": y},), {})),
    ],
    ids=["positional", "positional and keyword", "keyword", "nested"],
)
def test_example_inputs_may_be_one_tensor(
    body: Callable[..., Any], arrange: Callable[..., Any]
) -> None:
    """They are different inputs all the same."""
    layer, same = Layer(body), batch()
    captured = capture(layer, *arrange(same, same))
    args, kwargs = arrange(batch(1), batch(2))
    actual = train_captured(layer, captured, args, kwargs)
    assert_bit_equal(actual, train_module(layer, args, kwargs))


def test_example_inputs_may_share_memory() -> None:
    layer, both = Layer(product), batch()
    captured = capture(layer, (both, both.view(2, 4)))
    args = (batch(1), batch(2))
    assert_bit_equal(train_captured(layer, captured, args), train_module(layer, args))


def test_example_input_may_be_a_tensor_of_the_module() -> None:
    layer = Layer(product)
    captured = capture(layer, (layer.linear.weight, layer.offset))
    assert len(captured.inputs) == 2
    args = (torch.randn(4, 4), batch()[0])
    assert_bit_equal(train_captured(layer, captured, args), train_module(layer, args))


def test_target_may_be_the_input() -> None:
    """As for an autoencoder."""
    x = batch()
    captured = capture(nn.Linear(4, 4), (x,), loss_fn=nn.MSELoss(), targets=(x,))
    assert len(captured.inputs) == 2
    assert all(source.placeholder.users for source in captured.inputs)


# --- Meta parameters ---------------------------------------------------------


def test_meta_parameters_and_inputs_give_the_same_graph() -> None:
    real = capture(LanguageModel(), (tokens(), tokens()))
    with torch.device("meta"):
        model = LanguageModel()
        example = torch.empty(2, 6, dtype=torch.int64)
    meta = capture(model, (example, example))
    assert meta.fingerprint == real.fingerprint
    assert sources(meta) == sources(real)
    assert meta.graph.num_nodes() == real.graph.num_nodes()
