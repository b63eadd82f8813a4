"""What the runtime itself takes, fitted to short runs of it: models so small that
kernels and messages hardly count, in pairs that differ in one thing; and one that computes
between its collectives, so that ranks wait for each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from tensoropt_torch import _C
from tensoropt_torch.config.cluster import Runtime, Update
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.runs.batch import Batch
from tensoropt_torch.measure.runs.exposed import WIDTH, Layers, fit_exposed
from tensoropt_torch.measure.runs.random_strategies import validate
from tensoropt_torch.measure.runs.training import OPTIMIZERS, WARM_UPS, StepTimes, Training
from tensoropt_torch.measure.runs.validation_options import ValidationOptions
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.planner.optimizer_model import OPTIMIZER_STATES
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import Step
from tensoropt_torch.runtime.ops import collective_counts, reset_collective_counts
from tensoropt_torch.space.search_space import make_space

FEW, MANY = 2, 26
PRODUCTS = 26
SMALL, LARGE = 8, 1 << 19  # elements of a parameter
ROWS_PER_RANK = 2
ROWS_OF_LAYERS = 64  # per rank
STEPS = 15
RESHARDED = 4  # random strategies
FITTED = ("sgd", "momentum", "adamw")  # one for each size of state
RUNTIME_PARTS = 4  # updates, reshards, collectives in steps, overlap
LEAST_S_PER_BYTE = 1e-14  # a positive number says that it was fitted
SOURCE = "fitted to short runs of the running job"


class Chain(nn.Module):
    """Multiplies its input with some parameters, in turn."""

    def __init__(self, parameters: int, size: int, products: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(size)) for _ in range(parameters))
        self.products = products

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, size) -> a scalar."""
        for index in range(self.products):
            x = x * self.weights[index % len(self.weights)]
        return x.sum()


@dataclass(frozen=True)
class Runs:
    """What the runs took, in s.

    ``few`` and ``many`` have FEW and MANY small parameters, ``large`` FEW large ones
    of ``large_bytes``; all by optimizer, and nothing is resharded. ``reshards`` are
    (s of a step without its update and its reshards, programs run in it); ``networks`` are
    (s in reshards and collectives less those predicted, collectives).
    """

    few: Mapping[str, StepTimes]
    many: Mapping[str, StepTimes]
    large: Mapping[str, StepTimes]
    large_bytes: int
    reshards: tuple[tuple[float, int], ...]
    networks: tuple[tuple[float, float], ...]


def runtime_of(runs: Runs) -> Runtime:
    """The figures that explain the runs; none is below zero."""
    updates = []
    for name in runs.few:
        few, many, large = runs.few[name], runs.many[name], runs.large[name]
        fixed_s = max(0.0, (many.step_s - few.step_s) / (MANY - FEW))
        update_s = max(0.0, (many.update_s - few.update_s) / (MANY - FEW))
        per_byte = (large.update_s / FEW - update_s) / runs.large_bytes
        updates.append(Update(OPTIMIZER_STATES[name], fixed_s, max(LEAST_S_PER_BYTE, per_byte)))
    few = next(iter(runs.few.values()))
    passes_s = few.step_s - few.update_s
    reshards = [(seconds - passes_s, programs) for seconds, programs in runs.reshards]
    return Runtime(_each_s(reshards), _each_s(runs.networks), tuple(updates), SOURCE)


def _each_s(sums: Iterable[tuple[float, float]]) -> float:
    """The median of seconds over number, 0 where it is below or there is none."""
    each = [seconds / number for seconds, number in sums if number > 0]
    return max(0.0, statistics.median(each)) if each else 0.0


