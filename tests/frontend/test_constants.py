"""What depends on nothing from outside is computed once, and plain masks go."""

from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from benchmarks.coverage.bits import run_captured
from benchmarks.coverage.zoo import Example
from tensoropt_torch import _C
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import FOLDED, attention, cleanup, composites, constants
from tests.frontend.graphs import Body, check_after_every_pass, exported, normalised, targets
from tests.frontend.training import Layer, batch

aten = torch.ops.aten

# --- fold_constants ----------------------------------------------------------


def table(self: Layer, x: torch.Tensor) -> torch.Tensor:
    angles = torch.arange(4.0, device=x.device)[None] / 4 + torch.ones_like(x)
    return (self.linear(x) * angles.cos()).sum() + (
        self.linear(x) + torch.arange(4, device=x.device)
    ).sum()


def noise(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return (self.linear(x) * (torch.rand(4) + 1)).sum()


def of_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Buffers may be loaded later."""
    return (self.linear(x) * self.offset.cos()).sum()


def folded(module: fx.GraphModule) -> list[torch.Tensor]:
    return [
        node.meta[FOLDED]
        for node in module.graph.find_nodes(op="placeholder")
        if FOLDED in node.meta
    ]


def test_a_chain_becomes_one_constant_without_repeated_rows() -> None:
    _, module = normalised(table, constants.fold_constants, cleanup.eliminate_dead_code)
    (constant,) = folded(module)
    expected = (torch.arange(4, dtype=torch.float32)[None] / 4 + 1).cos()
    assert torch.equal(constant, expected)
    names = targets(module)
    assert "aten.cos.default" not in names
    assert "aten.expand.default" in names
    assert "aten.arange.default" in names, "a single factory call stays"


@pytest.mark.parametrize("body", [noise, of_buffer])
def test_what_may_change_is_not_folded(body: Body) -> None:
    _, module = normalised(body, constants.fold_constants)
    assert not folded(module)


def test_meta_and_real_models_fold_the_same() -> None:
    layer = Layer(table)
    modules = [exported(layer.to(d), batch().to(d)) for d in ("cpu", "meta")]
    for module in modules:
        constants.fold_constants(module.graph)
    assert targets(modules[0]) == targets(modules[1])
    assert torch.equal(*(folded(module)[0] for module in modules))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3),
        torch.ones(2, 3, 4),
        torch.arange(3).expand(2, 3),
        torch.arange(2).view(2, 1, 1).expand(2, 3, 1),
        torch.tensor(1.0),
    ],
)
def test_compact_tensors_have_the_same_elements(tensor: torch.Tensor) -> None:
    small = constants.compact(tensor)
    assert torch.equal(small, tensor)
    stored = constants.stored(small)
    assert torch.equal(stored.expand(tensor.shape), tensor)
    assert stored.numel() <= len(set(tensor.flatten().tolist()))


def test_large_values_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_ELEMENTS", 7)
    _, module = normalised(table, constants.fold_constants)
    assert not any(constant.numel() > 7 for constant in folded(module))
    assert "aten.cos.default" in targets(module)


# --- masks -------------------------------------------------------------------


def attend(self: Layer, x: torch.Tensor, mask: torch.Tensor | None, **options: Any) -> torch.Tensor:
    heads = self.linear(x).view(2, 1, 2, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, mask, **options).square().sum()


def positions() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(2)[:, None], torch.arange(2)[None]


def causal(self: Layer, x: torch.Tensor) -> torch.Tensor:
    query, key = positions()
    return attend(self, x, (key <= query)[None, None].expand(2, 1, 2, 2))


def causal_by_numbers(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return attend(self, x, torch.triu(torch.full((2, 2), float("-inf")), diagonal=1))


def all_true(self: Layer, x: torch.Tensor) -> torch.Tensor:
    query, key = positions()
    return attend(self, x, (key >= 0) & (query >= 0))


def diagonal(self: Layer, x: torch.Tensor) -> torch.Tensor:
    query, key = positions()
    return attend(self, x, key == query)


def of_input(self: Layer, x: torch.Tensor) -> torch.Tensor:
    query, key = positions()
    return attend(self, x, (x.view(2, 1, 2, 2) < 9) & (key >= 0) & (query >= 0))


def attention_call(module: fx.GraphModule) -> fx.Node:
    target = aten.scaled_dot_product_attention.default
    (node,) = module.graph.find_nodes(op="call_function", target=target)
    return node


@pytest.mark.parametrize("body", [causal, causal_by_numbers])
def test_a_causal_mask_becomes_the_flag(body: Body) -> None:
    _, module = normalised(body, attention.drop_plain_masks)
    assert attention_call(module).args[3:] == (None, 0.0, True)


def test_a_mask_that_hides_nothing_goes() -> None:
    _, module = normalised(all_true, attention.drop_plain_masks)
    assert attention_call(module).args[3:] == (None, 0.0, False)


@pytest.mark.parametrize("body", [diagonal, of_input])
def test_other_masks_stay(body: Body) -> None:
    _, module = normalised(body, attention.drop_plain_masks)
    assert isinstance(attention_call(module).args[3], fx.Node)


class Compared(nn.Module):
    """Attention of 5 positions, of which a query sees keys by a comparison of some numbers of
    theirs."""

    def __init__(self, compare: Any, keys_first: bool, numbers: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.compare, self.keys_first, self.numbers = compare, keys_first, numbers

    def mask(self) -> torch.Tensor:
        """[5, 5]."""
        scaled = [(torch.arange(5) * times) // by + more for times, by, more in self.numbers]
        key, query = scaled[0][None], scaled[1][:, None]
        return self.compare(key, query) if self.keys_first else self.compare(query, key)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(2, 5, 4) -> (2, 1, 5, 4)."""
        heads = x[:, None]
        mask = self.mask()[None, None].expand(2, 1, 5, 5)
        return F.scaled_dot_product_attention(heads, heads, heads, mask)


def test_causal_masks_that_are_not_computed_become_the_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "MAX_ELEMENTS", 24)
    random = Random(0)
    found = {True: 0, False: 0}
    for case in range(40):
        compare, keys_first = random.choice(
            [(torch.le, True), (torch.lt, True), (torch.ge, False), (torch.gt, False)]
        )
        near = [(random.choice([-1, 1, 1, 1, 2]), random.choice([1, 1, 1, 2])) for _ in range(2)]
        numbers = [(*pair, random.choice([0, 0, 1])) for pair in near]
        if case % 4 == 0:
            numbers = [(1, 1, 0), (1, 1, int(compare in (torch.lt, torch.gt)))]
        model = Compared(compare, keys_first, numbers)
        module = exported(model, torch.randn(2, 5, 4))
        assert constants.ConstantValues(module.graph).of(attention_call(module).args[3]) is None
        attention.drop_plain_masks(module.graph)
        causal = torch.equal(model.mask(), torch.ones(5, 5, dtype=torch.bool).tril())
        flagged = attention_call(module).args[3:6] == (None, 0.0, True)
        assert flagged == causal, (case, numbers, compare)
        found[causal] += 1
    assert min(found.values()) >= 10, found


