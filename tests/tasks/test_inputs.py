"""Where inputs have their rows, as users name it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tensoropt_torch
from tensoropt_torch import Plan, PlanningOptions, TensorOptError
from tensoropt_torch.space.rows import OutputRows, rows_of_outputs
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.tasks.options import input_modes

NAMES = ["x", "state[0]", "state[1]", "table"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 4)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        hidden: Tensor = self.rnn(x, state)[0]
        return hidden


ARGS = torch.randn(5, 8, 4), torch.randn(1, 8, 4)


def plan(**options: object) -> Plan:
    return tensoropt_torch.find_frontier(
        Recurrent(), ARGS, cluster="h100-8", num_devices=2, **options
    ).fastest.plan  # type: ignore[arg-type]


def test_modes_and_dims_are_told_from_each_other() -> None:
    assert input_modes("sharded", NAMES) == ("sharded", (), ())
    modes = input_modes({"state": 1, "x": 0, "table": "replicated"}, NAMES)
    assert modes == ("sharded", ("table",), (("state[0]", 1), ("state[1]", 1)))
    assert input_modes(dict.fromkeys(NAMES, "replicated"), NAMES) == ("replicated", (), ())
    with pytest.raises(TensorOptError, match="'y', which is no input"):
        input_modes({"y": 1}, NAMES)


@pytest.mark.parametrize("mode", [-1, True, 0.5, "Sharded"])
def test_what_is_no_dim_is_refused(mode: object) -> None:
    with pytest.raises(TensorOptError, match=r"inputs\['x'\]=.* is not known.*replicated, sharded"):
        PlanningOptions(inputs={"x": mode})  # type: ignore[dict-item]


def test_a_dim_that_an_input_lacks_is_refused() -> None:
    with pytest.raises(TensorOptError, match=r"inputs\['x'\]=3 .*the shape \[5, 8, 4\]"):
        plan(inputs={"x": 3})


def test_micro_batches_of_other_dims_are_refused() -> None:
    with pytest.raises(TensorOptError, match=r"max_micro_batches=2 .*inputs\['x'\]=1"):
        plan(inputs={"x": 1, "state": 1}, max_micro_batches=2)


def test_an_input_whose_rows_do_not_divide_says_what_to_name() -> None:
    with pytest.raises(TensorOptError, match=r"'x' of shape \[5, 8, 4\]: dim 0 .*\{'x': 1\}"):
        plan(inputs="sharded")


def test_a_plan_keeps_the_dims(tmp_path: Path) -> None:
    made = plan(inputs={"x": 1, "state": 1})
    made.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.settings == made.settings
    assert loaded.settings.rows_dim("x") == 1
    assert loaded.settings.inputs_in_words == "sharded, x along dim 1, state along dim 1"
    assert loaded.settings.gathered.rows_dim("x") is None
    assert made.captured is not None
    space = make_space(made.captured, loaded.settings)
    found = rows_of_outputs(made.captured, space, loaded.shares, loaded.num_devices)
    assert found == (OutputRows(1, depends=True),)
