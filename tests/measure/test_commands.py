"""The commands that run under torchrun, and where plans say their costs are from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import _C, cli
from tensoropt_torch.config.cluster import Runtime, Update
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.runs.validation import Validation
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.report.costs import validation_summary, validation_table
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.provenance import provenance
from tests.measure.runs.test_validation import rows
from tests.report.reading import ReadPage

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(x).square().mean()


def example():
    torch.manual_seed(0)
    return Model(), (torch.randn(8, 16),)
"""


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run += ["-m", "tensoropt_torch.cli", *arguments]
    environment = {**os.environ, "TENSOROPT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        run, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.slow
def test_hardware_is_profiled_and_a_model_validated(tmp_path: Path) -> None:
    small = ("--budget", "2", "--max-bytes", "4096")
    output = tmp_path / "here.json"
    done = command(
        tmp_path, "profile-hardware", "--cluster", "cpu", *small, "--output", str(output)
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes on" in done.stdout
    profile = HardwareProfile.load(output)
    assert profile.complete
    assert profile.cluster.device.runtime.update(2.0) is not None
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    table, page = tmp_path / "table.json", tmp_path / "page.html"
    found = command(
        tmp_path,
        *("validate", f"{model}:example", "--cluster", str(output)),
        *("--strategies", "2", "--steps", "2", "--json", str(table), "--report", str(page)),
    )
    assert found.returncode == 0, found.stderr
    assert "mean error" in found.stdout
    record = json.loads(table.read_text())
    assert len(record["rows"]) == 2
    assert len(ReadPage.of(page).table("Predicted and measured")) == 2
    planned = tmp_path / "plan.json"
    arguments = ("plan", f"{model}:example", "--cluster", str(output), "--devices", "2")
    assert cli.main([*arguments, "--output", str(planned)]) == 0
    assert Plan.load(planned).settings.measured == profile.curves


def test_plans_say_where_their_costs_are_from() -> None:
    model, args = nn.Linear(8, 8), (torch.randn(8, 8),)
    settings = tensoropt_torch.find_frontier(model, args, cluster="h100-2x8").settings
    text = "\n".join(map(str, provenance(settings)))
    assert "NVIDIA H100 data sheet" in text
    assert "inside level 'network'" in text and "inside level 'nvlink'" in text
    assert "roofline" in text
    curves = (("all_reduce", 1, ((1024.0, 1e-3),)), ("all_gather", 1, ((1024.0, 1e-3),)))
    work = ("float32", 1.0, 1.0, 1.0, 1.0, True, False)
    operators = (("key", "family", work, 1e-3, 1e-3),)
    text = "\n".join(map(str, provenance(replace(settings, measured=curves, operators=operators))))
    assert "measured over 1 of 15 sets" in text
    assert "1 calls measured" in text
    assert "level" not in text


def test_a_cluster_keeps_what_was_fitted() -> None:
    cluster = tensoropt_torch.load_cluster("cpu")
    runtime = Runtime(1e-5, 0.0, (Update(0.0, 1e-5, 1e-10), Update(2.0, 1e-4, 1e-9)), "fitted")
    cluster = replace(cluster, device=replace(cluster.device, runtime=runtime))
    again = tensoropt_torch.config.parse_cluster(json.loads(json.dumps(cluster.to_dict())), "test")
    assert again == cluster
    assert again.device.runtime.update(2.0) == runtime.updates[1]
    assert again.device.runtime.update(1.0) is None


def test_fitted_times_enter_the_costs_of_parameters_and_reshards() -> None:
    model, args = nn.Linear(8, 8), (torch.randn(8, 8),)
    cluster = tensoropt_torch.load_cluster("cpu")

    def fastest(runtime: Runtime) -> float:
        described = replace(cluster, device=replace(cluster.device, runtime=runtime))
        return tensoropt_torch.find_frontier(
            model, args, cluster=described, num_devices=1
        ).fastest.time_s

    base = fastest(Runtime(0.0, 0.0, (Update(2.0, 0.0, 1e-30),)))
    # A weight of 256 and a bias of 32 bytes.
    later = fastest(Runtime(0.0, 0.0, (Update(2.0, 0.5, 0.01),)))
    assert later - base == pytest.approx(2 * 0.5 + 0.01 * (256 + 32))
    assert fastest(Runtime(7.0, 0.0, (Update(2.0, 0.0, 1e-30),))) == pytest.approx(base)


def test_every_reshard_takes_its_fixed_time() -> None:
    model, args = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (torch.randn(8, 8),)
    cluster = tensoropt_torch.load_cluster("cpu")
    slow = replace(
        cluster, device=replace(cluster.device, runtime=Runtime(1.0, 0.0, (), "made up"))
    )
    captured = capture(model, args)
    plain, delayed = (
        make_space(captured, PlanningTask(captured, c).settings(2)) for c in (cluster, slow)
    )
    for seed in range(5):
        strategy = plain.random_strategy(seed)
        program = _C.RankProgram(plain, strategy, 0)
        count = 0
        for index in range(len(plain.edges())):
            reshard = program.reshard(index)
            count += bool(reshard.forward.steps) * (2 if reshard.saved == _C.Saved.REMADE else 1)
            count += bool(reshard.backward.steps)
        added = delayed.network_time(strategy) - plain.network_time(strategy)
        assert added == pytest.approx(count), seed
        assert count > 0, seed


def test_tables_name_the_errors() -> None:
    found = rows([1.0, 1.25])
    assert len(validation_table(found).rows) == 3
    text = validation_summary(found, "cpu")
    assert "Spearman" in text and "differ" not in text


def test_the_summary_quotes_the_noise() -> None:
    found = Validation(tuple(replace(row, spread=0.04) for row in rows([1.0] * 3).rows))
    text = validation_summary(found, "cpu")
    assert "two runs of the same strategy differ by 4.0%" in text
    assert "without" not in text
    disturbed = replace(found.rows[0], spread=0.5, measured_step_s=9.0)
    text = validation_summary(Validation((disturbed, *found.rows[1:])), "cpu")
    assert "without the 1 that differ by more than 25%" in text
    assert "mean error of the step time 100.0%" in text
