"""In-place calls become functional, and changes are seen under every name."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes import PASSES, cleanup, functional, regions
from tests.frontend.graphs import (
    Body,
    check_after_every_pass,
    exported,
    normalised,
    targets,
)
from tests.frontend.training import Layer, batch

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


def powers(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x).abs_().add_(1)
    hidden.pow_(2)
    hidden.pow_(x)
    whole = hidden.detach().clone()
    whole.floor_divide_(2)
    whole.floor_divide_(x.exp())
    wide = (hidden.double() + 1).float_power_(0.5)
    wide.float_power_(x)
    return (hidden * whole + wide).sum()


def diagonals(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    products = hidden @ hidden.T
    products.fill_diagonal_(0.5)
    other = hidden + x
    other.fill_diagonal_(2)
    return (products.tanh() @ other).sum()


IN_PLACE = [chained, in_place_module, overwritten, powers, diagonals]


@pytest.mark.parametrize("body", IN_PLACE)
def test_in_place_calls_become_functional(body: Body) -> None:
    _, module = normalised(body, functional.functionalise_in_place)
    names = [name.split(".")[1] for name in targets(module)]
    assert not any(name.endswith("_") for name in names), names


def copied(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    other = torch.empty_like(hidden)
    other.copy_(hidden)
    return (other * x).sum()


def test_copy_into_a_tensor_keeps_the_gradient() -> None:
    normalised(copied, *PASSES)


class ChangeInput(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.relu_()
        return self.linear(x).sum()


class ChangeParameter(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.5)
        return self.linear(x).sum()


class ChangeWithoutGradient(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x) * 1
        with torch.no_grad():
            hidden.mul_(2)
        return hidden.sum()


class ChangeDetached(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x) * 1
        hidden.detach().mul_(2)
        return hidden.sum()


class ChangeWindows(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x) * 1
        hidden.unfold(0, 2, 2).mul_(2)
        return hidden.sum()


class WrappedDiagonal(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x).repeat(9, 1)
        hidden.fill_diagonal_(2, wrap=True)
        return hidden.sum()


@pytest.mark.parametrize(
    ("layer", "call", "changed", "line"),
    [
        (ChangeInput, "aten.relu_", "'x'", "x.relu_()"),
        (ChangeParameter, "aten.mul_", "'p_linear_weight'", "weight.mul_(0.5)"),
        (ChangeWithoutGradient, "aten.mul_", "without its gradient", "hidden.mul_(2)"),
        (ChangeDetached, "aten.mul_", "without its gradient", "detach().mul_(2)"),
        (ChangeWindows, "aten.mul_", "aten.unfold", "unfold(0, 2, 2).mul_(2)"),
        (WrappedDiagonal, "aten.fill_diagonal_", "wraps around", "fill_diagonal_(2, wrap=True)"),
    ],
)
def test_in_place_change_that_cannot_be_followed_is_refused(
    layer: type[Layer], call: str, changed: str, line: str
) -> None:
    module = exported(layer(), batch())
    regions.inline_regions(module.graph)
    with pytest.raises(TensorOptError) as error:
        functional.functionalise_in_place(module.graph)
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
    _, module = normalised(body, regions.inline_regions, functional.functionalise_in_place)
    names = targets(module)
    changing = [name for name in names if name.split(".")[1].endswith("_")]
    assert changing == ["aten.copy_.default"]
    assert names[-1] == "aten.copy_.default"


# --- through views -----------------------------------------------------------


def view_of_changed_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    view = self.offset.view(2, 2)
    self.offset.add_(1)
    return (self.linear(x) * view.view(-1)).sum()


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


def part_of_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.offset[0].add_(1)
    self.offset[1:3] = x[0, 1:3]
    return (self.linear(x) * self.offset).sum()


def column(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x) * 1
    hidden[:, 0] = 0
    hidden[:, -1] *= 3
    return hidden.square().sum()


def written_in_pieces(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """As the keys of some attention are put together."""
    hidden = self.linear(x)
    whole = hidden.new_empty(2, 6)
    whole[:, :4] = hidden
    whole[:, 4:] = hidden[:, :2].sin()
    return (whole * whole.flip(1)).sum()


def shifted(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """As labels become the inputs of a decoder."""
    hidden = self.linear(x)
    moved = hidden.new_zeros(hidden.shape)
    moved[..., 1:] = hidden[..., :-1].clone()
    moved[..., 0] = 0.5
    moved.masked_fill_(moved > 1, 0)
    return (moved * hidden).sum()


def view_of_view(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x) * 1
    rows = hidden.t().unsqueeze(0).permute(0, 2, 1)
    before = rows.sum()
    rows[0, 1].view(2, 2).mul_(2)
    hidden.add_(rows[0])
    return (hidden * rows).sum() * before


def pieces_of_a_split(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """Where gradients flow, PyTorch itself refuses this."""
    scale = x * 1
    left, right = scale.chunk(2, dim=1)
    first, _ = scale.unbind(0)
    left.mul_(2)
    right.copy_(left)
    return (self.linear(x) * scale * first).sum() * right.sum()


def every_other(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x) * 1
    hidden[:, ::2].neg_()
    return hidden.square().sum() + hidden.sum()


def diagonal(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    products = torch.stack([hidden @ hidden.T, hidden.tanh() @ hidden.T])
    products.diagonal(dim1=-2, dim2=-1).add_(1)
    products.diagonal(1, 1, 2).mul_(0.5)
    return (products @ hidden).sum()


def reshaped_copy(self: Layer, x: torch.Tensor) -> torch.Tensor:
    """This reshape has to copy, so its memory is another."""
    hidden = self.linear(x) * 1
    copied = hidden.t().reshape(-1)
    copied.mul_(2)
    return hidden.sum() + copied.square().sum()


def in_buffer_without_grad(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    with torch.no_grad():
        self.offset[:2].mul_(0.5).add_(hidden[:, :2].mean(0))
    return (hidden * self.offset).sum()


def both_flags(self: Layer, x: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    mask &= x < 1
    return (self.linear(x) * mask).sum()


THROUGH_VIEWS = [
    view_of_changed_buffer,
    view_read_after,
    base_read_after,
    part_of_buffer,
    column,
    written_in_pieces,
    shifted,
    view_of_view,
    pieces_of_a_split,
    every_other,
    diagonal,
    reshaped_copy,
    in_buffer_without_grad,
    both_flags,
]


@pytest.mark.parametrize("body", THROUGH_VIEWS)
def test_changes_are_seen_under_every_name(body: Body) -> None:
    passes = (regions.inline_regions, functional.functionalise_in_place)
    _, module = normalised(body, *passes, cleanup.eliminate_dead_code)
    names = {name.split(".")[1] for name in targets(module) if "." in name}
    names -= {"copy_", "__and__"}
    assert not any(name.endswith("_") for name in names), names


def after_idle_dropout(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    changed = F.dropout(F.feature_alpha_dropout(hidden, 0.5, False), 0.5, False).relu_()
    return (hidden * changed).sum()


def inside_idle_dropout(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    F.dropout(hidden, 0.0, training=True, inplace=True)
    return hidden.relu_().sum()


def one_of_several(self: Layer, x: torch.Tensor) -> torch.Tensor:
    values, _ = self.linear(x).sort(1)
    return (values.relu_() + values).sum()


IDLE = [after_idle_dropout, inside_idle_dropout]


def at_least_one_dim(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    return (torch.atleast_1d(hidden).relu_() + hidden).sum()


def broadcast(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    return (torch.broadcast_tensors(hidden)[0].relu_() + hidden).sum()


@pytest.mark.parametrize("body", [at_least_one_dim, broadcast])
def test_memory_that_a_schema_does_not_tell_of_is_refused(body: Body) -> None:
    with pytest.raises(TensorOptError, match="another name of that operator's own operand"):
        normalised(body, *PASSES)


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
    functional.functionalise_in_place(module.graph)
    with pytest.raises(TensorOptError, match=r"updates running statistics '(select|add_tensor)'"):
        functional.check_running_statistics(module.graph)


def add_wider(self: Layer, x: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x)
    hidden += self.offset.double()
    return hidden.sum()


def test_in_place_call_keeps_the_dtype() -> None:
    normalised(add_wider, *PASSES)


# --- all passes --------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [*IN_PLACE, *BUFFER_CHANGES, *RUNNING, *THROUGH_VIEWS, *IDLE, one_of_several, without_grad],
)
def test_numbers_stay_the_same_after_every_pass(body: Body) -> None:
    check_after_every_pass(body)
