"""Checkpoints that are written while a run goes on, and are never half."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from tensoropt_torch import Checkpoints, ParallelModule, TensorOptError
from tensoropt_torch.checkpoint import checkpoints
from tensoropt_torch.checkpoint.folder import CheckpointFolder
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tests.distributed.checkpoint.test_checkpoints import batch, parallel, small
from tests.distributed.harness import RankError, run_ranks

HERE = "tests.distributed.checkpoint.test_checkpoint_folder"
TOLERANCE = 1e-10  # relative, float64; sums are taken in another order


class Run:
    """A training that writes checkpoints."""

    def __init__(self, folder: Path, module: nn.Module, keep: int = 2) -> None:
        self.module = module
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.checkpoints: Any = None
        if isinstance(module, ParallelModule):
            self.checkpoints = Checkpoints(
                folder, module, self.optimizer, keep=keep, scheduler=self.scheduler
            )

    def steps(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            loss = self.module(*batch(step))
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            losses.append(float(loss.detach()))
        return losses


@dataclass
class Going:
    folder: Path
    dropout: float = 0.0


def run_and_save(going: Going) -> list[float]:
    run = Run(going.folder, parallel(small(dropout=going.dropout)))
    assert run.checkpoints.load() == 0
    run.steps(0, 1)
    run.checkpoints.save(1)
    run.steps(1, 2)
    run.checkpoints.save(2)  # what follows changes what is being written
    losses = run.steps(2, 4)
    run.checkpoints.wait()
    run.steps(4, 5)
    return losses


def run_on(going: Going) -> list[float]:
    point = "fastest" if dist.get_world_size() > 2 else "smallest"
    run = Run(going.folder, parallel(small(seed=1, dropout=going.dropout), point))
    assert run.checkpoints.load() == 2
    return run.steps(2, 4)


@pytest.mark.parametrize(("ranks", "dropout"), [(2, 0.5), (3, 0.0)])
def test_a_run_goes_on_from_what_was_there_when_saving_began(
    tmp_path: Path, ranks: int, dropout: float
) -> None:
    """On other numbers of devices each draws other numbers for its part."""
    going = Going(tmp_path, dropout)
    expected, *_ = run_ranks(2, f"{HERE}:run_and_save", going, 90)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2", "latest"]
    assert (tmp_path / "latest").read_text() == "2\n"
    for losses in run_ranks(ranks, f"{HERE}:run_on", going, 90):
        assert losses == pytest.approx(expected, rel=TOLERANCE)


# Kills

TOUCHING = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir")


def kill_at(folder: Path, count: int) -> Callable[[], int]:
    """From now on the process ends when it touches something in the folder the ``count``-th time.
    Returns what tells how often it did."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in TOUCHING and str(folder) in str(arguments[0]):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: seen


@dataclass
class Killed:
    folder: Path
    count: int
    rank: int = 0


def run_killed(killed: Killed) -> int:
    """Killed at a stage of saving; else, how many stages there are."""
    run = Run(killed.folder, parallel(small()), keep=1)
    run.steps(0, 1)
    run.checkpoints.save(1)
    run.checkpoints.wait()
    count = killed.count if dist.get_rank() == killed.rank else -1
    stages = kill_at(killed.folder, count)
    run.steps(1, 2)
    run.checkpoints.save(2)
    run.checkpoints.wait()
    return stages()


def run_checks(folders: list[Path]) -> list[str]:
    return [f"{path.name}: {text}" for path in folders for text in what_is_wrong(path)]


def what_is_wrong(folder: Path) -> list[str]:
    """With the checkpoints of a run that was killed while it wrote its second one."""
    wrong = []
    latest = CheckpointFolder(folder, 1).latest()
    if latest is None or latest.name not in ("1", "2"):
        return [f"latest is {latest}"]
    for step in CheckpointFolder(folder, 1).steps():
        (folder / "latest").write_text(f"{step}\n")
        run = Run(folder, parallel(small(seed=1)), keep=1)
        found, expected = run.checkpoints.load(), Run(folder, small())
        expected.steps(0, step)
        if found != step:
            wrong.append(f"'{step}' says {found}")
        if run.steps(step, step + 1) != pytest.approx(
            expected.steps(step, step + 1), rel=TOLERANCE
        ):
            wrong.append(f"'{step}' has other values")
    run.checkpoints.save(5)  # over whatever is left
    run.checkpoints.wait()
    if sorted(entry.name for entry in folder.iterdir()) != ["5", "latest"]:
        wrong.append(f"left: {sorted(entry.name for entry in folder.iterdir())}")
    return wrong


def killed_at(ranks: int, killed: Killed) -> int | None:
    """The stages that there are, if there are fewer."""
    stages: int | None = None
    with contextlib.suppress(RankError):
        stages = run_ranks(ranks, f"{HERE}:run_killed", killed, 60)[0]
    return stages


