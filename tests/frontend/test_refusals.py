"""What capture says of a module that it cannot capture."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tests.frontend.training import Layer, batch


def line_of(body: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(body)
    return first + next(i for i, line in enumerate(lines) if text in line)


def depends_on_values(self: Layer, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return self.linear(x).sum()
    return self.linear(x).mean()


def test_refusal_gives_reason_and_line_of_the_user() -> None:
    with pytest.raises(TensorOptError) as error:
        capture(Layer(depends_on_values), (batch(),))
    message = str(error.value)
    line = line_of(depends_on_values, "if x.sum() > 0:")
    assert "cannot capture Layer" in message
    assert "Python asks for a value of a tensor" in message
    assert f"{__file__}:{line}: if x.sum() > 0:" in message
    assert "try torch.where" in message


def test_wrong_example_input_is_refused() -> None:
    with pytest.raises(TensorOptError, match="cannot capture Linear: RuntimeError"):
        capture(nn.Linear(4, 4), (torch.randn(2, 5),))


def to_number(self: Layer, x: torch.Tensor) -> Any:
    return self.linear(x).sum().item()


def nonzero(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).nonzero().sum()


@pytest.mark.filterwarnings("ignore:operator 'aten")
@pytest.mark.parametrize(
    ("body", "operator"),
    [
        (to_number, "aten.item.default"),
        (nonzero, "aten.nonzero.default"),
    ],
)
def test_sizes_that_depend_on_data_are_refused(body: Callable[..., Any], operator: str) -> None:
    with pytest.raises(TensorOptError, match="depend on data") as error:
        capture(Layer(body), (batch(),))
    assert operator in str(error.value)
    assert "x[mask]" in str(error.value)
    assert "in forward return self._body(" in str(error.value)


def ctc(self: Layer, x: torch.Tensor) -> torch.Tensor:
    labels = (x[:, 0] > 0).long() + 1
    shown = labels.masked_select(labels > 1)
    lengths = torch.full((1,), x.shape[0]), (labels > 1).sum()[None]
    scores = self.linear(x).log_softmax(-1)[:, None]
    return nn.functional.ctc_loss(scores, shown, *lengths)


def test_a_loss_whose_sizes_depend_on_labels_is_refused_with_a_way_out() -> None:
    with pytest.raises(TensorOptError, match=r"the sizes of what .*ctc_loss.* returns") as error:
        capture(Layer(ctc), (batch(),))
    message = str(error.value)
    assert f"{__file__}:{line_of(ctc, 'ctc_loss')}: return nn.functional.ctc_loss" in message
    assert "leave the labels away" in message


def grow_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.offset = torch.cat([self.offset, self.offset])
    return (self.linear(x) + self.offset[:4]).sum()


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(TensorOptError, match=r"buffer 'offset' from torch.float32 \(4,\) to .*8"):
        capture(Layer(grow_buffer), (batch(),))


def without_rule(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return (self.linear(x).renorm(2, 0, 1) + self.linear(x).renorm(2, 1, 1)).sum()


def test_operator_without_a_rule_is_named_once() -> None:
    assert "aten.renorm.default" not in _C.rule_targets()
    with pytest.warns(UserWarning, match="'aten.renorm.default' has no rule") as found:
        capture(Layer(without_rule), (batch(),))
    assert len(found) == 1
    assert found[0].filename == __file__
