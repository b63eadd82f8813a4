"""What the library logs: all that takes time, nothing unasked, rank 0 alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import cli
from tensoropt_torch.logs import LIBRARY, get_logger
from tests.distributed.harness import run_ranks
from tests.planner.model_file import MODEL_FILE

HERE = "tests.test_logs"


class Renormalises(nn.Module):
    """``renorm`` has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.renorm(self.layer(x), 2, 0, 1.0).sum()


def test_planning_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LIBRARY)
    with pytest.warns(UserWarning, match="renorm"):
        plan = tensoropt_torch.find_strategy(
            Renormalises(), (torch.zeros(8, 16),), cluster="h100-8", num_devices=2, memory_limit=1e9
        )
    told = [(record.name.removeprefix(f"{LIBRARY}."), record.message) for record in caplog.records]
    text = "\n".join(message for _, message in told)
    assert "left whole, without a rule: 1 calls of aten.renorm.default" in text
    for module, words in (
        ("frontend.capture", "captured Renormalises in "),
        ("progress", "searching the strategies of 2 devices"),
        ("planner.candidates", f"Frontier({len(plan.frontier)} points on 2 devices"),
        ("strategy", "mini_time within 953.7 MiB of memory per device"),
        ("strategy", "mini_time picks SimulatedPoint(peak "),
        ("strategy", f"FrontierPoint({len(plan.frontier) - 1} of "),
    ):
        assert any(name == module and words in message for name, message in told), text
    assert not any("what the search did" in message for _, message in told)


def test_debugging_tells_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LIBRARY)
    tensoropt_torch.find_frontier(nn.Linear(8, 8), (torch.zeros(8, 8),), num_devices=2)
    assert any("what the search did" in record.message for record in caplog.records)


PLANS = """
import logging, sys, torch, tensoropt_torch
if len(sys.argv) > 1:
    logging.basicConfig(level=logging.INFO)
tensoropt_torch.find_frontier(torch.nn.Linear(8, 8), (torch.zeros(8, 8),), num_devices=2)
"""


@pytest.mark.parametrize("asked", [[], ["asked"]])
def test_a_program_hears_what_it_asks_for(asked: list[str]) -> None:
    command = [sys.executable, "-c", PLANS, *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert (
        "INFO:tensoropt_torch.progress:searching the strategies of 2 devices" in done.stderr
    ) == bool(asked)
    assert bool(done.stderr) == bool(asked)


@pytest.mark.parametrize("place", ["none", "before", "after"])
def test_the_command_tells_if_it_is_verbose(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL_FILE)
    arguments = ["frontier", f"{file}:build", "--cluster", "h100-8", "--devices", "2"]
    where = {"none": None, "before": 0, "after": len(arguments)}[place]
    if where is not None:
        arguments.insert(where, "--verbose")
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert "fastest" in captured.out
    assert "searching" not in captured.out
    assert ("searching the strategies of 2 devices" in captured.err) == (place != "none")
    assert bool(captured.err) == (place != "none")


def speak(_: None) -> list[str]:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    library = logging.getLogger(LIBRARY)
    library.addHandler(Listener())
    library.setLevel(logging.INFO)
    model, args = nn.Linear(8, 8), (torch.zeros(8, 8),)
    options = {"measure": False, "memory_limit": 1e9}
    tensoropt_torch.auto_parallel(model, args, cluster="cpu", **options)
    get_logger(f"{LIBRARY}.test").warning("rank %d is short of something", dist.get_rank())
    return heard


def test_rank_0_speaks_for_all_and_warnings_name_their_rank() -> None:
    first, second = run_ranks(2, f"{HERE}:speak", None, 60)
    text = "\n".join(first)
    for words in ("captured Linear", "mini_time picks", "ParallelModule(\n  devices: 2 devices"):
        assert words in text
    assert first[-1] == "rank 0 is short of something"
    assert second == ["rank 1: rank 1 is short of something"]
