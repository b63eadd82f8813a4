"""A graph and its module are told apart by what they compute, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.coverage.zoo import MODELS, make
from tensoropt_torch.frontend import CallContext, capture
from tensoropt_torch.frontend.call_context import current_autocast
from tensoropt_torch.frontend.comparison import NoCollectives, differences
from tensoropt_torch.frontend.rounding import nudged, relative_error, tolerance_of
from tensoropt_torch.frontend.undoing import StateBefore
from tests.distributed.faulty import EDITS, LOST, batch, broken, made
from tests.frontend.training import Layer

FAST = ("mlp", "gru", "nanogpt_autocast", "moe_scatter", "dlrm", "llama", "t5", "resnet18")


def test_a_right_capture_has_no_differences() -> None:
    model = made()
    assert differences(model, capture(model, batch()), batch()) == []


@pytest.mark.parametrize("name", EDITS)
def test_a_fault_of_a_pass_is_a_difference(name: str) -> None:
    edit, wrong = EDITS[name]
    model = made()
    with broken(edit):
        captured = capture(model, batch())
    assert wrong in [difference.what for difference in differences(model, captured, batch())]


@pytest.mark.parametrize("name", LOST)
def test_what_capture_does_not_see_is_a_difference(name: str) -> None:
    model = made(lost=name)
    found = differences(model, capture(model, batch()), batch())
    assert LOST[name] in [difference.what for difference in found]
    assert "of its own scale" in str(found[0])


@pytest.mark.filterwarnings("ignore:operator '")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in MODELS],
)
def test_common_models_have_no_differences(name: str) -> None:
    example = make(name)
    captured = capture(example.model, example.args, **example.keywords)
    inputs = (*example.args, *example.targets)
    assert differences(example.model, captured, inputs, example.kwargs) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_has_no_differences_and_hides_none(dtype: torch.dtype) -> None:
    model = made()
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        context = CallContext(autocast=current_autocast())
        right = capture(model, batch(), context=context)
        with broken(EDITS["dropped dropout"][0]):
            wrong = capture(model, batch(), context=context)
        assert differences(model, right, batch()) == []
        assert differences(model, wrong, batch()) != []


# Small gradients


def test_a_gradient_is_compared_on_its_own_scale() -> None:
    class TwoScales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Linear(4, 4), nn.Linear(4, 4)
            self.weight = 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.large(x).square().sum() + self.weight * self.small(x).square().sum()

    torch.manual_seed(0)
    model = TwoScales()
    x = torch.randn(4, 4)
    captured = capture(model, (x,))
    assert differences(model, captured, (x,)) == []
    model.weight = 1.01e-6
    found = {difference.what for difference in differences(model, captured, (x,))}
    assert found == {"the gradient of 'small.weight'", "the gradient of 'small.bias'"}


def test_a_gradient_of_rounding_alone_is_no_difference() -> None:
    # Keys are moved alike: scores of a row change alike, and their softmax does not change.
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, order: float = 0.0) -> torch.Tensor:
            query, key = self.query(x), self.key(x)
            scores = query @ key.mT
            if torch.compiler.is_exporting():
                scores = sum(query[..., i : i + 1] @ key[..., i : i + 1].mT for i in range(8))
            return scores.softmax(-1).matmul(x).square().mean()

    torch.manual_seed(0)
    model, x = Attention(), torch.randn(2, 5, 8)
    captured = capture(model, (x,))
    model(x).backward()
    assert model.key.bias.grad is not None
    assert float(model.key.bias.grad.abs().max()) < 1e-7
    assert differences(model, captured, (x,)) == []


# Choices


class Choice(nn.Module):
    """One of two layers by the larger score; the scores of the first row are equal but for
    ``shift`` while the module is exported."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.score, self.layers = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 4) for _ in "ab")
        self.wrong = wrong
        with torch.no_grad():
            self.score.weight[1] = self.score.weight[0]
            self.score.bias.copy_(torch.tensor([0.0, 1e-7]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.score(x)
        if torch.compiler.is_exporting():
            scores = scores + torch.tensor([2e-7, 0.0])  # as another kernel may round
            if self.wrong:
                scores = -scores
        chosen = scores.argmax(-1, keepdim=True) == 0
        first, second = (layer(x) for layer in self.layers)
        return torch.where(chosen, first, second).square().mean() + scores.softmax(-1)[:, 0].mean()


def test_a_choice_that_rounding_decides_is_no_difference() -> None:
    torch.manual_seed(0)
    model, x = Choice(), torch.randn(6, 4)
    assert differences(model, capture(model, (x,)), (x,)) == []


def test_a_wrong_choice_is_a_difference() -> None:
    torch.manual_seed(0)
    model, x = Choice(wrong=True), torch.randn(6, 4)
    with torch.no_grad():
        model.score.weight[1].mul_(-1)
    assert differences(model, capture(model, (x,)), (x,)) != []


# What stays as it was, and what does not count


def test_hooks_of_parameters_do_not_count_and_stay() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(3, 4)
    captured = capture(model, (x,))
    calls = []
    model.weight.register_hook(lambda gradient: calls.append(1) or 2 * gradient)
    assert differences(model, captured, (x,)) == []
    model(x).sum().backward()
    assert calls[-1:] == [1]
    torch.testing.assert_close(model.weight.grad, 2 * x.sum(0, keepdim=True))


def test_inputs_are_neither_changed_nor_given_gradients() -> None:
    def body(self: Layer, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().mean()

    model, x = Layer(body), torch.ones(3, 4, requires_grad=True)
    assert differences(model, capture(model, (x,)), (x,)) == []
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_wrong_gradient_of_an_input_is_a_difference() -> None:
    def body(self: Layer, x: torch.Tensor) -> torch.Tensor:
        seen = x.detach() if torch.compiler.is_exporting() else x
        return self.linear(seen).square().mean()

    model, x = Layer(body), torch.ones(3, 4, requires_grad=True)
    found = [difference.what for difference in differences(model, capture(model, (x,)), (x,))]
    assert found == ["the gradient of input 0"]


def test_state_comes_back() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.items: dict[str, Any] = {"list": [1], "set": {1}}
            self.table = torch.zeros(2)
            self.generator = torch.Generator().manual_seed(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.items["list"].append(len(self.items))
            self.items["set"].add(torch.rand((), generator=self.generator).item())
            self.items["new"] = self.last = x
            self.table += 1
            return self.norm(x)

    model = Writes()
    drawn = torch.rand((), generator=torch.Generator().manual_seed(0)).item()
    before = StateBefore(model)
    for _ in range(2):
        model(torch.randn(4, 2))
        before.restore()
        assert model.items == {"list": [1], "set": {1}}
        assert not hasattr(model, "last")
        assert model.table.tolist() == [0.0, 0.0]
        assert model.norm.running_mean is not None
        assert model.norm.running_mean.tolist() == [0.0, 0.0]
    assert torch.rand((), generator=model.generator).item() == drawn


# Pieces


def test_errors_are_relative_and_notice_what_is_no_number() -> None:
    one = torch.tensor([1.0, 100.0])
    assert relative_error(one, one) == 0
    assert relative_error(torch.tensor([1.0, 101.0]), one) == pytest.approx(0.01, rel=1e-3)
    assert relative_error(torch.tensor([float("nan"), 100.0]), one) == float("inf")
    nan = torch.tensor([float("nan"), 2.0])
    assert relative_error(nan, nan.clone()) == 0
    assert relative_error(torch.ones(2), torch.zeros(2)) == float("inf")


def test_coarser_dtypes_are_allowed_more() -> None:
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    allowed = [tolerance_of(torch.finfo(dtype).eps) for dtype in dtypes]
    assert allowed == sorted(allowed)
    assert allowed[-1] < 0.02


def test_parameters_are_nudged_and_come_back() -> None:
    tensor = nn.Parameter(torch.tensor([1.0, -2.0, 0.0]))
    with nudged([tensor], 0.5, seed=0):
        assert (tensor.detach() / torch.tensor([1.0, -2.0, 1.0])).abs().tolist()[:2] in (
            [0.5, 0.5],
            [0.5, 1.5],
            [1.5, 0.5],
            [1.5, 1.5],
        )
    assert tensor.tolist() == [1.0, -2.0, 0.0]


def test_a_collective_of_one_rank_is_an_error() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with NoCollectives(), pytest.raises(RuntimeError, match="calls a collective"):
            dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()


# Buffers that forward writes


class _Codes(nn.Module):
    """Attends to codes, which move towards what is attended."""

    def __init__(self, through_data: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)
        self.register_buffer("codes", torch.randn(5, 6))
        self.through_data = through_data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.up(x))
        attention = (h @ self.codes.t()).softmax(1)
        out = self.down(h + attention @ self.codes)
        new = self.codes * 0.5 + 0.5 * (attention.t() @ h).detach()
        if self.through_data:
            self.codes.data.copy_(new)
        else:
            self.codes = new
        return out.square().mean()


@pytest.mark.parametrize("through_data", [False, True])
def test_backward_sees_what_forward_writes_through_data_only(through_data: bool) -> None:
    torch.manual_seed(0)
    model, x = _Codes(through_data), torch.randn(4, 4)
    found = [difference.what for difference in differences(model, capture(model, (x,)), (x,))]
    assert found == (["the gradient of 'up.weight'", "the gradient of 'up.bias'"] * through_data)


def test_a_buffer_that_becomes_something_else_is_a_difference() -> None:
    torch.manual_seed(0)
    model, x = _Codes(through_data=False), torch.randn(4, 4)
    captured = capture(model, (x,))
    for node in captured.graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.mul.Tensor
    ):
        node.args = (node.args[0], node.args[1] * 0.9)
    captured.graph_module.recompile()
    found = [difference.what for difference in differences(model, captured, (x,))]
    assert "buffer 'codes' afterwards" in found