def test_killed_while_saving_the_latest_is_whole(tmp_path: Path) -> None:
    folders = [tmp_path / str(count) for count in (4, 15)]
    for folder in folders:
        assert killed_at(1, Killed(folder, int(folder.name))) is None
    assert run_ranks(1, f"{HERE}:run_checks", folders, 90) == [[]]


@pytest.mark.slow
def test_killed_at_every_stage_of_saving_the_latest_is_whole(tmp_path: Path) -> None:
    stages, folders = None, []
    while stages is None:
        folders.append(tmp_path / str(len(folders) + 1))
        stages = killed_at(1, Killed(folders[-1], len(folders)))
    assert stages == len(folders) - 1 >= 15
    assert run_ranks(1, f"{HERE}:run_checks", folders, 300) == [[]]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "count"), [(0, 3), (1, 1), (1, 3), (0, 9)])
def test_of_two_ranks_one_is_killed(tmp_path: Path, rank: int, count: int) -> None:
    assert killed_at(2, Killed(tmp_path, count, rank)) is None
    assert run_ranks(1, f"{HERE}:run_checks", [tmp_path], 90) == [[]]


# What is refused


def error_of(action: Callable[[], Any]) -> str:
    with pytest.raises(TensorOptError) as caught:
        action()
    return str(caught.value)


def run_refusals(folder: Path) -> dict[str, str]:
    run = Run(folder, parallel(small()))
    run.checkpoints.save(1)
    run.checkpoints.wait()
    module, optimizer = run.module, run.optimizer
    assert isinstance(module, ParallelModule)
    found = {
        "give a whole number from 1": error_of(
            lambda: Checkpoints(folder, module, optimizer, keep=0)
        ),
        "which has no state_dict": error_of(
            lambda: Checkpoints(folder, module, optimizer, other=3)  # type: ignore[arg-type]
        ),
        "give a whole number from 0": error_of(lambda: run.checkpoints.save(-1)),
        "has ['scheduler'] besides": error_of(
            lambda: Checkpoints(folder, module, optimizer).load()
        ),
        "cannot be written": error_of(
            lambda: Checkpoints(folder / "1" / "run.json", module, optimizer).save(2)
        ),
    }
    dist.barrier()
    limit_files(1000)
    run.checkpoints.save(2)
    found["could not be written"] = error_of(run.checkpoints.wait)
    limit_files(resource.RLIM_INFINITY)
    assert run.checkpoints.load() == 1  # what was whole is
    run.checkpoints.save(3)
    run.checkpoints.wait()
    if dist.get_rank() == 0:
        for path in (folder / "3").glob("*.distcp"):
            path.write_bytes(path.read_bytes()[:-40])
    dist.barrier()
    found["cannot be loaded"] = error_of(run.checkpoints.load)
    return found


def limit_files(most: int) -> None:
    """As a disk that is full: files of this process get no larger."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def test_what_cannot_be_written_or_read_is_one_error_on_all_ranks(tmp_path: Path) -> None:
    for found in run_ranks(2, f"{HERE}:run_refusals", tmp_path, 90):
        for words, text in found.items():
            assert words in text
            assert "Traceback" not in text


@pytest.mark.parametrize("text", ["", "7\n", "../1\n", "\u0661", "x" * 100])
def test_a_latest_that_names_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "latest").write_text(text)
    with pytest.raises(TensorOptError, match=r"which is no checkpoint in .* one of \[1\]"):
        CheckpointFolder(tmp_path, 1).latest()


def test_without_a_latest_the_newest_counts(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none", 1).latest() is None
    for name in ("9", "10", ".11.unfinished"):
        (tmp_path / name).mkdir()
    assert CheckpointFolder(tmp_path, 1).latest() == tmp_path / "10"


LATE = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 15000ms")
GONE = OSError("No such file")


@pytest.mark.parametrize(
    ("failures", "kind", "words"),
    [
        ({1: LATE}, LostRanksError, "Timed out"),
        (
            {0: LATE, 2: GONE, 3: GONE},
            TensorOptError,
            "it fails: rank 2: OSError: No such file; do",
        ),
        (LATE, LostRanksError, "Timed out"),
        (GONE, TensorOptError, "it fails: OSError: No such file; do"),
    ],
)
def test_ranks_that_did_not_come_are_no_fault_of_the_checkpoint(
    failures: dict[int, Exception] | Exception, kind: type[TensorOptError], words: str
) -> None:
    """What a rank met itself is said before what it waited for."""
    error: BaseException
    if isinstance(failures, dict):
        met = {rank: (cause, StackSummary()) for rank, cause in failures.items()}
        error = CheckpointException("load", met)
    else:
        error = failures
    told = checkpoints._in_words(error, "it fails", "do")
    assert type(told) is kind and words in str(told)
