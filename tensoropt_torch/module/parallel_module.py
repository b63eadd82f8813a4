"""The module that ``parallelize`` returns."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Self

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.calls.plain_gradients import take_plain_gradients
from tensoropt_torch.emit.compilation import compiled_parts, describe
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger, rank_of_job
from tensoropt_torch.module.attempts import Attempt
from tensoropt_torch.module.conversions import check_conversion
from tensoropt_torch.module.moving import BUCKET_BYTES, Moving, PlanMover
from tensoropt_torch.module.out_of_memory import Actions, FindSmaller, GuardedCalls, OutOfMemory
from tensoropt_torch.module.programs import ModulePrograms
from tensoropt_torch.module.special_methods import class_with_special_methods
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import CallAgreement
from tensoropt_torch.runtime.lost_ranks import CallsOfModule, doing
from tensoropt_torch.units import format_bytes, format_costs, format_duration
from tensoropt_torch.values.moves import Moved

log = get_logger(__name__)


class ParallelModule(nn.Module):
    """One rank's part of a model that runs under a plan.

    Called like the original module (followed by the targets if the plan was
    made with a ``loss_fn``; without them it returns what the model does). Parameters keep
    their names and are ``DTensor``s on the base mesh, so ``torch.optim``,
    ``clip_grad_norm_``, ``state_dict`` and ``torch.distributed.checkpoint`` work on them.

    ``train``, ``eval``, ``torch.no_grad``, ``torch.inference_mode`` and ``torch.autocast``
    around a call mean what they mean for the model, and so do other shapes: calls of each
    kind run a variant, which is made at the first of them (docs/runtime.md, Variants). Calls
    are collective: all ranks make them alike.

    Inputs are the rank's share of the global batch (dim 0, or the dim that ``inputs`` names)
    if the plan was made with ``inputs='sharded'``, else the same global batch on every rank. Of
    outputs with the rows of the batch a rank gets its share then, of others the whole. Of an
    output with a ``loss`` a training step gives only that, unless the example was made with
    ``outputs='all'``; evaluation gives all of it.

    Attributes and methods of the model are there (``config``); methods that call submodules
    raise an error.

    Attributes:
        requires_gradient_sync: whether the backward of a forward reduces gradients, with what
            ``no_sync`` has kept; the same on all ranks.
        averages_losses: what a rank computes of its rows counts as one of the ranks' losses,
            whose mean is trained on, as under data parallelism; by default their sum is.
    """

    def __init__(
        self,
        plan: Plan,
        storage: ModuleStorage,
        programs: ModulePrograms,
        mover: PlanMover | None = None,
        guard: tuple[FindSmaller, CallAgreement] | None = None,
    ) -> None:
        """``storage`` has the parameters and buffers, on which ``programs`` run; ``mover`` makes
        others, if there may be some. Given a ``guard``, calls that run out of memory are repeated
        under plans that it finds, which the ranks tell each other by it."""
        super().__init__()
        storage.lend_to(self)
        self._storage = storage
        self._programs = programs
        self._mover = mover
        self._plan = plan
        classes: Any = type(self), type(storage.root)
        self.__class__ = class_with_special_methods(*classes)
        self.requires_gradient_sync = True
        self.averages_losses = False
        self._calls = CallsOfModule(self._get_name())
        self._guard = None if guard is None else GuardedCalls(guard[0], storage, guard[1])
        self._uncompiled = _uncompiled_call()
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Of the model, unless the module itself has such an attribute."""
        own = "_is_made" not in self.__dict__ or name in self.__dict__ or hasattr(type(self), name)
        if own:
            super().__setattr__(name, value)
        else:
            setattr(self.original, name, value)

    def __delattr__(self, name: str) -> None:
        """Of the model, unless the module itself has such an attribute."""
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.original, name)

    def __getattr__(self, name: str) -> Any:
        """Of the model, where the module itself has no such attribute."""
        if "_storage" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.original, name)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """As of any module; parameters and buffers are found by it."""
        assert self.original is not None  # it has not ended
        yield from super().named_modules(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises TensorOptError: neither ``pickle`` nor ``copy.deepcopy``."""
        raise TensorOptError(
            "a parallel module is this rank's part of a job and can be neither copied nor "
            "pickled; for another one, as for averages of weights, call "
            "parallelize(copy.deepcopy(model), parallel.plan), and save its state_dict: with "
            "tensoropt_torch.save, full_state_dict or torch.distributed.checkpoint"
        )

    def _get_name(self) -> str:
        """The name of the model's class, by which some libraries tell what a model computes."""
        return type(self.original).__name__

    def __repr__(self) -> str:
        """Without the submodules, which only lend their names to parameters."""
        if not self._storage.is_used:
            return "ParallelModule(ended)"
        lines = "".join(f"  {line}\n" for line in self.extra_repr().splitlines())
        return f"ParallelModule(\n{lines})"

    def extra_repr(self) -> str:
        """The devices, the plan's point, and what this rank holds, a line each."""
        plan = self._plan
        costs = format_costs(plan.memory_bytes, plan.time_s)
        peak = "" if plan.peak_bytes is None else f", {format_bytes(plan.peak_bytes)} at the peak"
        whole = list(self.parameters())
        local = [p.to_local() if isinstance(p, DTensor) else p for p in whole]
        lines = [
            f"devices: {plan.settings.where}, this is rank {rank_of_job()}",
            f"plan: {costs}{peak}; {plan.origin}",
            f"inputs: {plan.settings.inputs_in_words}",
            f"parameters: {_amount(whole)}, of which {_amount(local)} here",
        ]
        if self._programs.base.is_compiled_whole:
            lines.append("compiled: the step with its collectives, as one graph")
        elif compiled_parts(self.rank_graph):
            amount = describe(self.rank_graph)
            lines.append(f"compiled: {amount}; the plan's memory is that of steps without")
        return "\n".join(lines)

    @property
    def plan(self) -> Plan:
        """The plan this module runs, with the strategies of the variants made so far: saved
        and loaded again, those need no search."""
        if self._programs.variants is None:
            return self._plan
        return replace(self._plan, variants=self._programs.strategies)

    @property
    def original(self) -> nn.Module:
        """What stands for the model: an instance of its class with the parameters of this
        rank, to ask for attributes and classes; it computes nothing.

        Raises:
            TensorOptError: the module has ended.
        """
        return self._storage.root

    @property
    def tables(self) -> Mapping[str, torch.Tensor]:
        """What was computed once, at capture; no names of the model."""
        return self._programs.base.tables

    @property
    def rank_graph(self) -> fx.GraphModule:
        """The graph of this rank: local ATen calls and reshards."""
        return self._programs.base.graph

    def train(self, mode: bool = True) -> Self:
        """As the model's own ``train``."""
        self.original.train(mode)
        self.training = self.original.training
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """As the model's own ``apply``, to the stand-ins of its modules."""
        self.original.apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own, with its hooks and extra states."""
        return self.original.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the model's own. Collective: all ranks are given the same; whole tensors, or a
        ``DTensor`` of any layout each."""
        return self.original.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """What the ``load_state_dict`` of a module that has this one calls."""
        self.original._load_from_state_dict(*args, **kwargs)

    @doing("move_to")
    def move_to(
        self,
        plan: Plan,
        *optimizers: torch.optim.Optimizer,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Moved:
        """Goes on under another plan of the same model, for as many devices: parameters,
        gradients, buffers and states of optimizers get its layouts, with the same bits.
        Collective, between steps.

        ::

            parallel.move_to(frontier.smallest.plan)

        Parameters stay the same objects, so that optimizers, their groups and schedulers go on;
        so does the stream of random numbers. Nothing is written to files: what a rank needs
        comes from ranks that have it, in buckets. Meanwhile its memory is above the larger of
        what it is before and after by at most two buckets, and a third one or its largest new
        part, whichever is larger, where ranks have parts of equal size.

        Args:
            plan: another point of the frontier, say; its inputs are shared out as before.
            optimizers: those that have states and have made no step yet, as after
                ``load_state_dict``; all that have made one are known.
            bucket_bytes: what a rank sends, or gets, at once; at least 64 KiB.

        Raises:
            TensorOptError: on every rank, and nothing has changed; the plan is of another
                model, batch, number of devices or of other inputs, or the module is of a stage.
        """
        if self._mover is None:
            raise TensorOptError(
                "move_to is not supported by a module in stages: save a checkpoint, and go on "
                "with parallelize(model, plan)"
            )
        moved = self._moved(self._mover, plan, optimizers, bucket_bytes)
        self._calls.end_backward()
        return moved

    def _moved(
        self,
        mover: PlanMover,
        plan: Plan,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Moved:
        known = [*self._storage.optimizers, *optimizers]
        moving = Moving(self._storage, self._programs, list(dict.fromkeys(known)), bucket_bytes)
        start_s = time.perf_counter()
        self._programs, moved = mover.move(plan, moving)
        self._plan = plan
        log.info("moved in %s: %r", format_duration(time.perf_counter() - start_s), self)
        return moved

    @property
    def out_of_memory(self) -> tuple[OutOfMemory, ...]:
        """The steps that ran out of memory and were repeated under smaller plans, with
        ``parallelize(on_out_of_memory="smaller")``."""
        return () if self._guard is None else tuple(self._guard.events)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The backward of each forward inside does not reduce gradients between ranks, where
        they are only added up; the next one of a forward outside does, with its own.

        To be used on all ranks alike. Meanwhile ``.grad`` of a parameter may be a ``DTensor``
        in the layout in which its gradient is made, larger than the parameter's.
        """
        before = self.requires_gradient_sync
        self.requires_gradient_sync = False
        try:
            yield
        finally:
            self.requires_gradient_sync = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns, see the class. Collective."""
        return self._uncompiled(self, *args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        with self._calls.forward():
            self.original.training = self.training
            if self._guard is not None:
                outputs = self._guard.call(self._actions(), args, kwargs, self.averages_losses)
            else:
                outputs = self._programs.call(
                    args,
                    kwargs,
                    reduces=self.requires_gradient_sync,
                    averages=self.averages_losses,
                )
        self._calls.note_backward(outputs)
        take_plain_gradients(outputs)
        return outputs

    def _actions(self) -> Actions:
        mover = self._mover
        assert mover is not None

        def attempt(
            args: Sequence[Any], kwargs: Mapping[str, Any], averages: bool, attempt: Attempt
        ) -> Any:
            return self._programs.call(
                args, kwargs, reduces=True, averages=averages, attempt=attempt
            )

        return Actions(
            attempt,
            lambda: self._programs.seeds,
            lambda: self._plan.with_model(self._programs.base.captured),
            mover.leave_groups,
            lambda plan: self._moved(mover, plan),
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Raises TensorOptError unless ``fn`` keeps the device and the dtypes: ``to``,
        ``half`` and their like are for the model before it is parallel."""
        check_conversion(self, fn)
        return self


# No attributes of the module: all names but a few are those of the model.
def storage_of(parallel: ParallelModule) -> ModuleStorage:
    """What the rank has of the model."""
    return parallel._storage


def programs_of(parallel: ParallelModule) -> ModulePrograms:
    """What calls of the module run."""
    return parallel._programs


@functools.cache
def _uncompiled_call() -> Callable[..., Any]:
    """A call that ``torch.compile`` around the module leaves alone: ranks agree on it, and what
    it computes is compiled by ``parallelize(compile=True)``."""
    disable: Any = torch.compiler.disable
    reason = "a parallel module is compiled by parallelize(..., compile=True)"
    call: Callable[..., Any] = disable(ParallelModule._call, reason=reason)
    return call


def _amount(tensors: Sequence[torch.Tensor]) -> str:
    """E.g. ``1,024 numbers (4 KiB)``."""
    count = sum(tensor.numel() for tensor in tensors)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return f"{count:,} numbers ({format_bytes(num_bytes)})"
