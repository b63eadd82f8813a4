"""What capture says of a module that it cannot capture."""

import inspect
import logging
import statistics
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.forward_errors import export_is_quiet
from tests.frontend.training import Layer, batch


def line_of(body: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(body)
    return first + next(i for i, line in enumerate(lines) if text in line)


def depends_on_values(self: Layer, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return self.linear(x).sum()
    return self.linear(x).mean()


def test_refusal_gives_reason_and_line_of_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TensorOptError) as error:
        capture(Layer(depends_on_values), (batch(),))
    message = str(error.value)
    line = line_of(depends_on_values, "if x.sum() > 0:")
    assert "the forward pass of Layer needs the value of a tensor" in message
    assert f"{__file__}:{line}: if x.sum() > 0:" in message
    assert "torch.where instead of if" in message and "torch.cond" not in message
    assert "\n" not in message
    assert error.value.__suppress_context__  # PyTorch's own words, of many lines
    assert capfd.readouterr() == ("", "")  # PyTorch prints the graph


def calls_numpy(self: Layer, x: torch.Tensor) -> Any:
    return self.linear(x).sum() * float(x.numpy().mean())


def has_a_size_by_data(self: Layer, x: torch.Tensor) -> Any:
    y = self.linear(x)
    return y.sum() if len(y[y > 0]) > 3 else y.mean()


@pytest.mark.parametrize(
    ("body", "text"), [(calls_numpy, "x.numpy()"), (has_a_size_by_data, "if len(y[y > 0])")]
)
def test_who_asks_for_values_is_told_where(body: Callable[..., Any], text: str) -> None:
    with pytest.raises(TensorOptError, match="needs the value of a tensor") as error:
        capture(Layer(body), (batch(),))
    assert f"{__file__}:{line_of(body, text)}: " in str(error.value)


def lacks_an_attribute(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).sum() * self.config.alpha  # type: ignore[operator, union-attr]


def lacks_a_key(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).sum() * {}["beta"]  # type: ignore[no-any-return]


def has_other_shapes(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return (self.linear(x) @ torch.ones(5, 4)).sum()


def checks_its_input(self: Layer, x: torch.Tensor) -> torch.Tensor:
    raise ValueError("widths of inputs:\n  not 4")


def calls_the_standard_library(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).sum() * statistics.mean([])


MISTAKES = {
    lacks_an_attribute: "AttributeError: 'Layer' object has no attribute 'config'",
    lacks_a_key: "KeyError: 'beta'",
    has_other_shapes: "RuntimeError: a and b must have same reduction dim, but got [2, 4] X [5, 4]",
    checks_its_input: "ValueError: widths of inputs: not 4",
    calls_the_standard_library: "StatisticsError: mean requires at least one data point",
}


@pytest.mark.parametrize("body", MISTAKES)
def test_an_error_of_the_model_is_shown_as_what_it_is(
    body: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TensorOptError) as error:
        capture(Layer(body), (batch(),))
    message = str(error.value)
    source = inspect.getsource(body).splitlines()[-1].strip()
    line = line_of(body, source)
    assert f"the forward pass of Layer raises {MISTAKES[body]}" in message
    assert f"(at {__file__}:{line}: {source})" in message
    assert "\n" not in message and "torch.where" not in message and "custom_op" not in message
    assert error.value.__cause__ is not None
    assert capfd.readouterr() == ("", "")  # PyTorch logs a traceback of operators


def test_an_error_of_the_loss_is_shown_as_what_it_is() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target[:, :3]).sum()

    with pytest.raises(TensorOptError, match=r"loss_fn, called .* raises RuntimeError") as error:
        capture(nn.Linear(4, 4), (batch(),), loss_fn=loss, targets=(batch(),))
    assert "(output - target[:, :3]).sum()" in str(error.value)


def test_wrong_example_input_is_refused() -> None:
    with pytest.raises(TensorOptError, match="forward pass of Linear raises RuntimeError: a and b"):
        capture(nn.Linear(4, 4), (torch.randn(2, 5),))


def test_logs_of_other_threads_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")

    def warn() -> None:
        log.warning("of thread %s", threading.current_thread().name)

    with caplog.at_level(logging.WARNING, log.name), export_is_quiet():
        log.addHandler(caplog.handler)
        warn()
        other = threading.Thread(target=warn, name="other")
        other.start()
        other.join()
    log.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"of thread other"}


