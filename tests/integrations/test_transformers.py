"""``Trainer`` on several ranks does what ``transformers.Trainer`` does in one process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from tensoropt_torch.integrations import states
from tests.distributed.harness import run_ranks
from tests.integrations.models import largest_difference
from tests.integrations.trainers import STEPS, Job, Log, parts, plain_run

HERE = "tests.integrations.trainers"
HALF = STEPS // 2
SAVED = {"save_strategy": "steps", "save_steps": HALF}
STEP = ("loss", "grad_norm", "learning_rate")
EVALUATION = ("eval_loss", "eval_accuracy")
NAMES = (*STEP, *EVALUATION, "predictions", "count", "loss_of_all")
CLOSE = 1e-3  # rounding differences grow along a run of Adam; the loss falls by a third


def column(log: Log, name: str, after: int = 0) -> list[float]:
    return [float(row[name]) for row in log if name in row and row["step"] > after]


def assert_equal(
    got: Log,
    expected: Log,
    names: Sequence[str] = (*STEP, *EVALUATION),
    after: int = 0,
    tolerance: float = CLOSE,
) -> None:
    for name in names:
        wanted = column(expected, name, after)
        assert wanted and column(got, name, after) == pytest.approx(wanted, rel=tolerance), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt2")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Log:
    """GPT-2 in one process."""
    return plain_run(Job("gpt2", arguments=SAVED).on(1, folder / "plain"))


@pytest.fixture(scope="module")
def four(folder: Path) -> Log:
    """The same on four processes, with parameters that are split."""
    job = Job("gpt2", smallest=True, arguments=SAVED).on(4, folder / "four")
    first, *others = run_ranks(4, f"{HERE}:our_run", job, 200)
    for log in others:
        assert_equal(log, first)
    return first


def test_curve_and_metrics_are_those_of_one_process(plain: Log, four: Log) -> None:
    assert len(column(four, "loss")) == STEPS
    assert_equal(four, plain)


def test_a_saved_model_is_that_of_one_process(plain: Log, four: Log, folder: Path) -> None:
    for step in (HALF, STEPS):
        ours, theirs = (
            GPT2LMHeadModel.from_pretrained(folder / kind / f"checkpoint-{step}")
            for kind in ("four", "plain")
        )
        assert largest_difference(ours, theirs) < 1e-3


def test_a_run_goes_on_under_another_plan_on_fewer_processes(
    plain: Log, four: Log, folder: Path
) -> None:
    checkpoint = str(folder / "four" / f"checkpoint-{HALF}")
    job = Job("gpt2", resume_from=checkpoint).on(2, folder / "two")
    for log in run_ranks(2, f"{HERE}:our_run", job, 200):
        assert len(column(log, "loss", HALF)) == STEPS - HALF
        assert_equal(log, plain, after=HALF)


def test_a_plain_trainer_goes_on_with_a_run(plain: Log, four: Log, folder: Path) -> None:
    checkpoint = str(folder / "four" / f"checkpoint-{HALF}")
    log = plain_run(Job("gpt2", resume_from=checkpoint).on(1, folder / "plain goes on"))
    assert len(column(log, "loss", HALF)) == STEPS - HALF
    assert_equal(log, plain, after=HALF)


def test_states_that_are_not_whole_are_refused_by_a_plain_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    path = tmp_path / "optimizer.pt"
    for largest, refused in ((23, True), (28, False)):  # two moments, and a count
        monkeypatch.setattr(states, "LARGEST_WHOLE", largest)
        states.save_for_one_process(path, optimizer, 28)
        loaded = torch.optim.Adam([weight])
        with pytest.raises(ValueError, match="groups") if refused else nullcontext():
            loaded.load_state_dict(torch.load(path, weights_only=True))
            torch.testing.assert_close(loaded.state_dict(), optimizer.state_dict())


# Without a norm that hides it, the scale of gradients shows.
SGD = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "max_steps": 6, "eval_steps": 3}
EVERY_3 = {"save_strategy": "steps", "save_steps": 3}
# The model that is loaded at the end is not the last one.
WORST = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
# What is as in one process, on two processes.
JOBS = {
    "classification": Job("bert"),
    "label smoothing": Job("gpt2", arguments={**SGD, "label_smoothing_factor": 0.1}),
    "function of losses": Job("gpt2", kind="OwnLossFunction", arguments=SGD),
    "loss": Job("bert", kind="OwnLoss", arguments=SGD),
    "optimizer": Job("bert", kind="OwnOptimizer", arguments=SGD),
    "best model": Job("bert", arguments={**SGD, **EVERY_3, **WORST}),
    "adapters": Job("lora", smallest=True, arguments={**SGD, **EVERY_3, "learning_rate": 2.0}),
    "casts": Job("bert", arguments={**SGD, "bf16": True}),
    "micro-batches": Job("gpt2", smallest=True, arguments=SGD, planning={"max_micro_batches": 4}),
    "micro-batches of classification": Job(
        "bert", smallest=True, arguments=SGD, planning={"max_micro_batches": 2, "recompute": True}
    ),
    "no training": Job("gpt2", kind="Evaluation"),
    "no training, a loss of shares": Job(
        "gpt2", kind="Evaluation", arguments={"label_smoothing_factor": 0.1}
    ),
}
# What goes on, after which step.
RESUMED = {"adapters": 3, "dropout": 3}
DROPOUT = Job("gpt2_with_dropout", arguments={**SGD, **EVERY_3, "eval_strategy": "no"})


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, Log]:
    """The logs of all jobs, on each of two processes; those that go on have a ``+``."""
    jobs = {name: job.on(2, folder / name) for name, job in {**JOBS, "dropout": DROPOUT}.items()}
    for name, step in RESUMED.items():
        checkpoint = str(folder / name / f"checkpoint-{step}")
        jobs[f"{name}+"] = replace(jobs[name].on(2, folder / f"{name}+"), resume_from=checkpoint)
    first, second = run_ranks(2, f"{HERE}:our_runs", jobs, 500)
    for name, log in second.items():
        assert_equal(log, first[name], [n for n in NAMES if column(log, n)])
    logs: dict[str, Log] = first
    return logs


@pytest.mark.parametrize("name", JOBS)
def test_it_is_as_in_one_process(two: dict[str, Log], folder: Path, name: str) -> None:
    expected = plain_run(JOBS[name].on(1, folder / f"plain {name}"))
    # Under casts halves are rounded to 8 bits.
    tolerance = 2e-2 if name == "casts" else CLOSE
    compared = [n for n in NAMES if column(expected, n)]
    assert compared
    assert_equal(two[name], expected, compared, tolerance=tolerance)
    for step in (after for resumed, after in RESUMED.items() if resumed == name):
        assert_equal(two[f"{name}+"], expected, compared, after=step)


def test_weight_decay_is_for_the_same_parameters(tmp_path: Path) -> None:
    job = Job("gpt2", folder=str(tmp_path))
    plain = transformers.Trainer(**parts(job))
    expected = plain.get_decay_parameter_names(plain.model)
    assert not any("ln_1" in name for name in expected)  # known by their class alone
    assert run_ranks(1, f"{HERE}:names_with_decay", job, 100) == [expected]


def test_casts_change_the_curve(two: dict[str, Log], folder: Path) -> None:
    whole = plain_run(replace(JOBS["casts"].on(1, folder / "whole"), arguments=SGD))
    assert column(two["casts"], "loss") != pytest.approx(column(whole, "loss"), rel=1e-5)


def test_dropout_goes_on_as_if_the_run_had_not_been_interrupted(two: dict[str, Log]) -> None:
    after = column(two["dropout"], "loss", RESUMED["dropout"])
    assert len(after) == 3
    assert column(two["dropout+"], "loss", RESUMED["dropout"]) == after


def test_saved_adapters_are_those_of_one_process(two: dict[str, Log], folder: Path) -> None:
    ours, plain = (
        load_file(folder / kind / "checkpoint-6" / "adapter_model.safetensors")
        for kind in ("adapters", "plain adapters")
    )
    assert ours.keys() == plain.keys()
    for name, tensor in plain.items():
        assert torch.allclose(ours[name], tensor, atol=1e-5)


def test_batch_normalisation_is_planned_by_groups(tmp_path: Path) -> None:
    job = Job("gpt2").on(1, tmp_path)
    assert run_ranks(1, f"{HERE}:groups_planned_for", job, 100) == [2]
