"""What is exposed of reshards that overlap with computing, from short runs: linear layers
whose backward takes about as long as their network, data parallel and with parameters that
are gathered where they are used, with overlap and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from tensoropt_torch import _C
from tensoropt_torch.config.cluster import Device, Exposed
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs.training import (
    OPTIMIZERS,
    WARM_UPS,
    Reference,
    RepeatedTimes,
    StepTimes,
    Training,
    run_in_passes,
)
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import Baseline, find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

LAYERS, WIDTH = 6, 512
FEWEST_ROWS, MOST_ROWS = 16, 4096  # per rank
FEWEST_STEPS, MOST_STEPS = 2, 8  # besides those that warm up
PASSES = 3
BUDGET_S = 20.0  # for all runs, where the fewest steps do not take longer
# What is less than this share of the network time is not told from other differences.
LEAST_GAIN = 0.05
DATA_PARALLEL, GATHERED = "data parallel", "ZeRO-3"


class Layers(nn.Module):
    """Linear layers with activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, WIDTH) -> a scalar."""
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum()


@dataclass(frozen=True)
class BothWays:
    """A plan that was run with and without overlap, in s.

    Attributes:
        network_s: in reshards and collectives of a step that waits for them.
        saved_s: what a step is shorter with overlap.
        noise_s: what steps of the same kind differ by.
        parameters_share: how much of the network time is predicted to be that of
            reshards of parameters in forward.
        gradients_share: the same of their gradients.
    """

    network_s: float
    saved_s: float
    noise_s: float
    parameters_share: float
    gradients_share: float


NOT_RUN = BothWays(0.0, 0.0, 0.0, 0.0, 0.0)  # of a plan that these devices do not have


def exposed_of(data_parallel: BothWays, gathered: BothWays) -> Exposed:
    """The shares that explain the runs. Plans that are data parallel reshard gradients
    only; what those with gathered parameters save beyond that is theirs."""
    gradients = _exposed(data_parallel, data_parallel.saved_s, data_parallel.gradients_share)
    hidden_s = (1 - gradients) * gathered.gradients_share * gathered.network_s
    parameters = _exposed(gathered, gathered.saved_s - hidden_s, gathered.parameters_share)
    return Exposed(parameters, gradients)


def _exposed(runs: BothWays, saved_s: float, share: float) -> float:
    """What is left of this share of the network time if so much of it was saved."""
    least_s = max(LEAST_GAIN * runs.network_s, runs.noise_s)
    if saved_s <= least_s or share <= LEAST_GAIN:
        return 1.0
    return max(0.0, 1 - saved_s / (share * runs.network_s))


def fit_exposed(task_of: Callable[..., PlanningTask], context: RankContext) -> Exposed:
    """Runs the layers on the running job, which has more than one process. Collective, and
    equal on all ranks.

    Args:
        task_of: the task of a captured model, without overlap, with its costs measured.
        context: of all processes.
    """
    model = Layers().to(context.device)
    task, x = _balanced(model, task_of, context)
    plans = {
        baseline.name: _fastest(baseline)
        for baseline in find_baselines(task, context.num_devices, (DATA_PARALLEL, GATHERED))
        if baseline.points
    }
    # Telling the time of the network makes GPUs wait for it, so it is a run of its own.
    ways = ((False, True), (False, False), (True, False))
    step_s = PASSES * len(ways) * sum(plan.time_s for plan in plans.values())
    steps = max(FEWEST_STEPS, min(MOST_STEPS, int(BUDGET_S / step_s) - WARM_UPS))
    runs = [
        partial(_time, model, with_overlap(plan, overlap), x, context, steps, network=network)
        for plan in plans.values()
        for overlap, network in ways
    ]
    times = run_in_passes(runs, PASSES, reference=Reference(context.device))
    found = [RepeatedTimes.of(those) for those in times]
    both = {}
    for index, (name, plan) in enumerate(plans.items()):
        network, blocking, overlapping = found[3 * index : 3 * index + 3]
        saved_s = blocking.fastest.step_s - overlapping.fastest.step_s
        noise_s = min(blocking.noise_s, overlapping.noise_s)
        shares = _shares(task, plan, context.num_devices)
        both[name] = BothWays(network.fastest.network_s, saved_s, noise_s, *shares)
    return exposed_of(both.get(DATA_PARALLEL, NOT_RUN), both.get(GATHERED, NOT_RUN))


def _fastest(baseline: Baseline) -> Plan:
    plan = baseline.plan(len(baseline.points) - 1)
    assert isinstance(plan, Plan)  # none of these is in stages
    return plan


def with_overlap(plan: Plan, overlap: bool) -> Plan:
    """The same strategy run with overlap or without; what was predicted stays."""
    return replace(plan, settings=replace(plan.settings, overlap=overlap))


def _balanced(
    model: nn.Module, task_of: Callable[..., PlanningTask], context: RankContext
) -> tuple[PlanningTask, torch.Tensor]:
    """The task and its input, of so many rows that backward takes as long as the network
    of gradients, which does not depend on them."""
    task = task_of(capture(model, (_rows(FEWEST_ROWS, context),)))
    (baseline,) = find_baselines(task, context.num_devices, (DATA_PARALLEL,))
    space = make_space(task.captured, task.settings(context.num_devices))
    network_s = space.network_time(_fastest(baseline).choices.strategy(space))
    flops_of_row = 4 * LAYERS * WIDTH**2
    rows = int(network_s * _flops_per_s(task.cluster.device) / flops_of_row)
    x = _rows(max(FEWEST_ROWS, min(MOST_ROWS, rows)), context)
    return task_of(capture(model, (x,))), x


def _rows(rows_per_rank: int, context: RankContext) -> torch.Tensor:
    return torch.ones(rows_per_rank * context.num_devices, WIDTH, device=context.device)


def _flops_per_s(device: Device) -> float:
    return device.flops_per_s["float32"] * device.efficiency.matmul


def _shares(task: PlanningTask, plan: Plan, num_devices: int) -> tuple[float, float]:
    """Of its predicted network time, those of parameters and of their gradients."""
    whole_s = _network_s(task, plan, num_devices, Exposed(1, 1))
    if whole_s == 0:
        return 0.0, 0.0
    without_parameters_s = _network_s(task, plan, num_devices, Exposed(0, 1))
    without_gradients_s = _network_s(task, plan, num_devices, Exposed(1, 0))
    return 1 - without_parameters_s / whole_s, 1 - without_gradients_s / whole_s


def _network_s(task: PlanningTask, plan: Plan, num_devices: int, exposed: Exposed) -> float:
    overlapping = replace(task, overlap=True).with_runtime(exposed=exposed)
    space: _C.SearchSpace = make_space(task.captured, overlapping.settings(num_devices))
    return float(space.network_time(plan.choices.strategy(space)))


def _time(
    model: nn.Module,
    plan: Plan,
    x: torch.Tensor,
    context: RankContext,
    steps: int,
    *,
    network: bool,
) -> StepTimes:
    training = Training.of(model, plan, context, OPTIMIZERS["sgd"], ((x,), {}))
    return training.times(steps, network=network)
