"""Whatever a user gives, only TensorOptError comes back, with what was got in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan, SearchSettings, TensorOptError, cli
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.space.choices import Choices


def find(**wrong: Any) -> Any:
    model, args = nn.Linear(8, 8), (torch.zeros(8, 8),)
    given = {"model": model, "args": args, "loss_fn": torch.mean, "num_devices": 2, **wrong}
    return tensoropt_torch.find_strategy(**{"cluster": "cpu", **given})


def plan() -> Plan:
    made: Plan = find()
    return made


def frontier(**wrong: Any) -> Any:
    given = {"cluster": "cpu", "num_devices": 2, "loss_fn": torch.mean, **wrong}
    return tensoropt_torch.find_frontier(nn.Linear(8, 8), (torch.zeros(8, 8),), **given)


def profiled(counts: Any) -> Any:
    model, args = nn.Linear(8, 8), (torch.zeros(8, 8),)
    given = {"loss_fn": torch.mean, "cluster": "cpu", "device_counts": counts}
    return tensoropt_torch.profile(model, args, **given)


def searched(**wrong: Any) -> Any:
    return frontier(search=SearchSettings(**wrong))


def many_dims() -> tuple[nn.Module, torch.Tensor]:
    return nn.Flatten(0), torch.zeros([1] * 15)


class Small(nn.Module):
    """Returns numbers of eight bits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float8_e4m3fn).to(torch.float32).sum()


# What is given wrongly, and a word of the message that names it.
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: find(model="linear"), "linear"),
    (lambda: find(model=nn.Linear), "Linear"),
    (lambda: find(args=torch.zeros(8, 8)), "args"),
    (lambda: frontier(validate="many"), "validate='many' is not for find_frontier()"),
    (lambda: find(args=({1, 2},)), "of type <class 'set'>; give tensors"),
    (lambda: find(kwargs=[1]), "kwargs"),
    (lambda: find(targets=torch.zeros(8)), "targets"),
    (lambda: find(loss_fn="mean"), "loss_fn"),
    (lambda: find(num_devices=0), "0 devices"),
    (lambda: find(num_devices=-2), "-2"),
    (lambda: find(num_devices="two"), "two"),
    (lambda: find(num_devices=2.5), "2.5"),
    (lambda: find(memory_limit="12GiB"), "12GiB"),
    (lambda: find(memory_limit=-1), "-1"),
    (lambda: find(memory_limit=float("nan")), "nan"),
    (lambda: find(option="fastest"), "fastest"),
    (lambda: find(cluster=5), "cluster"),
    (lambda: find(cluster="h100"), "h100-8"),
    (lambda: find(cluster="/"), "neither a preset nor a file"),
    (lambda: find(optimizer=None), "None"),
    (lambda: find(inputs="split"), "split"),
    (lambda: find(space="all"), "all"),
    (lambda: find(max_configs=0), "max_configs"),
    (lambda: find(max_configs=-3), "max_configs"),
    (lambda: find(max_configs="many"), "many"),
    (lambda: find(search="fast"), "search"),
    (lambda: searched(epsilon=-0.1), "epsilon"),
    (lambda: searched(epsilon="small"), "epsilon"),
    (lambda: searched(epsilon=float("nan")), "epsilon"),
    (lambda: searched(algorithm="greedy"), "greedy"),
    (lambda: searched(num_threads=-1), "num_threads"),
    (lambda: searched(num_threads=1.5), "num_threads"),
    (lambda: searched(max_conditioning_work="much"), "max_conditioning_work"),
    (lambda: searched(heuristics=("cheapest",)), "cheapest"),
    (lambda: searched(heuristics=(None,)), "None"),
    (lambda: searched(heuristics=0.5), "heuristics"),
    (lambda: find(model=many_dims()[0], args=(many_dims()[1],)), "15 dims"),
    (lambda: find(model=Small(), loss_fn=None), "float8_e4m3fn"),
    (lambda: profiled(4), "device_counts"),
    (lambda: profiled([2, 0]), "device_counts"),
    (lambda: profiled(["2"]), "device_counts"),
    (lambda: plan().save("/nowhere/plan.json"), "/nowhere/plan.json"),
    (lambda: tensoropt_torch.load_cluster("/nowhere.toml"), "/nowhere.toml"),
]


@pytest.mark.parametrize(("call", "word"), WRONG, ids=[str(i) for i in range(len(WRONG))])
@pytest.mark.filterwarnings("ignore:operator 'aten")
def test_wrong_arguments_are_tensoropt_errors(call: Callable[[], Any], word: str) -> None:
    with pytest.raises(TensorOptError) as error:
        call()
    assert word in str(error.value)
    assert type(error.value) is TensorOptError


def test_a_plan_whose_choices_do_not_exist_is_refused() -> None:
    made = plan()
    model, args = nn.Linear(8, 8), (torch.zeros(8, 8),)
    configs = made.choices.configs
    assert configs[0][0] == "weight"
    for changed, edges, problem in (
        ((("weight", "S7"), *configs[1:]), (), "'weight' has no config 'S7'"),
        (configs[1:], (), f"{len(configs) - 1} configs are given for {len(configs)} operators"),
        (configs, ((99, "a -> b[0]", "before"),), "there is no edge 99"),
        (configs, ((0, "weight -> linear[1]", "held"),), "cannot be crossed with 'held'"),
        (configs, ((0, "weight -> linear[1]", "kept"),), "[1]' has no choice 'kept'"),
    ):
        wrong = replace(made, captured=None).with_part(choices=Choices(changed, edges))
        with pytest.raises(TensorOptError) as error:
            tensoropt_torch.simulate_memory(model, wrong, args, loss_fn=torch.mean)
        assert problem in str(error.value)
        assert "plan again" in str(error.value)


MODEL = "import torch\ndef example():\n    return torch.nn.Linear(8, 8), (torch.zeros(8, 8),)\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["frontier", "nothing.py:example"], "nothing.py"),
        (["frontier", "{file}:nothing"], "nothing"),
        (["frontier", "{file}"], "file.py:function"),
        (["frontier", "{wrong}:example"], "(module, args)"),
        (["plan", "{file}:example", "--devices", "0"], "0 devices"),
        (["plan", "{file}:example", "--devices", "2", "--output", "/nowhere/p"], "/nowhere/p"),
        (["plan", "{file}:example", "--cluster", "h100"], "h100-8"),
        (["frontier", "{file}:example", "--devices", "2", "--json", "/nowhere/f"], "/nowhere/f"),
    ],
)
def test_the_command_ends_with_a_message(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, wrong = tmp_path / "model.py", tmp_path / "wrong.py"
    file.write_text(MODEL)
    wrong.write_text("def example():\n    return 5\n")
    given = [text.format(file=file, wrong=wrong) for text in arguments]
    assert cli.main(given) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "1" * 10_000])
def test_files_that_readers_cannot_follow_are_one_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text(text)
    for read in (Plan.load, HardwareProfile.load):
        with pytest.raises(TensorOptError, match="given"):
            read(path)
    path.write_text(f"a = {text}")
    with pytest.raises(TensorOptError, match="given"):
        tensoropt_torch.load_cluster(path)
