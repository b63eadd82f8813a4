"""Runs a training step of one rank on tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor

from tensoropt_torch import operators as _operators  # noqa: F401
from tensoropt_torch.collector import without_collections
from tensoropt_torch.emit.boxed import functions_are_seen
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.simulate.compiled_step import CompiledPass
from tensoropt_torch.simulate.kernels import Workspaces
from tensoropt_torch.simulate.ledger import Ledger, MemoryProfile, cuda_bytes, exact_bytes
from tensoropt_torch.simulate.simulated_rank import META, SimulatedRank, name_nodes
from tensoropt_torch.simulate.simulated_stage import SimulatedStages
from tensoropt_torch.simulate.step_settings import DEFAULT_STEP, StepSettings
from tensoropt_torch.simulate.tracker import StorageTracker


class Simulated(Protocol):
    """What one rank runs, without processes, devices or memory.

    Attributes:
        device: of its tensors, the meta one or a CPU.
        graphs: that run.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def graphs(self) -> tuple[fx.Graph, ...]: ...
    def silent(self) -> AbstractContextManager[None]:
        """While this lasts, C++ operators find the groups of the rank."""

    def module(self) -> nn.Module:
        """As the mode that is active makes it."""

    def rehearse(self, module: nn.Module, inputs: Sequence[object]) -> None:
        """Runs what later steps call again as it was recorded."""

    def inputs(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments of the module."""


def simulate_step(
    plan: Plan | StagedPlan, captured: CapturedModel, settings: StepSettings = DEFAULT_STEP
) -> MemoryProfile:
    """What one rank has in memory in a step that is not the first one: forward,
    backward and the optimizer's update, gradients set to None in between.

    Not collective; needs no process group, device or memory.

    Raises:
        TensorOptError: the optimizer is not known, the rank is not one of the plan,
            or the model has no loss.
    """
    if not 0 <= settings.rank < plan.num_devices:
        raise TensorOptError(
            f"rank {settings.rank} is none of a plan for {plan.num_devices} devices; choose one "
            f"from 0 to {plan.num_devices - 1}"
        )
    if isinstance(plan, StagedPlan):
        stage, rank = divmod(settings.rank, plan.devices_of_stage)
        if settings.compiled:
            raise _not_compiled("in stages")
        return profile_of(
            SimulatedStages(plan, captured, rank, settings.device).stage(stage), settings
        )
    part = RankPart(plan, captured, settings.rank)
    simulated = SimulatedRank.of(part, settings.device)
    if not settings.compiled:
        return profile_of(simulated, settings)
    if plan.settings.micro_batches > 1:
        raise _not_compiled(f"in {plan.settings.micro_batches} micro-batches")
    return profile_of(simulated.on(META), settings, CompiledPass(simulated))


def _not_compiled(what: str) -> TensorOptError:
    return TensorOptError(
        f"compiled=True is not for plans {what}, of whose compiled steps no peak is simulated; "
        "leave it out for the peak of steps that are not compiled"
    )


def profile_of(
    rank: Simulated, settings: StepSettings, compiled: CompiledPass | None = None
) -> MemoryProfile:
    """What a rank has in memory in such a step; see ``simulate_step``."""
    ledger = Ledger(cuda_bytes if settings.device == "cuda" else exact_bytes)
    workspaces = Workspaces(settings.device, settings.measure_workspaces, settings.gloo)
    tracker = StorageTracker(ledger, workspaces, rank.device)
    with rank.silent(), without_collections():
        if compiled is None:
            _Step(rank, ledger, tracker, settings).run()
        else:
            _CompiledStep(rank, ledger, tracker, settings, compiled).run()
    unknown = workspaces.resolve(ledger)
    return ledger.profile(settings.rank, unknown)


class _Step:
    """The step, with everything that the user's loop holds."""

    def __init__(
        self, rank: Simulated, ledger: Ledger, tracker: StorageTracker, settings: StepSettings
    ) -> None:
        for graph in rank.graphs:
            name_nodes(graph, self._at_node, settings.device)
        self._rank = rank
        self._ledger = ledger
        self._tracker = tracker
        self._settings = settings
        is_fake = rank.device.type == "cpu"
        # Of what is not of the step.
        nowhere = Workspaces(settings.device, measure=False, gloo=settings.gloo)
        self._unseen = StorageTracker(Ledger(), nowhere, rank.device)
        self._mode = FakeTensorMode(allow_non_fake_inputs=True) if is_fake else nullcontext()

    def run(self) -> None:
        with self._mode:
            with self._tracker:
                module = self._rank.module()
                args, kwargs = self._rank.inputs()
                self._label(module, args, kwargs)
            with self._unseen, functions_are_seen():
                self._rank.rehearse(module, args)
            with self._tracker, functions_are_seen():
                self._run(module, args, kwargs)

    def _run(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        locals_ = _local_parameters(module)
        optimizer = self._optimizer_with_state(locals_)
        last_loss = self._ledger.allocate(0)  # the user's loop still holds it
        self._ledger.enter("forward")
        self._pass(module, args, kwargs, locals_, last_loss)
        self._ledger.enter("optimizer")
        optimizer.step()
        self._ledger.enter("end")

    def _pass(
        self, module: nn.Module, args: Any, kwargs: Any, locals_: list[nn.Parameter], loss: int
    ) -> None:
        """Forward, which frees the ``loss`` of the step before, and backward."""
        made = _loss(module(*args, **kwargs))
        taken = self._ledger.allocations[self._tracker.number_of(made)].num_bytes
        self._ledger.allocations[loss].num_bytes = taken
        self._ledger.free(loss)
        self._ledger.enter("backward")
        torch.autograd.backward(made)
        for parameter, local in zip(module.parameters(), locals_, strict=True):
            self._tracker.label(parameter.grad, "gradients")
            if parameter.grad is not None:
                assert isinstance(parameter.grad, DTensor)
                local.grad = parameter.grad._local_tensor

    def _at_node(self, name: str) -> None:
        self._ledger.node = name

    def _label(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for parameter in module.parameters():
            self._tracker.label(parameter, "parameters")
        for tensor in (*module.buffers(), *torch.utils._pytree.tree_leaves((args, kwargs))):
            if isinstance(tensor, torch.Tensor):
                self._tracker.label(tensor, "inputs and buffers")

    def _optimizer_with_state(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer as it is after the first step."""
        optimizer = self._settings.make_optimizer(parameters)
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self._tracker.label(value, "optimizer state")
        return optimizer


class _CompiledStep(_Step):
    """The same with forward and backward as a compiler has them."""

    def __init__(
        self,
        rank: Simulated,
        ledger: Ledger,
        tracker: StorageTracker,
        settings: StepSettings,
        compiled: CompiledPass,
    ) -> None:
        super().__init__(rank, ledger, tracker, settings)
        self._compiled = compiled

    def _pass(
        self, module: nn.Module, args: Any, kwargs: Any, locals_: list[nn.Parameter], loss: int
    ) -> None:
        self._ledger.free(loss)
        saved = self._compiled.forward(self._ledger)
        self._ledger.enter("backward")
        gradients = self._compiled.backward(self._ledger, saved)
        for number in gradients:
            self._ledger.allocations[number].category = "gradients"
        self._ledger.enter("optimizer")
        for number in gradients:
            self._ledger.free(number)
        for local in locals_:
            if local.requires_grad:
                local.grad = torch.empty_like(local)
                self._tracker.label(local.grad, "gradients")


def _local_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The local parts alone: optimizers do the same with them, in less time."""
    parts = []
    for parameter in module.parameters():
        assert isinstance(parameter, DTensor)
        parts.append(nn.Parameter(parameter._local_tensor, parameter.requires_grad))
    return parts


def _loss(output: Any) -> torch.Tensor:
    tensors = [t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor)]
    scalars = [t for t in tensors if t.numel() == 1 and t.requires_grad]
    if not scalars:
        raise TensorOptError(
            "the captured model returns no scalar that depends on parameters; capture it with its "
            "loss (loss_fn=) to simulate a training step"
        )
    return scalars[0]
