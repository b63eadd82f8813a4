"""The work of ``tensoropt advise``: every model on every kind and number of machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tensoropt_torch.advising.advice import Advice, marked
from tensoropt_torch.advising.cells import Cell, Fitting, Known, Missing
from tensoropt_torch.advising.least_memory import LeastMemory
from tensoropt_torch.advising.parts import Parts
from tensoropt_torch.advising.rows import OURS, AdviceRow, Price, price_of
from tensoropt_torch.advising.work import Work
from tensoropt_torch.config import Cluster
from tensoropt_torch.config.machine_kinds import cluster_for
from tensoropt_torch.planner.memory_limits import default_memory_fraction
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.planner.step_work import StepWork, step_work
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.tasks import Example, PlanningOptions, task_of

MOST_MICRO_BATCHES = 64
Machine = str | Path | Cluster
Beside = Literal["marked", "all", "none"]


@dataclass(frozen=True)
class Asked:
    """What is advised on.

    Attributes:
        examples: by the name of the model and its batch.
        machines: kinds of machines, presets, files or descriptions.
        device_counts: ascending.
        work: how much is trained.
        planning: how.
        memory_limit: bytes per device; None: that of the device.
        price: of a device for an hour; None: that of the cluster.
        beside: where others are looked at as well: at the rows that are marked, at all, at none.
    """

    examples: Mapping[str, Example]
    machines: Sequence[Machine]
    device_counts: Sequence[int]
    work: Work
    planning: PlanningOptions
    memory_limit: float | None = None
    price: Price | None = None
    beside: Beside = "marked"


def advise(asked: Asked) -> Advice:
    """All rows, with what others would do below those that it was asked for.

    Raises:
        TensorOptError: a machine is not known or has no such number of devices, the model cannot
            be captured, or the unit of the work is not known.
    """
    clusters = {
        (machine, count): cluster_for(machine, count)
        for machine in asked.machines
        for count in asked.device_counts
    }
    rows: list[AdviceRow] = []
    notes: dict[str, None] = {}
    total = len(asked.examples) * len(clusters)
    with progress("advising: machines", total, ticking=True) as done:
        for name, example in asked.examples.items():
            done(f"capturing {name}", more=0)
            model = _Model(asked, name, example, next(iter(clusters.values())))
            own: list[AdviceRow] = []
            for machine in asked.machines:
                done(f"{name} on {getattr(machine, 'name', machine)}", more=0)
                for row in model.on(machine, clusters):
                    own.append(row)
                    done()
            done(f"{name}: peaks, and what others take", more=0)
            rows += model.beside(model.verified(own))
            notes |= dict.fromkeys(model.notes)
    return Advice(asked.work, tuple(rows), tuple(notes) + tuple(_notes(asked, rows)))


class _Model:
    """One of the models: captured once, for all machines."""

    def __init__(self, asked: Asked, name: str, example: Example, cluster: Cluster) -> None:
        planning = asked.planning
        recompute = True if planning.recompute is None else planning.recompute
        most = planning.max_micro_batches if planning.max_micro_batches > 1 else 1
        planning = replace(
            planning, cluster=cluster, recompute=recompute, max_micro_batches=1, measure=False
        )
        self._asked = asked
        self._name = name
        self._task = task_of(example, planning)
        self._parts = Parts(self._task, most)
        self._step: StepWork = step_work(self._task.captured, self._task.settings(1))
        self._steps = asked.work.steps(self._step)
        self._cells: dict[AdviceRow, tuple[Cell, Fitting | Missing]] = {}
        self._checked: set[AdviceRow] = set()
        self._least = LeastMemory()

    @property
    def notes(self) -> list[str]:
        """What is to be known of it."""
        flops, tokens = self._step.total_flops, self._step.tokens
        each = f", {tokens:,} tokens" if tokens else ""
        found = [
            f"{self._name}: a step has {self._step.rows:,} rows{each} and {flops:.4g} FLOPs; "
            f"{self._steps:,.0f} steps in all."
        ]
        if self._parts.why_whole:
            found.append(f"{self._name} is not run in micro-batches: {self._parts.why_whole}")
        return found

    def on(
        self, machine: Machine, clusters: Mapping[tuple[Machine, int], Cluster]
    ) -> Iterator[AdviceRow]:
        """Ours on every number of devices of one kind."""
        known = Known()
        for count in sorted(self._asked.device_counts):
            cluster = clusters[machine, count]
            task = self._task_on(cluster)
            limit = task.memory_limit_of(self._asked.memory_limit)
            cell = Cell(task, self._parts, count, limit, known, self._least)
            found = cell.ours(self._asked.planning.memory or "sums")
            row = self._row(machine, cluster, count, found, limit)
            self._cells[row] = cell, found
            yield row

    def verified(self, rows: Sequence[AdviceRow]) -> list[AdviceRow]:
        """With those picked by simulated peaks that are marked, and then marked again: all, unless
        sums were asked for."""
        found = list(rows)
        if self._asked.planning.memory == "sums":
            return found
        while waiting := [row for row in marked(found, self._name).values() if not self._sure(row)]:
            for row in dict.fromkeys(waiting):
                cell, _ = self._cells.pop(row)
                picked = cell.ours(None)
                new = self._with(row, picked)
                self._cells[new] = cell, picked
                self._checked.add(new)
                found[found.index(row)] = new
        return found

    def _sure(self, row: AdviceRow) -> bool:
        return row.is_peak or row in self._checked

    def _task_on(self, cluster: Cluster) -> PlanningTask:
        fraction = default_memory_fraction(self._asked.planning.memory, cluster.device.type)
        return replace(self._task, cluster=cluster, memory_fraction=fraction)

    def _row(
        self,
        machine: Machine,
        cluster: Cluster,
        count: int,
        found: Fitting | Missing,
        limit: float,
    ) -> AdviceRow:
        row = AdviceRow(
            model=self._name,
            machine=cluster.name if isinstance(machine, (Cluster, Path)) else machine,
            cluster=cluster.name,
            num_devices=count,
            strategy=OURS,
            chosen=None,
            time_s=None,
            memory_bytes=0.0,
            is_peak=False,
            memory_limit=limit,
            rows=self._step.rows,
            tokens=self._step.tokens,
            steps=self._steps,
            peak_s=self._step.peak_seconds(cluster.device),
            price=self._asked.price or price_of(cluster.device),
        )
        return self._with(row, found)

    def _with(self, row: AdviceRow, found: Fitting | Missing) -> AdviceRow:
        """The row of what was found."""
        if isinstance(found, Missing):
            least = found.least_bytes
            return replace(row, chosen=None, time_s=None, memory_bytes=least, is_peak=False)
        return replace(
            row,
            chosen=found.chosen,
            time_s=found.plan.time_s,
            memory_bytes=found.memory_bytes,
            is_peak=found.peak_bytes is not None,
        )

    def beside(self, rows: Sequence[AdviceRow]) -> Iterator[AdviceRow]:
        """With what others do below the rows for which it was asked."""
        shown = {
            "marked": list(marked(rows, self._name).values()),
            "all": list(rows),
            "none": [],
        }[self._asked.beside]
        for row in rows:
            yield row
            if row in shown:
                yield from self._rivals(row)

    def _rivals(self, row: AdviceRow) -> Iterator[AdviceRow]:
        cell, ours = self._cells[row]
        by = self._asked.planning.memory if row.is_peak else "sums"
        for name, theirs in cell.rivals(ours, by).items():
            yield replace(self._with(row, theirs.found), strategy=name, because=theirs.because)


def _in_words(optimizer: str | OptimizerModel) -> str:
    model = OptimizerModel.of(optimizer)
    return str(model) if model.state_dtype else f"{model} with states in the dtype of parameters"


def _notes(asked: Asked, rows: Sequence[AdviceRow]) -> Iterator[str]:
    planning = asked.planning
    yield (
        "Times are predicted from data sheets and assumed efficiencies unless the cluster is a "
        "profile of your own; nothing was run. Steps alone are counted: no evaluation, no "
        "checkpoints, no failures."
    )
    yield (
        "MFU is the FLOPs of forward and backward without recomputation, of matrix products, "
        "convolutions and attention (causal attention by half), over what the devices could do at "
        "the peaks of their data sheets in the dtypes of these."
    )
    again = "with" if planning.recompute is not False else "without"
    yield (
        f"Searched: splits of every operator {again} recomputation, in up to "
        f"{planning.max_micro_batches} micro-batches: the fewest that fit and, where they may be "
        "faster, twice as many. "
        f"The optimizer is {_in_words(planning.optimizer)}; parameters have the dtype of the model."
    )
    yield (
        "Memory is compared with simulated peaks where no '(sum)' stands behind it, else with the "
        "sum of what a device keeps; by default the rows that are marked are simulated, with "
        "memory='simulated' (--memory simulated) all are."
    )
    prices = dict.fromkeys((row.machine, row.price) for row in rows)
    for machine, price in prices:
        if price is not None:
            yield (
                f"Price of {machine}: {price.per_hour:g} {price.currency} an hour for each device "
                f"({price.source})."
            )
        else:
            yield f"Price of {machine}: not known; give one."
