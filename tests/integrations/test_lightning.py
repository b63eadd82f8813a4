"""``TensorOptStrategy`` on several ranks does what Lightning does in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.integrations.lightning_modules import names_of_parts
from tests.distributed.harness import run_ranks
from tests.integrations.lightning_runs import (
    STEPS,
    Adversaries,
    Job,
    Language,
    Log,
    Parts,
    plain_run,
)

HERE = "tests.integrations.lightning_runs"
OPTIONS = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
LOSSES = ("loss", "val_loss")
NAMES = ("loss", "val_loss", "val_accuracy")
CLOSE = 1e-3  # rounding differences grow along a run of Adam; the loss falls by a third


def assert_equal(
    got: Log,
    expected: Log,
    names: tuple[str, ...] = NAMES,
    first_epoch: int = 0,
    tolerance: float = CLOSE,
) -> None:
    """Of these epochs nothing may be missing."""
    for name in names:
        ours, plain = (
            [row[name] for row in log if name in row and row["epoch"] >= first_epoch]
            for log in (got, expected)
        )
        assert plain and ours == pytest.approx(plain, rel=tolerance), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("language")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Log:
    return plain_run(Job("language", str(folder / "plain"), options=OPTIONS))


@pytest.fixture(scope="module")
def four(folder: Path) -> Log:
    job = Job("language", str(folder / "four"), 4, smallest=True, options=OPTIONS)
    first, *others = run_ranks(4, f"{HERE}:our_run", job, 200)
    for log in others:
        assert_equal(log, first)
    return first


def test_curve_and_metrics_are_those_of_one_process(plain: Log, four: Log) -> None:
    assert_equal(four, plain)
    losses = [row["loss"] for row in four if "loss" in row]
    assert len(losses) == 3 * STEPS and losses[-1] < 0.9 * losses[0]


def test_a_run_goes_on_under_another_plan_on_fewer_processes(
    plain: Log, four: Log, folder: Path
) -> None:
    checkpoint = str(folder / "four" / "epoch=0.ckpt")
    job = Job("language", str(folder / "two"), 2, resume_from=checkpoint, options=OPTIONS)
    for log in run_ranks(2, f"{HERE}:our_run", job, 200):
        assert len([row for row in log if "loss" in row]) == 2 * STEPS
        assert_equal(log, plain, first_epoch=1)


def test_micro_batches_are_as_one_batch(plain: Log, folder: Path) -> None:
    job = Job(
        "language", str(folder / "micro"), 2, smallest=True, max_micro_batches=4, options=OPTIONS
    )
    for log in run_ranks(2, f"{HERE}:our_run", job, 200):
        assert_equal(log, plain)


@pytest.mark.slow
def test_a_run_without_a_plan_goes_on_with_one(plain: Log, folder: Path) -> None:
    checkpoint = str(folder / "plain" / "epoch=1.ckpt")
    job = Job("language", str(folder / "on"), 2, resume_from=checkpoint, options=OPTIONS)
    for log in run_ranks(2, f"{HERE}:our_run", job, 200):
        assert_equal(log, plain, first_epoch=2)


@pytest.mark.parametrize(
    "precision", ["32-true", pytest.param("bf16-mixed", marks=pytest.mark.slow)]
)
def test_a_module_with_a_forward_of_its_own_computes_its_loss(
    tmp_path: Path, precision: str
) -> None:
    options = {"precision": precision}
    expected = plain_run(Job("parts", str(tmp_path / "plain"), epochs=1, options=options))
    job = Job("parts", str(tmp_path / "ours"), 2, epochs=1, options=options)
    # Under casts halves are rounded to 8 bits.
    for log, state in run_ranks(2, f"{HERE}:our_run_and_state", job, 200):
        tolerance = CLOSE if precision == "32-true" else 2e-2
        assert_equal(log, expected, ("loss", "val_loss"), tolerance=tolerance)
        assert state["names"] == list(Parts().state_dict())
        # Of the whole batch, as in one process.
        assert state["norm.num_batches_tracked"] == STEPS


@pytest.mark.parametrize(
    ("module", "given", "names"),
    [
        (Language, None, ["model"]),
        (Language, "model", ["model"]),
        (Parts, None, [""]),
        (Parts, "", [""]),
        (Parts, ["embedding", "norm", "head"], ["embedding", "norm", "head"]),
        (Adversaries, None, ["generator", "discriminator"]),
        (Adversaries, "", [""]),
    ],
)
def test_the_parts_that_have_all_parameters_are_found(
    module: Any, given: Any, names: list[str]
) -> None:
    assert names_of_parts(module(), given) == names


def test_parts_that_do_not_have_all_that_is_trained_are_refused() -> None:
    with pytest.raises(TensorOptError, match=r"module='head' .* embedding.weight, norm.weight, "):
        names_of_parts(Parts(), "head")
    with pytest.raises(TensorOptError, match="module='net' is not in Parts, which has embedding,"):
        names_of_parts(Parts(), "net")
    frozen = Parts()
    frozen.embedding.requires_grad_(False)
    frozen.norm.requires_grad_(False)
    assert names_of_parts(frozen, "head") == ["head"]
    with pytest.raises(TensorOptError, match=r"'model.transformer.wte' is inside of 'model'"):
        names_of_parts(Language(), ["model", "model.transformer.wte"])


def test_modules_with_optimizers_of_their_own_train_in_turns(tmp_path: Path) -> None:
    expected = plain_run(Job("adversaries", str(tmp_path / "plain"), epochs=2))
    first = Job("adversaries", str(tmp_path / "first"), 2, epochs=1)
    for log in run_ranks(2, f"{HERE}:our_run", first, 200):
        assert_equal([row for row in log if row["epoch"] == 0], expected[: len(log)], LOSSES)
    checkpoint = str(tmp_path / "first" / "epoch=0.ckpt")
    on = Job("adversaries", str(tmp_path / "on"), 2, epochs=2, resume_from=checkpoint)
    for log in run_ranks(2, f"{HERE}:our_run", on, 200):
        assert_equal(log, expected, LOSSES, first_epoch=1)


def test_batch_normalisation_is_planned_by_groups(tmp_path: Path) -> None:
    job = Job("language", str(tmp_path), strategy={"batch_norm_groups": 2})
    assert run_ranks(1, f"{HERE}:groups_planned_for", job, 100) == [2]
