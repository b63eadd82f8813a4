"""Autocast of a model on the meta device, and as an option: what a real model's gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Example, TensorOptError, cli
from tensoropt_torch.telling.details import details_of


class Plain(nn.Module):
    """Two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).float().square().mean()


class Casting(Plain):
    """Under an autocast of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return super().forward(x)


def points(model: type[nn.Module], device: str, **options: Any) -> list[tuple[float, float]]:
    with torch.device(device):
        made, args = model(), (torch.zeros(64, 256),)
    found = tensoropt_torch.find_frontier(made, args, cluster="h100-8", **options)
    return [(point.memory_bytes, point.time_s) for point in found]


def test_an_autocast_of_the_meta_device_is_that_of_the_device_at_hand() -> None:
    before = torch.autocast.__init__
    found = points(Casting, "meta")
    assert torch.autocast.__init__ is before
    assert found == points(Casting, "cpu")
    assert found != points(Plain, "meta")
    with pytest.raises(RuntimeError, match="meta"):
        torch.autocast("meta", dtype=torch.bfloat16)


def test_the_option_is_an_autocast_around_the_planning() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = points(Plain, "cpu")
    for dtype in ("bfloat16", torch.bfloat16):
        assert points(Plain, "meta", autocast=dtype) == expected
    assert points(Plain, "meta") != expected
    with pytest.raises(TensorOptError, match="autocast='int8' is not known; choose one of bfloat"):
        points(Plain, "meta", autocast="int8")


def test_copies_of_parameters_are_gathered_as_parameters() -> None:
    """A device of eight holds an eighth and gathers the rest, of copies in half the bytes."""

    def gathered(autocast: Any) -> float:
        with torch.device("meta"):
            example = Example(Plain(), (torch.zeros(1 << 16, 256),), autocast=autocast)
        frontier = tensoropt_torch.find_frontier(example, cluster="h100-8")
        best = 0.0
        for point in frontier:
            details = details_of(point.plan)
            found = [one for one in details.collectives if one.kind == "all_gather"]
            best = max(best, sum(o.num_bytes for o in found if o.moved.startswith("parameters")))
            assert not any(one.moved == "activations" and one.num_bytes > 1e5 for one in found)
        return best

    whole, half = gathered(None), gathered("bfloat16")
    assert half == pytest.approx(whole / 2, rel=0.1)


MODEL = """
import torch
class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).float().square().mean()
def build():
    with torch.device("meta"):
        return Model(1024, 1024), (torch.zeros(8192, 1024),)
"""


def test_the_command_has_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    times = []
    for options in ((), ("--autocast", "bfloat16")):
        where = (f"{file}:build", "--cluster", "h100-8", "--output", str(tmp_path / "plan.json"))
        assert cli.main(["plan", *where, *options]) == 0
        times.append(tensoropt_torch.Plan.load(tmp_path / "plan.json").time_s)
    assert times[1] < times[0]
    assert "simulated peak of" in " ".join(capsys.readouterr().out.split())


def test_trade_offs_have_a_line_for_each_number_of_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    asked = ("--counts", "1,2,4", "--memory-limit", "130MiB")
    assert cli.main(["tradeoffs", f"{file}:build", "--cluster", "h100-8", *asked]) == 0
    out = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["1", "2", "4"]
    assert "nothing fits" in rows[0][1]
    assert "nothing fits" not in rows[2][1]
    text = " ".join(out.split())
    assert "The fastest step with at most 130 MiB per device" in text
    assert "USD" in text
