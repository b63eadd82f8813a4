"""The module that ``parallelize`` returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Self

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.calls.call_kind import flatten
from tensoropt_torch.calls.plain_gradients import take_plain_gradients
from tensoropt_torch.emit.compilation import compiled_parts, describe
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.frontend.python_calls import run_by
from tensoropt_torch.logs import rank_of_job
from tensoropt_torch.module.conversions import check_conversion
from tensoropt_torch.module.executor import Executor
from tensoropt_torch.module.special_methods import class_with_special_methods
from tensoropt_torch.module.state_hooks import STATE_HOOKS
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.module.variants import Found, Variants
from tensoropt_torch.parameters.writes import know_parameters
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import DifferentCallsError
from tensoropt_torch.runtime.lost_ranks import CallsOfModule
from tensoropt_torch.units import format_bytes, format_costs
from tensoropt_torch.values.state_dicts import load_by_parts


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
        base: Variant,
        root: nn.Module,
        seeds: torch.Generator | None = None,
        variants: Variants | None = None,
    ) -> None:
        """``root`` has the parameters and buffers; ``seeds`` gives those of steps, and
        ``variants`` what other calls run than those of ``base``."""
        super().__init__()
        # Not registered: the module has the names of the model only.
        object.__setattr__(self, "_root", root)
        self._parameters = root._parameters
        self._buffers = root._buffers
        self._modules = root._modules
        self._non_persistent_buffers_set = root._non_persistent_buffers_set
        self.training = root.training
        self._plan = plan
        self._base = base
        self._seeds = seeds
        self._variants = variants
        load_by_parts(root)
        for name in STATE_HOOKS:
            setattr(self, name, getattr(root, name))
        classes: Any = type(self), type(root)
        self.__class__ = class_with_special_methods(*classes)
        know_parameters()
        self._frozen = [(n, p) for n, p in self.named_parameters() if not p.requires_grad]
        self._executor = Executor(self.parameters)
        self.requires_gradient_sync = True
        self.averages_losses = False
        self._calls = CallsOfModule(self._get_name())
        self._uncompiled = _uncompiled_call()
        self._end: str | None = None
        self._steps = 0
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
        if "_root" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.original, name)

    @property
    def is_used(self) -> bool:
        """Whether it has not ended."""
        return self._end is None

    def count_step(self) -> None:
        """An optimizer of its parameters makes a step, as on all ranks."""
        self._steps += 1

    def end(self, reason: str) -> None:
        """From now on using it raises TensorOptError, with the reason."""
        self._end = reason

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
        """That of the model's class, by which some libraries tell what a model computes."""
        return type(self.original).__name__

    def __repr__(self) -> str:
        """Without the submodules, which only lend their names to parameters."""
        if self._end is not None:
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
        if compiled_parts(self.rank_graph):
            amount = describe(self.rank_graph)
            lines.append(f"compiled: {amount}; the plan's memory is that of steps without")
        return "\n".join(lines)

    @property
    def plan(self) -> Plan:
        """The plan this module runs, with the strategies of the variants made so far: saved
        and loaded again, those need no search."""
        if self._variants is None:
            return self._plan
        return replace(self._plan, variants=self._variants.strategies)

    @property
    def original(self) -> nn.Module:
        """What stands for the model: an instance of its class with the parameters of this
        rank, to ask for attributes and classes; it computes nothing.

        Raises:
            TensorOptError: the module has ended.
        """
        if self.__dict__.get("_end") is not None:
            raise TensorOptError(self._end)
        root: nn.Module = self.__dict__["_root"]
        return root

    @property
    def tables(self) -> Mapping[str, torch.Tensor]:
        """What was computed once, at capture; no names of the model."""
        return self._base.tables

    @property
    def rank_graph(self) -> fx.GraphModule:
        """The graph of this rank: local ATen calls and reshards."""
        return self._base.graph

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
            outputs = self._called(args, kwargs)
        self._calls.note_backward(outputs)
        take_plain_gradients(outputs)
        return outputs

    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.original.training = self.training
        if self._variants is None:
            return self._run(Found(self._base, self._inputs_of_base(args, kwargs)))
        mark = f", after {self._steps} steps of optimizers" if self._steps else ""
        if not self.requires_gradient_sync:
            mark += ", without gradient synchronisation"
        found = self._variants.find(args, kwargs, mark)
        try:
            return self._run(found)
        except DifferentCallsError:
            del found  # with its inputs; what follows is no part of handling this
        return self._run(self._variants.find_differing(args, kwargs, mark))

    def _run(self, found: Found) -> Any:
        # The casts are in the graph.
        with autocast_off(current_autocast()), run_by(self.original):
            if self._seeds is None or not found.variant.uses_seeds:
                return found.run(0, self._run_step, self.averages_losses)
            before = self._seeds.get_state()
            try:
                seed = torch.randint(2**62, (), generator=self._seeds)
                return found.run(int(seed), self._run_step, self.averages_losses)
            except DifferentCallsError:
                self._seeds.set_state(before)
                raise

    def _run_step(
        self, variant: Variant, inputs: Sequence[Any], seed: int, numbers: tuple[Any, ...]
    ) -> Any:
        reduces = self.requires_gradient_sync
        return self._executor.run(variant, inputs, seed, numbers, reduces)

    def _inputs_of_base(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        self._check_frozen()
        values, spec = flatten(args, kwargs)
        expected = self._base.captured.in_spec
        if spec != expected:
            raise TensorOptError(
                f"the model was captured with inputs {expected}, called with {spec}; "
                "call it as in the example inputs"
            )
        return values

    def _check_frozen(self) -> None:
        """Those of the capture: the plan has no way for their gradients."""
        if torch.is_grad_enabled():
            for name, parameter in self._frozen:
                if parameter.requires_grad:
                    raise TensorOptError(
                        f"parameter '{name}' was frozen when the model was captured, so the plan "
                        "sends no gradient to it, but its requires_grad is True now; freeze it "
                        "again by requires_grad_(False), or let the module make variants"
                    )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Raises TensorOptError unless ``fn`` keeps the device and the dtypes: ``to``,
        ``half`` and their like are for the model before it is parallel."""
        check_conversion(self, fn)
        return self


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
