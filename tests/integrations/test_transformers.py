"""``Trainer`` on several ranks does what ``transformers.Trainer`` does in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from tests.distributed.harness import run_ranks
from tests.integrations.models import largest_difference
from tests.integrations.trainers import STEPS, Job, Log, plain_evaluation, plain_run

HERE = "tests.integrations.trainers"
HALF = STEPS // 2
SAVED = {"save_strategy": "steps", "save_steps": HALF}
# What is compared: of training steps, and of evaluations.
STEP = ("loss", "grad_norm", "learning_rate")
EVALUATION = ("eval_loss", "eval_accuracy")
CLOSE = 1e-3  # rounding differences grow along a run of Adam; the loss falls by a third


def column(log: Log, name: str, after: int = 0) -> list[float]:
    return [float(row[name]) for row in log if name in row and row["step"] > after]


def assert_equal(got: Log, expected: Log, names: tuple[str, ...], after: int = 0) -> None:
    for name in names:
        wanted = column(expected, name, after)
        assert wanted and column(got, name, after) == pytest.approx(wanted, rel=CLOSE), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt2")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Log:
    """GPT-2 in one process."""
    return plain_run(Job("gpt2", str(folder / "plain"), arguments=SAVED))


@pytest.fixture(scope="module")
def four(folder: Path) -> Log:
    """The same on four processes, with parameters that are split."""
    job = Job("gpt2", str(folder / "four"), ranks=4, smallest=True, arguments=SAVED)
    first, *others = run_ranks(4, f"{HERE}:our_run", job, 200)
    for log in others:
        assert_equal(log, first, (*STEP, *EVALUATION))
    return first


def test_curve_and_metrics_are_those_of_one_process(plain: Log, four: Log) -> None:
    assert len(column(four, "loss")) == STEPS
    assert_equal(four, plain, (*STEP, *EVALUATION))


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
    job = Job("gpt2", str(folder / "two"), ranks=2, resume_from=checkpoint)
    for log in run_ranks(2, f"{HERE}:our_run", job, 200):
        assert len(column(log, "loss", HALF)) == STEPS - HALF
        assert_equal(log, plain, (*STEP, *EVALUATION), after=HALF)


def test_classification_is_that_of_one_process(tmp_path: Path) -> None:
    expected = plain_run(Job("bert", str(tmp_path / "plain")))
    for log in run_ranks(2, f"{HERE}:our_run", Job("bert", str(tmp_path / "ours"), 2), 200):
        assert_equal(log, expected, (*STEP, *EVALUATION))


# Without a norm that hides it, the scale of gradients shows.
SGD = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "max_steps": 6, "eval_steps": 3}


# The model that is loaded at the end is not the last one.
WORST = {
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "greater_is_better": True,
    "save_strategy": "steps",
    "save_steps": 3,
}


def other_jobs(folder: Path, ranks: int) -> list[Job]:
    """Losses that are computed outside of the model, optimizers of the user, the model that
    was best."""
    smoothing = {**SGD, "label_smoothing_factor": 0.1}
    return [
        Job("gpt2", str(folder), ranks, arguments=smoothing),
        Job("gpt2", str(folder), ranks, kind="OwnLossFunction", arguments=SGD),
        Job("bert", str(folder), ranks, kind="OwnLoss", arguments=SGD),
        Job("bert", str(folder), ranks, kind="OwnOptimizer", arguments=SGD),
        Job("bert", str(folder), ranks, arguments={**SGD, **WORST}),
    ]


def test_what_users_bring_along_works_as_in_one_process(tmp_path: Path) -> None:
    expected = [plain_run(job) for job in other_jobs(tmp_path / "plain", 1)]
    for logs in run_ranks(2, f"{HERE}:our_runs", other_jobs(tmp_path / "ours", 2), 200):
        for got, plain in zip(logs, expected, strict=True):
            assert_equal(got, plain, (*STEP, *EVALUATION))


def test_dropout_goes_on_as_if_the_run_had_not_been_interrupted(tmp_path: Path) -> None:
    short = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "eval_strategy": "no"}
    whole = Job("gpt2_with_dropout", str(tmp_path / "whole"), 2, arguments=short)
    resumed = replace(whole, folder=str(tmp_path / "b"), resume_from=f"{whole.folder}/checkpoint-4")
    for first, second in run_ranks(2, f"{HERE}:our_runs", [whole, resumed], 200):
        assert column(first, "loss", 4) == column(second, "loss", 4)
        assert len(column(second, "loss", 4)) == 4


def test_adapters_are_trained_saved_and_resumed(tmp_path: Path) -> None:
    saved = {**SGD, "learning_rate": 2.0, "save_strategy": "steps", "save_steps": 3}
    expected = plain_run(Job("lora", str(tmp_path / "plain"), arguments=saved))
    whole = Job("lora", str(tmp_path / "ours"), 2, smallest=True, arguments=saved)
    resumed = Job("lora", str(tmp_path / "b"), 2, f"{whole.folder}/checkpoint-3", arguments=saved)
    for first, second in run_ranks(2, f"{HERE}:our_runs", [whole, resumed], 200):
        assert_equal(first, expected, (*STEP, *EVALUATION))
        assert_equal(second, expected, (*STEP, *EVALUATION), after=3)
    ours, plain = (
        load_file(tmp_path / kind / "checkpoint-6" / "adapter_model.safetensors")
        for kind in ("ours", "plain")
    )
    assert ours.keys() == plain.keys()
    for name, tensor in plain.items():
        assert torch.allclose(ours[name], tensor, atol=1e-5)


def test_mixed_precision_is_that_of_one_process(tmp_path: Path) -> None:
    bf16 = {**SGD, "bf16": True}
    expected = plain_run(Job("bert", str(tmp_path / "plain"), arguments=bf16))
    whole = plain_run(Job("bert", str(tmp_path / "float32"), arguments=SGD))
    assert column(expected, "loss") != column(whole, "loss")
    for log in run_ranks(2, f"{HERE}:our_run", Job("bert", str(tmp_path), 2, arguments=bf16), 200):
        for name in (*STEP, "eval_loss"):
            # Sums of halves are rounded to 8 bits.
            assert column(log, name) == pytest.approx(column(expected, name), rel=2e-2), name


def test_evaluation_needs_no_training(tmp_path: Path) -> None:
    expected = plain_evaluation(Job("gpt2", str(tmp_path / "plain")))
    for got in run_ranks(2, f"{HERE}:our_evaluation", Job("gpt2", str(tmp_path / "ours"), 2), 200):
        assert got == pytest.approx(expected, rel=1e-4)
