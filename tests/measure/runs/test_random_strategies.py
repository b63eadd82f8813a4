"""Validation on the running job: within a budget, on all ranks alike, and not twice."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import TensorOptError, ValidationOptions, measure
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure import Validation
from tensoropt_torch.measure.kept.strategies import FILE, KeptStrategy, StrategyStore
from tensoropt_torch.measure.runs import random_strategies
from tensoropt_torch.measure.runs.training import WARM_UPS, Training
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tensoropt_torch.space.op_records import work_record
from tensoropt_torch.space.search_space import make_space, varied_strategy
from tests.distributed.harness import run_ranks
from tests.measure.logged import logged_warnings

HERE = "tests.measure.runs.test_random_strategies"
ROWS, WIDTH = 8, 16


def mlp(width: int = WIDTH) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    layers = (nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 8))
    return nn.Sequential(*layers), (torch.randn(ROWS, width),)


def sum_of(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def validated(options: ValidationOptions, width: int = WIDTH, **arguments: Any) -> Validation:
    model, args = mlp(width)
    return tensoropt_torch.validate(
        model, args, loss_fn=sum_of, measure=False, options=options, **arguments
    )


def count_steps() -> list[int]:
    """Grows by one whenever a step is timed, on a machine that is always calm."""
    random_strategies.Reference = lambda _: lambda: 1.0
    steps: list[int] = []
    timed = Training._timed_step

    def counted(*args: Any) -> Any:
        steps.append(1)
        return timed(*args)

    Training._timed_step = counted
    return steps


# --- Budget --------------------------------------------------------------------


def slow_on_one_rank(home: str) -> tuple[Validation, list[int], list[tuple[int, int]], float]:
    """Steps take 0.15 s, on rank 1 only."""
    os.environ["TENSOROPT_HOME"] = home
    roots_of = Training._roots

    def late(training: Training) -> list[torch.Tensor]:
        if dist.get_rank() == 1:
            time.sleep(0.15)
        return roots_of(training)

    Training._roots = late
    steps = count_steps()
    seen: list[tuple[int, int]] = []
    start = time.monotonic()
    found = validated(
        ValidationOptions(strategies=20, budget_s=5.0, simulate=False),
        progress=lambda done, total: seen.append((done, total)),
    )
    return found, steps, seen, time.monotonic() - start


def test_a_budget_ends_on_all_ranks_alike(tmp_path: Path) -> None:
    """20 strategies of 2 passes would take more than 40 s."""
    first, second = run_ranks(2, f"{HERE}:slow_on_one_rank", str(tmp_path))
    found, steps, seen, took_s = first
    assert (found, steps, seen) == second[:3]
    assert found.asked == 20
    assert 2 <= len(found.rows) < 20
    assert [row.seed for row in found.rows] == list(range(len(found.rows)))
    assert all(row.measured_step_s > 0.1 for row in found.rows)
    assert seen[-1] == (len(found.rows), 40)
    assert 4.5 < took_s < 12  # with the capture, on a busy machine


def nothing_runs(home: str) -> tuple[list[str], str, Validation]:
    os.environ["TENSOROPT_HOME"] = home
    model, args = mlp()
    none = ValidationOptions(4, budget_s=0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = tensoropt_torch.find_strategy(
            model, args, loss_fn=sum_of, measure=False, memory_limit=1e9, validate=none
        )
    source = plan.settings.cluster["device"]["source"]
    return [str(w.message) for w in caught], source, validated(none)


def test_too_little_time_leaves_predictions_as_they_are(tmp_path: Path) -> None:
    (messages, source, found), (others, _, _) = run_ranks(2, f"{HERE}:nothing_runs", str(tmp_path))
    (message,) = [text for text in messages if "not scaled" in text]
    assert "0 of 4 strategies could be run within 0 s" in message
    assert not any("not scaled" in text for text in others)
    assert "times of steps" not in source
    assert found == Validation((), 4)


def wrong_options(_: None) -> list[str]:
    messages = []
    for options in (
        ValidationOptions(2, budget_s=5.0 + dist.get_rank()),
        ValidationOptions(2, budget_s=-1.0),
    ):
        with pytest.raises(TensorOptError) as caught:
            validated(options)
        messages.append(str(caught.value))
    return messages


def test_wrong_options_are_an_error_on_all_ranks() -> None:
    for messages in run_ranks(2, f"{HERE}:wrong_options"):
        assert "the validation differs between ranks" in messages[0]
        assert "budget_s=5.0" in messages[0] and "budget_s=6.0" in messages[0]
        assert "budget_s = -1.0 is not allowed" in messages[1]
        assert "None for no limit" in messages[1]


class StayedAwayError(Exception):
    pass


def one_rank_stays_away(folder: str) -> str:
    """Rank 1 does nothing in its first step, until rank 0 has given up."""
    rank, given_up = dist.get_rank(), Path(folder) / "given_up"
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=10),
    )

    def stuck(_: Training) -> list[torch.Tensor]:
        while not given_up.exists():
            time.sleep(0.05)
        raise StayedAwayError

    if rank == 1:
        Training._roots = stuck
    with pytest.raises(LostRanksError if rank == 0 else StayedAwayError) as caught:
        validated(ValidationOptions(2, budget_s=2.0, simulate=False))
    given_up.touch()
    return str(caught.value)


def test_a_rank_that_stays_away_is_given_up_as_its_group_says(tmp_path: Path) -> None:
    message, _ = run_ranks(2, f"{HERE}:one_rank_stays_away", str(tmp_path), 90)
    assert "imed out" in message


# --- Strategies that were run before -------------------------------------------


def measured(found: Validation) -> list[tuple[int, float, float, float, float | None]]:
    return [
        (
            row.seed,
            row.measured_step_s,
            row.measured_network_s,
            row.measured_memory_bytes,
            row.spread,
        )
        for row in found.rows
    ]


def run_again(home: str) -> dict[str, Any]:
    os.environ["TENSOROPT_HOME"] = home
    steps = count_steps()
    seen: dict[str, Any] = {}

    def run(name: str, options: ValidationOptions, width: int = WIDTH) -> Validation:
        before = len(steps)
        found = validated(options, width)
        seen[name] = len(steps) - before
        return found

    three = ValidationOptions(3, steps=2, passes=1, budget_s=None)
    first = run("first", three)
    again = run("again", three)
    assert again == first
    more = run("more", replace(three, strategies=5, budget_s=30.0))
    assert measured(more)[:3] == measured(first)
    run("more passes", replace(three, passes=2))
    run("another model", three, 2 * WIDTH)
    run("own optimizer", replace(three, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1)))
    fresh = run("fresh", replace(three, fresh=True))
    assert measured(fresh) != measured(first)
    kept = run("kept", replace(three, strategies=5))
    assert measured(kept) == [*measured(fresh), *measured(more)[3:]]
    seen["rows"] = measured(kept)
    return seen


def test_strategies_are_run_once(tmp_path: Path) -> None:
    """Of the same model under the same settings; others are run, and those that are
    missing."""
    first, second = run_ranks(2, f"{HERE}:run_again", str(tmp_path))
    assert first == second
    # The first pass needs no steps that warm up, since memory was measured before.
    assert first["first"] == 3 * 2
    assert first["again"] == 0
    assert first["more"] == 2 * 2
    assert first["more passes"] == 3 * 2 + 3 * (WARM_UPS + 2)
    assert first["another model"] == first["own optimizer"] == first["fresh"] == 3 * 2
    assert first["kept"] == 0


@dataclass
class InMicroBatches:
    """Numbers of micro-batches that ran, in one validation after the other."""

    first: list[int]
    again: list[int]
    of_whole_batches: list[int]
    found: Validation


def in_micro_batches(home: str) -> InMicroBatches:
    os.environ["TENSOROPT_HOME"] = home
    random_strategies.Reference = lambda _: lambda: 1.0
    counts: list[int] = []
    times = Training.times

    def counted(training: Training, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(training.module, ParallelModule)
        counts.append(training.module.plan.settings.micro_batches)
        return times(training, *args, **kwargs)

    Training.times = counted  # type: ignore[method-assign]
    options = ValidationOptions(5, steps=1, passes=1, budget_s=None)

    def run(**arguments: Any) -> tuple[list[int], Validation]:
        counts.clear()
        found = validated(options, **arguments)
        return list(counts), found

    first, found = run(max_micro_batches=4)
    again, same = run(max_micro_batches=4)
    assert same == found
    return InMicroBatches(first, again, run()[0], found)


def test_strategies_of_all_numbers_of_micro_batches_are_run_in_turn(tmp_path: Path) -> None:
    first, second = run_ranks(2, f"{HERE}:in_micro_batches", str(tmp_path))
    assert first == second
    assert first.first == [1, 2, 4, 1, 2]
    assert first.again == []
    assert first.of_whole_batches == [1] * 5
    assert all(row.simulated_bytes and row.measured_step_s > 0 for row in first.found.rows)


def other_costs(home: str) -> tuple[list[float], list[float]]:
    """After a call of every strategy has been measured to take a second."""
    os.environ["TENSOROPT_HOME"] = home
    model, args = mlp()
    task = PlanningTask(capture(model, args, loss_fn=sum_of), load_cluster("cpu"))
    options = ValidationOptions(2, steps=1, passes=1, budget_s=None, simulate=False)
    validate = partial(measure.validate, model, batch=(args, {}), device=torch.device("cpu"))
    found = validate(task, options=options)
    space = make_space(task.captured, task.settings(2))
    strategies = [varied_strategy(space, seed) for seed in range(2)]
    call = space.estimates(strategies[0])[0]
    row = space.local_call(call.node, strategies[0].config[call.node])
    operator = (row.key, row.family, work_record(row.work), 1.0, 0.0)
    slower = replace(task, operators=(operator,), measured_on=2)
    again = validate(slower, options=replace(options, simulate=True))
    assert measured(again) == measured(found)
    assert [row.simulated_bytes for row in found.rows] == [None, None]
    assert all(row.simulated_bytes for row in again.rows)
    space = make_space(slower.captured, slower.settings(2))
    expected = [space.compute_time(s) + space.network_time(s) for s in strategies]
    return [row.step_s for row in again.rows], expected


def test_what_was_kept_is_predicted_by_the_costs_of_now(tmp_path: Path) -> None:
    for predicted, expected in run_ranks(2, f"{HERE}:other_costs", str(tmp_path)):
        assert predicted == pytest.approx(expected)
        assert predicted[0] > 1.0


def damaged(home: str) -> tuple[list[str], int]:
    os.environ["TENSOROPT_HOME"] = home
    options = ValidationOptions(2, steps=1, passes=1, budget_s=None, simulate=False)
    validated(options)
    if dist.get_rank() == 0:
        (path,) = Path(home).glob("strategies/*.json")
        path.write_text(path.read_text().replace('"step_s": ', '"step_s": 1'))
    steps = count_steps()
    with logged_warnings() as messages:
        validated(options)
    return messages, len(steps)


def test_a_damaged_file_is_not_believed(tmp_path: Path) -> None:
    (messages, steps), (others, _) = run_ranks(2, f"{HERE}:damaged", str(tmp_path))
    assert any("is damaged: its checksum is wrong" in text for text in messages)
    assert any("strategies are run again" in text for text in messages)
    assert others == []
    assert steps == 2


# --- The file ------------------------------------------------------------------

KEPT = KeptStrategy(3, 10.0, ("b0,n", "k,n"), ((1, "before"),), 0.5, 0.1, 20.0, None, 30.0)


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    store = StrategyStore({"model": "a", "steps": 5})
    assert store.load() == {}
    other = replace(KEPT, seed=1, spread=0.25, simulated_bytes=None)
    store.save([KEPT, other])
    assert StrategyStore({"steps": 5, "model": "a"}).load() == {1: other, 3: KEPT}
    assert StrategyStore({"model": "b", "steps": 5}).load() == {}


def test_files_of_something_else_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSOROPT_HOME", str(tmp_path))
    mine, other = StrategyStore({"model": "a"}), StrategyStore({"model": "b"})
    other.save([KEPT])
    mine.path.write_text(other.path.read_text())
    with pytest.raises(TensorOptError, match="it is of other conditions"):
        mine.load()
    mine.path.write_text(FILE.seal({"conditions": mine.path.stem, "strategies": [{"seed": 1}]}))
    with pytest.raises(TensorOptError, match=r"key 'strategies.*' is missing"):
        mine.load()
    mine.save([replace(KEPT, step_s=0.0)])
    with pytest.raises(TensorOptError, match=r"step_s = 0.0 is not allowed"):
        mine.load()
