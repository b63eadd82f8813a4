"""A fault, the job that it is put into, and what has to follow of it.

No process outlives the limit. Survivors end with a message that names a rank and the cause, or go
on. What has a name is whole, and nothing that was said to be saved is lost. The next start goes on
from there, with the losses of a job without a fault.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tests.distributed.faults.injected import ACTIONS
from tests.distributed.faults.job import EVERY, STAGES, STEPS
from tests.distributed.faults.runs import Job, Process, Server

SHARED = "shared cache"
KINDS = (*ACTIONS, SHARED)
HARMLESS = ("slow rank", "broken cache", "clock jump", SHARED)
OF_DISKS = ("full disk", "read-only folder")
TOLERANCE = 1e-10  # relative, float64; sums may be taken in another order
COLD, WARM, RESUMED = "cold", "warm", "resumed"  # kept: nothing; measurements; a checkpoint, too
SHARE = 0.95  # of the calls of a stage, that a fault comes within: their number varies a little
# A survivor's words for what happened; that which it is likely, or what it has seen itself.
WORDS = {
    "kill": ("was killed", "does not answer", "closed", "reset", "left out", "busy"),
    "stop": ("busy with something else", "time", "left out"),
    "exception": ("InjectedError", "closed", "reset", "failed"),
    "connection dropped": ("onnection", "closed", "reset", "time"),
    "full disk": ("cannot be written", "could not be written", "File too large"),
    "read-only folder": ("cannot be written", "could not be written", "Read-only"),
}


@dataclass(frozen=True)
class Case:
    """All of it from the seed: seeds in turn have all kinds at all stages."""

    seed: int
    kind: str
    stage: str
    start: str
    ranks: int
    rank: int
    share: float
    where: str  # the folder of a disk's fault: "run" or "home"

    @staticmethod
    def of(seed: int) -> Case:
        draw = random.Random(seed)
        kind, stage = KINDS[seed % len(KINDS)], STAGES[seed // len(KINDS) % len(STAGES)]
        start = {"load": RESUMED, "plan": draw.choice((COLD, WARM))}.get(
            stage, draw.choice((WARM, WARM, RESUMED))
        )
        ranks = draw.choice((2, 2, 2, 3, 4))
        where = {"broken cache": "home", "full disk": "run"}.get(kind, draw.choice(("run", "home")))
        return Case(seed, kind, stage, start, ranks, draw.randrange(ranks), draw.random(), where)

    @property
    def everywhere(self) -> bool:
        """Whether all ranks have it, as of one machine."""
        return self.kind == "read-only folder"


@dataclass(frozen=True)
class Expected:
    """Of a job without a fault."""

    losses: Mapping[int, float]
    norms: Sequence[float]
    counts: Sequence[Mapping[str, int]]  # of calls, by rank


@dataclass
class Outcome:
    """What followed of a fault."""

    case: Case
    wrong: list[str] = field(default_factory=list)
    reached: str = ""  # the function that it came in; empty: it did not come
    how: str = ""  # "went on" or "ended"
    seconds: float | None = None  # from the fault until the last survivor had ended
    message: str = ""  # of a survivor
    saved: int = 0  # the last step whose checkpoint was said to be whole
    began: int | None = None  # the step from which the next start went on

    def row(self) -> dict[str, Any]:
        """For the table."""
        case = self.case
        return {
            "seed": case.seed,
            "fault": case.kind,
            "stage": case.stage,
            "start": case.start,
            "processes": case.ranks,
            "rank": case.rank,
            "in": self.reached,
            "how": self.how,
            "seconds": self.seconds,
            "message": self.message,
            "next_start_at_step": self.began,
            "wrong": self.wrong,
        }


class Faults:
    """Runs cases in folders of its own.

    Args:
        folder: is kept until the caller deletes it.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._expected: dict[tuple[str, int], Expected] = {}

    def run(self, case: Case) -> Outcome:
        expected = self._of(case.start, case.ranks)
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            place = Path(name)
            self._prepare(place, case)
            if case.kind == SHARED:
                return self._run_shared(case, place, expected)
            (found,) = self._server.run(self._job(place, case, expected))
            outcome = _outcome(case, found, expected, str(place))
            self._go_on(place, case, expected, outcome)
        return outcome

    def _run_shared(self, case: Case, place: Path, expected: Expected) -> Outcome:
        """Two jobs with one folder of measurements; each goes on in its own."""
        jobs = [
            _job(place / run, place / "home", case.ranks, delay_s=delay_s)
            for run, delay_s in (("run", 0.0), ("other", 4 * case.share))
        ]
        if (place / "run").exists():
            shutil.copytree(place / "run", place / "other")
        outcome = Outcome(case, reached="a second job", how="went on")
        for found in self._server.run(*jobs):
            outcome.wrong += list(_goes_well(found, expected))
        self._go_on(place, case, expected, outcome)
        return outcome

    def _job(self, place: Path, case: Case, expected: Expected) -> Job:
        def fault(rank: int) -> dict[str, Any] | None:
            if rank != case.rank and not case.everywhere:
                return None
            number = 1 + int(case.share * SHARE * expected.counts[rank].get(case.stage, 0))
            folder = str(place / case.where)
            own = {"kind": case.kind, "stage": case.stage, "number": number}
            return {**own, "seed": case.seed, "folder": folder}

        return _job(place / "run", place / "home", case.ranks, faults=fault)

    def _go_on(self, place: Path, case: Case, expected: Expected, outcome: Outcome) -> None:
        """The next start."""
        outcome.wrong += list(_not_whole(place / "run"))
        (found,) = self._server.run(_job(place / "run", place / "home", case.ranks))
        outcome.began = found[0].last("began")
        outcome.wrong += [f"next start: {text}" for text in _goes_well(found, expected)]
        if outcome.began is not None and outcome.began < outcome.saved:
            outcome.wrong.append(
                f"step {outcome.saved} was saved, but the next start is at {outcome.began}"
            )

    def _prepare(self, place: Path, case: Case) -> None:
        if case.start != COLD:
            shutil.copytree(self._kept(case.ranks) / "home", place / "home")
        if case.start == RESUMED:
            shutil.copytree(self._kept(case.ranks) / "run", place / "run")
        (place / "home").mkdir(exist_ok=True)
        (place / "run").mkdir(exist_ok=True)

    def _kept(self, ranks: int) -> Path:
        """Folders of a job that has made some steps."""
        kept = self._folder / f"kept{ranks}"
        if not kept.exists():
            (found,) = self._server.run(_job(kept / "run", kept / "home", ranks, steps=EVERY))
            assert all(process.status == 0 for process in found), found[0].output
        return kept

    def _of(self, start: str, ranks: int) -> Expected:
        """What a job does without a fault. From its beginning: steps that a job which goes on
        does not make are those of one that does."""
        key = start, ranks
        if key not in self._expected:
            case = Case(0, "kill", "step", start, ranks, 0, 0.0, "run")
            with tempfile.TemporaryDirectory(dir=self._folder) as name:
                place = Path(name)
                self._prepare(place, case)
                job = _job(place / "run", place / "home", ranks, counts=True)
                (found,) = self._server.run(job)
            assert all(process.status == 0 for process in found), found[0].output
            losses = found[0].losses()
            if start == RESUMED:
                losses = {**self._of(WARM, ranks).losses, **losses}
            counts = [process.last("counts") for process in found]
            self._expected[key] = Expected(losses, found[0].last("norms"), counts)
        return self._expected[key]


