"""The trainers of Hugging Face and of Lightning under plans in stages, beside one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import GPT2LMHeadModel

from tests.distributed.harness import run_ranks
from tests.integrations import lightning_runs, test_lightning, test_transformers, trainers
from tests.integrations.models import largest_difference
from tests.integrations.test_transformers import EVERY_3, SGD
from tests.integrations.trainers import Job, Log

TWO = {"stages": 2, "micro_batches": 2}
GPIPE = {**TWO, "schedule": "gpipe"}
TIMEOUT_S = 300
SHORT = {"max_steps": 6, "eval_steps": 3}
JOBS = {
    "adam": Job("gpt2", stages=TWO, arguments={**SHORT, **EVERY_3}),
    "classification": Job("bert", stages={**TWO, "micro_batches": 4}, arguments=SGD),
    "casts": Job("bert", stages=TWO, arguments={**SGD, "bf16": True}),
    "adapters": Job(
        "lora",
        stages=TWO,
        arguments={**SGD, **EVERY_3, "learning_rate": 2.0, "load_best_model_at_end": True},
    ),
    "no training": Job("gpt2", kind="Evaluation", stages=TWO),
    "label smoothing": Job("gpt2", stages=GPIPE, arguments={**SGD, "label_smoothing_factor": 0.1}),
    "function of losses": Job("gpt2", kind="OwnLossFunction", stages=GPIPE, arguments=SGD),
    "loss": Job("bert", kind="OwnLoss", stages=GPIPE, arguments=SGD),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


def logs_of(jobs: dict[str, Job]) -> dict[str, Log]:
    """On two processes, which log the same."""
    first, second = run_ranks(2, "tests.integrations.trainers:our_runs", jobs, TIMEOUT_S)
    for name, log in second.items():
        names = [n for n in test_transformers.NAMES if test_transformers.column(log, n)]
        test_transformers.assert_equal(log, first[name], names)
    logs: dict[str, Log] = first
    return logs


@pytest.fixture(scope="module")
def few(folder: Path) -> dict[str, Log]:
    """A run in stages, one that goes on without, and one with a loss of its own."""
    jobs = {name: JOBS[name].on(2, folder / name) for name in FEW}
    middle = str(folder / "adam" / "checkpoint-3")
    without = replace(JOBS["adam"], stages={}).on(2, folder / "without")
    return logs_of({**jobs, "goes on": replace(without, resume_from=middle)})


@pytest.fixture(scope="module")
def many(folder: Path) -> dict[str, Log]:
    """The other jobs, and runs that go on in stages."""
    jobs = {name: job.on(2, folder / name) for name, job in JOBS.items() if name not in FEW}
    jobs["without"] = replace(JOBS["adam"], stages={}).on(2, folder / "other")
    middle = str(folder / "other" / "checkpoint-3")
    jobs["goes on in stages"] = replace(JOBS["adam"].on(2, folder / "goes on"), resume_from=middle)
    middle = str(folder / "adapters" / "checkpoint-3")
    jobs["adapters go on"] = replace(jobs["adapters"], resume_from=middle)
    return logs_of(jobs)


FEW = ("adam", "label smoothing")
GOES_ON = {"goes on": "adam", "goes on in stages": "adam", "adapters go on": "adapters"}
OF_MANY = [name for name in (*JOBS, *GOES_ON) if name not in (*FEW, "goes on")]


@pytest.mark.parametrize("name", [*FEW, "goes on"])
def test_trainers_train_as_in_one_process(few: dict[str, Log], folder: Path, name: str) -> None:
    check(few[name], folder, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_MANY)
def test_more_train_as_in_one_process(many: dict[str, Log], folder: Path, name: str) -> None:
    check(many[name], folder, name)


def check(log: Log, folder: Path, name: str) -> None:
    like = GOES_ON.get(name, name)
    expected = trainers.plain_run(JOBS[like].on(1, folder / f"plain {like}"))
    tolerance = 2e-2 if name == "casts" else test_transformers.CLOSE
    compared = [n for n in test_transformers.NAMES if test_transformers.column(expected, n)]
    after = 3 if name in GOES_ON else 0
    test_transformers.assert_equal(log, expected, compared, after, tolerance)
    if name == "adam":
        ours, theirs = (
            GPT2LMHeadModel.from_pretrained(folder / kind / "checkpoint-6")
            for kind in ("adam", "plain adam")
        )
        assert largest_difference(ours, theirs) < 1e-3


OPTIONS = test_lightning.OPTIONS
HERE = test_lightning.HERE


MODULE_OF = {"itself": "whole", "own loss": "logits"}  # of others: language


@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_lightning_trains_as_in_one_process(several: bool, tmp_path: Path) -> None:
    def job(name: str, **changes: object) -> lightning_runs.Job:
        given = {"ranks": 2, "options": OPTIONS, "stages": TWO, "epochs": 1, **changes}
        module = MODULE_OF.get(name, "language")
        return lightning_runs.Job(module, str(tmp_path / name), **given)  # type: ignore[arg-type]

    jobs = {"itself": job("itself"), "own loss": job("own loss", stages=GPIPE)}
    if several:
        jobs = {
            "parts": job("parts"),
            "one file": job("one file", strategy={"save_distributed_checkpoint": False}),
        }
        for name in [*jobs]:
            checkpoint = str(tmp_path / name / "epoch=0.ckpt")
            later = {"resume_from": checkpoint, "epochs": 2}
            jobs[f"{name} goes on"] = job(f"{name} on", **later)
            jobs[f"{name} goes on without"] = job(f"{name} on too", **later, stages={})
    of_ranks = run_ranks(2, f"{HERE}:our_runs", jobs, TIMEOUT_S)
    for name in jobs:
        goes_on = "goes on" in name
        plain = job(name, ranks=1, stages={}, epochs=2 if goes_on else 1)
        expected = lightning_runs.plain_run(replace(plain, folder=str(tmp_path / f"plain {name}")))
        names = test_lightning.LOSSES if name in MODULE_OF else test_lightning.NAMES
        for logs in of_ranks:
            test_lightning.assert_equal(logs[name], expected, names, int(goes_on))