def to_number(self: Layer, x: torch.Tensor) -> Any:
    return self.linear(x).sum().item()


def sections(self: Layer, x: torch.Tensor) -> torch.Tensor:
    y = self.linear(x)
    counts = (y > 0).sum(1).tolist()
    return torch.cat(torch.split(y.flatten(), counts)).sum()


def nonzero(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x).nonzero().sum()


@pytest.mark.filterwarnings("ignore:operator 'aten")
@pytest.mark.parametrize(
    ("body", "operator"),
    [
        (to_number, "aten.item.default"),
        (nonzero, "aten.nonzero.default"),
        (sections, "aten.item.default"),
    ],
)
def test_sizes_that_depend_on_data_are_refused(body: Callable[..., Any], operator: str) -> None:
    with pytest.raises(TensorOptError, match="depend on data") as error:
        capture(Layer(body), (batch(),))
    message = str(error.value)
    assert operator in message and "\n" not in message
    assert f'at File "{inspect.getfile(Layer)}"' in message and "in forward" in message


def branches(self: Layer, x: torch.Tensor) -> Any:
    y = self.linear(x)
    return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)).sum()


@pytest.mark.filterwarnings("ignore:While compiling")
def test_control_flow_of_higher_order_is_refused() -> None:
    with pytest.raises(TensorOptError, match=r"a region 'cond' .* is not an operator") as error:
        capture(Layer(branches), (batch(),))
    message = str(error.value)
    assert "choose with torch.where" in message
    assert f'at File "{inspect.getfile(Layer)}"' in message


def ctc(self: Layer, x: torch.Tensor) -> torch.Tensor:
    labels = torch.ones(1, 2, dtype=torch.long)
    lengths = torch.full((1,), x.shape[0]), torch.full((1,), 2)
    scores = self.linear(x).log_softmax(-1)[:, None]
    return torch.ops.aten.ctc_loss.Tensor(scores, labels, *lengths)


def test_a_loss_whose_sizes_depend_on_labels_is_refused_with_a_way_out() -> None:
    with pytest.raises(TensorOptError, match=r"the sizes of what .*ctc_loss.* returns") as error:
        capture(Layer(ctc), (batch(),))
    message = str(error.value)
    assert f"{__file__}:{line_of(ctc, 'ctc_loss')}: return torch.ops.aten.ctc_loss" in message
    assert "leave the labels away" in message


def returns_a_container(self: Layer, x: torch.Tensor) -> Any:
    return self.linear(x).sum(), DynamicCache()


def test_containers_that_a_graph_does_not_know_are_refused() -> None:
    with pytest.raises(TensorOptError, match=r"container .*DynamicCache.*use_cache=False") as error:
        capture(Layer(returns_a_container), (batch(),))
    assert "github" not in str(error.value)


def concatenated(self: Layer, x: torch.Tensor) -> torch.Tensor:
    rows = self.linear(x)
    shown = rows[rows[:, 0] > 0]
    return torch.cat([shown, shown]).sum()


def test_a_size_that_a_pass_asks_for_is_refused() -> None:
    """Its rows are concatenated, which is looked at before the graph is lowered."""
    with pytest.raises(TensorOptError, match=r"aten.index.Tensor.*not a tensor of fixed size"):
        capture(Layer(concatenated), (batch(),))


def by_vmap(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.dot)(self.linear(x), x).sum()


def test_vmap_is_refused_by_its_name() -> None:
    with pytest.raises(TensorOptError, match=r"calls torch.vmap .* write the dimension out"):
        capture(Layer(by_vmap), (batch(),))


def grow_buffer(self: Layer, x: torch.Tensor) -> torch.Tensor:
    self.offset = torch.cat([self.offset, self.offset])
    return (self.linear(x) + self.offset[:4]).sum()


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(TensorOptError, match=r"buffer 'offset' from torch.float32 \(4,\) to .*8"):
        capture(Layer(grow_buffer), (batch(),))


def without_rule(self: Layer, x: torch.Tensor) -> torch.Tensor:
    return (self.linear(x).renorm(2, 0, 1) + self.linear(x).renorm(2, 1, 1)).sum()


def test_operator_without_a_rule_is_named_once() -> None:
    assert "aten.renorm.default" not in _C.current_rules().targets()
    with pytest.warns(UserWarning, match="'aten.renorm.default' has no rule") as found:
        capture(Layer(without_rule), (batch(),))
    assert len(found) == 1
    assert found[0].filename == __file__