def fit_runtime(profile: HardwareProfile, device: torch.device, step: Step) -> Runtime:
    """Runs the chains on the job of the profile. Collective, and equal on all ranks; tells
    ``step`` of each of ``RUNTIME_PARTS``."""
    context = RankContext.make([size for size, _ in profile.mesh_axes], device)
    models = _SmallModels(profile, device, context)
    step("updates of parameters", more=0)
    plain = {
        name: {optimizer: models.run(*sizes, optimizer) for optimizer in FITTED}
        for name, sizes in {
            "few": (FEW, SMALL),
            "many": (MANY, SMALL),
            "large": (FEW, LARGE),
        }.items()
    }
    many_ranks = profile.num_devices > 1
    step("reshards")
    reshards = models.resharded() if many_ranks else ()
    step("collectives in steps")
    networks = models.networks() if many_ranks else ()
    step("overlap")
    exposed = fit_exposed(models.task, context) if many_ranks else None
    step()
    context.groups.close()
    runs = Runs(plain["few"], plain["many"], plain["large"], 4 * LARGE, reshards, networks)
    return replace(runtime_of(runs), exposed=exposed)


class _SmallModels:
    """Small models, and what short runs of their plans take on the running job."""

    def __init__(
        self, profile: HardwareProfile, device: torch.device, context: RankContext
    ) -> None:
        self._profile = profile
        self._device = device
        self._context = context
        self._rows = ROWS_PER_RANK * profile.num_devices

    def run(self, parameters: int, size: int, optimizer: str) -> StepTimes:
        """Without any split."""
        captured, model, x = self._chain(parameters, size)
        space, settings = self._space(captured)
        masks = [
            [len(row.configs) == 1 or _is_whole(label) for label in row.configs]
            for row in space.nodes()
        ]
        result = SearchSettings().run(space, allowed=masks)
        plan = Plan.of(space, settings, captured, result.unroll(len(result.points) - 1))
        return self._time(model, plan, x, optimizer)

    def resharded(self) -> tuple[tuple[float, int], ...]:
        """Random strategies of the chain with few parameters."""
        captured, model, x = self._chain(FEW, SMALL)
        space, settings = self._space(captured)
        rows = []
        for seed in range(RESHARDED):
            strategy = space.random_strategy(seed)
            plan = Plan.of(space, settings, captured, strategy)
            reset_collective_counts()
            times = self._time(model, plan, x, FITTED[0])
            programs = collective_counts().programs // (STEPS + WARM_UPS)
            rows.append((times.step_s - times.update_s - times.network_s, programs))
        return tuple(rows)

    def networks(self) -> tuple[tuple[float, float], ...]:
        """Random strategies of linear layers."""
        model = Layers().to(self._device)
        x = torch.ones(ROWS_OF_LAYERS * self._profile.num_devices, WIDTH, device=self._device)
        options = ValidationOptions(
            RESHARDED, steps=STEPS, budget_s=None, optimizer=OPTIMIZERS[FITTED[0]], simulate=False
        )
        found = validate(model, self.task(capture(model, (x,))), ((x,), {}), self._device, options)
        return tuple(
            (row.measured_network_s - row.network_s, row.collectives) for row in found.rows
        )

    def _chain(self, parameters: int, size: int) -> tuple[CapturedModel, nn.Module, torch.Tensor]:
        products = PRODUCTS if size == SMALL else FEW
        model = Chain(parameters, size, products).to(self._device)
        x = torch.ones(self._rows, size, device=self._device)
        return capture(model, (x,)), model, x

    def _space(self, captured: CapturedModel) -> tuple[_C.SearchSpace, Settings]:
        settings = self.task(captured).settings(self._profile.num_devices)
        return make_space(captured, settings), settings

    def task(self, captured: CapturedModel) -> PlanningTask:
        """What is planned, with reshards that are waited for."""
        profile = self._profile
        return PlanningTask(
            captured,
            profile.cluster,
            optimizer=FITTED[0],
            measured=profile.curves,
            measured_on=profile.num_devices,
            overlap=False,
        )

    def _time(self, model: nn.Module, plan: Plan, x: torch.Tensor, optimizer: str) -> StepTimes:
        batch: Batch = (x,), {}
        training = Training.of(model, plan, self._context, OPTIMIZERS[optimizer], batch)
        return training.times(STEPS)


def _is_whole(label: str) -> bool:
    """Whether a config splits nothing and leaves no sum pending."""
    return set(label) <= set("-R,/ kept")