def _job(
    run: Path,
    home: Path,
    ranks: int,
    *,
    steps: int = STEPS,
    delay_s: float = 0.0,
    counts: bool = False,
    faults: Callable[[int], dict[str, Any] | None] = lambda rank: None,
) -> Job:
    own = {"folder": str(run), "steps": steps, "counts": counts}
    of_ranks = [{**own, "fault": faults(rank)} for rank in range(ranks)]
    return Job(of_ranks, {"TENSOROPT_HOME": str(home)}, delay_s)


def _outcome(case: Case, found: Sequence[Process], expected: Expected, place: str) -> Outcome:
    """Of the job with the fault."""
    outcome = Outcome(case)
    told = [p for p in found if p.last("fault")]
    outcome.saved = max(p.last("saved", 0) for p in found)
    if told:
        outcome.reached = told[0].last("where")
        begin_s = min(event["at"] for p in told for event in p.says if "fault" in event)
    others = [p for p in found if case.everywhere or p.rank != case.rank]
    if told:
        outcome.seconds = round(max(p.ended_s for p in others) - begin_s, 1)
    lasting = [p for p in found if p.was_ended and p.last("fault") != "stop"]
    outcome.wrong += [f"rank {p.rank} did not end: {p.output[-300:]}" for p in lasting]
    if all(p.status == 0 for p in others):
        outcome.how = "went on"
        ended = case.kind in ("kill", "stop", "exception")
        outcome.wrong += _goes_well(others if ended else found, expected)
        return outcome
    outcome.how = "ended"
    if not told or case.kind in HARMLESS or (case.kind in OF_DISKS and case.where == "home"):
        first = next(p for p in others if p.status != 0)
        outcome.wrong.append(f"rank {first.rank} ended: {first.output[-2000:]}")
    failed = [p for p in others if p.status != 0]
    outcome.message = failed[0].message.replace(place, "...")[:600]
    outcome.wrong += [text for process in failed for text in _not_told(case, process)]
    return outcome


def _not_told(case: Case, process: Process) -> Iterator[str]:
    """What is wrong with the error of a survivor."""
    text, end = process.message, process.output[-2000:]
    if not text.startswith("tensoropt_torch."):
        yield f"not our error: {end}"
    elif not any(word in text for word in WORDS.get(case.kind, ())):
        yield f"does not say why: {end}"
    elif case.kind not in OF_DISKS and f"rank {case.rank}" not in text:
        yield f"does not name rank {case.rank}: {end}"


def _goes_well(found: Sequence[Process], expected: Expected) -> Iterator[str]:
    for process in found:
        if process.status != 0:
            yield f"rank {process.rank} ended with {process.status}: {process.output[-1500:]}"
            continue
        for step, loss in process.losses().items():
            if not math.isclose(loss, expected.losses[step], rel_tol=TOLERANCE):
                right = expected.losses[step]
                yield f"rank {process.rank}: loss {loss} of step {step}, not {right}"
        norms = process.last("norms", [])
        if not all(
            math.isclose(a, b, rel_tol=1e-8) for a, b in zip(norms, expected.norms, strict=True)
        ):
            yield f"rank {process.rank}: norms {norms}, not {expected.norms}"


def _not_whole(run: Path) -> Iterator[str]:
    """Checkpoints that have a name and cannot be read."""
    steps = [entry for entry in run.iterdir() if entry.name.isdigit()]
    latest = run / "latest"
    if latest.exists() and latest.read_text().strip() not in [entry.name for entry in steps]:
        yield f"latest is {latest.read_text()!r}, of {sorted(entry.name for entry in steps)}"
    for checkpoint in steps:
        try:
            _read(checkpoint)
        except Exception as error:
            yield f"checkpoint {checkpoint.name} cannot be read: {error!r}"


def _read(checkpoint: Path) -> None:
    json.loads((checkpoint / "run.json").read_text())
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(state, checkpoint_id=str(checkpoint), no_dist=True)