def test_true_operands_go() -> None:
    _, module = normalised(of_input, attention.drop_true_operands, cleanup.eliminate_dead_code)
    assert "aten.__and__.Tensor" not in targets(module)


# --- indices_to_views --------------------------------------------------------


def all_indices(self: Layer, x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(2)[:, None, None, None], torch.arange(4)
    return (self.linear(x)[:, None, None] * x[rows, columns]).sum()


def reversed_rows(self: Layer, x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.tensor([1, 0])[:, None], torch.arange(4)
    return (self.linear(x) * x[rows, columns]).sum()


def some_columns(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x)[torch.arange(2)[:, None], torch.arange(3)].sum()


def test_an_index_of_everything_is_a_view() -> None:
    _, module = normalised(all_indices, attention.indices_to_views)
    assert "aten.index.Tensor" not in targets(module)


@pytest.mark.parametrize("body", [reversed_rows, some_columns])
def test_other_indices_stay(body: Body) -> None:
    _, module = normalised(body, attention.indices_to_views)
    assert "aten.index.Tensor" in targets(module)


# --- group_repeated_heads ----------------------------------------------------


def repeated_heads(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    query, key = hidden.view(1, 4, 1, 2), hidden[:1].view(1, 2, 1, 2)
    many = key[:, :, None].expand(1, 2, 2, 1, 2).reshape(1, 4, 1, 2)
    return F.scaled_dot_product_attention(query, many, many).square().sum()


def test_repeated_heads_are_grouped() -> None:
    module = exported(Layer(repeated_heads), batch())
    attention.group_repeated_heads(module.graph)
    node = attention_call(module)
    assert node.kwargs["enable_gqa"] is True
    assert node.args[1].meta["val"].shape == (1, 2, 1, 2)


# --- decompose_composites ----------------------------------------------------


def cell(self: Layer, x: torch.Tensor) -> torch.Tensor:
    weights = (self.linear.weight.repeat(4, 1), self.linear.weight.repeat(4, 1))
    h, c = torch.ops.aten.lstm_cell(x, [self.linear(x), x], *weights)
    return (h * c).sum()


def rolled(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.renorm(self.linear(x), 2, 0, 1.0).sum()


def test_a_composite_without_rule_becomes_its_parts() -> None:
    assert "aten.lstm_cell.default" not in _C.current_rules().targets()
    _, module = normalised(cell, composites.decompose_composites)
    names = targets(module)
    assert "aten.lstm_cell.default" not in names
    assert names.count("aten.linear.default") == 3


def test_an_operator_without_parts_stays() -> None:
    _, module = normalised(rolled, composites.decompose_composites)
    assert "aten.renorm.default" in targets(module)


# --- all passes --------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        *(table, noise, of_buffer, causal, causal_by_numbers, all_true, diagonal, of_input),
        *(all_indices, reversed_rows, some_columns, cell, rolled),
    ],
)
def test_numbers_stay_the_same_after_every_pass(body: Body) -> None:
    check_after_every_pass(body)


class ReturnsConstants(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), torch.tensor(0.0), torch.arange(4) * 2, torch.tensor([1.0, 2.0]).view(2, 1)


def test_constants_that_are_returned_are_new_in_each_call() -> None:
    model, x = ReturnsConstants(), torch.ones(3)
    captured = capture(model, (x,))
    for _ in range(2):
        found = run_captured(captured, Example(model, (x,)))
        for got, expected in zip(found, model(x), strict=True):
            assert torch.equal(got, expected)
            got.add_(1)  # of the program's own
