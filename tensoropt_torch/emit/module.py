"""The module that ``parallelize`` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.accumulation import GradientAccumulation
from tensoropt_torch.emit.weights import Weights
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime import reuse
from tensoropt_torch.units import format_bytes, format_costs


class ParallelModule(nn.Module):
    """One rank's part of a model that runs under a plan.

    Called like the original module (followed by the targets if the plan was
    made with a ``loss_fn``), and returns what it does; of an output with a ``loss``
    only that. Parameters keep their names and are ``DTensor``s
    on the base mesh, so ``torch.optim``, ``clip_grad_norm_``, ``state_dict``
    and ``torch.distributed.checkpoint`` work on them.

    Inputs are the rank's share of the global batch (dim 0) if the plan was made
    with ``inputs='sharded'``, else the same global batch on every rank. A
    scalar output is the global value on every rank.

    Attributes:
        requires_gradient_sync: whether the backward of a forward reduces gradients, with what
            ``no_sync`` has kept; the same on all ranks.
    """

    def __init__(
        self,
        plan: Plan,
        rank_graph: fx.GraphModule,
        weights: Weights,
        buffers: Mapping[str, bool],
        local_shapes: Sequence[tuple[int, ...]],
        seeds: torch.Generator | None,
    ) -> None:
        super().__init__()
        captured, constants = plan.captured, weights.constants
        assert captured is not None
        for source in captured.parameters:
            for name in source.names:
                owner, leaf = _owner(self, name)
                owner.register_parameter(leaf, weights.parameters[source.names[0]])
        for name, persistent in buffers.items():
            if name in constants:
                owner, leaf = _owner(self, name)
                owner.register_buffer(leaf, constants[name], persistent=persistent)
        # Not registered: the module has the names of the model only.
        tables = {name: tensor for name, tensor in constants.items() if name not in buffers}
        object.__setattr__(self, "_tables", tables)
        object.__setattr__(self, "_rank_graph", rank_graph)
        object.__setattr__(self, "_captured", captured)
        self._local_shapes = tuple(local_shapes)
        self._plan = plan
        self._seeds = seeds
        self._frozen = [(n, p) for n, p in self.named_parameters() if not p.requires_grad]
        self._accumulation = GradientAccumulation()
        self.requires_gradient_sync = True

    def __repr__(self) -> str:
        """Without the submodules, which only lend their names to parameters."""
        lines = "".join(f"  {line}\n" for line in self.extra_repr().splitlines())
        return f"ParallelModule(\n{lines})"

    def extra_repr(self) -> str:
        """The devices, the plan's point, and what this rank holds, a line each."""
        plan = self._plan
        costs = format_costs(plan.memory_bytes, plan.time_s)
        peak = "" if plan.peak_bytes is None else f", {format_bytes(plan.peak_bytes)} at the peak"
        whole = list(self.parameters())
        local = [p.to_local() if isinstance(p, DTensor) else p for p in whole]
        lines = (
            f"devices: {plan.settings.where}, this is rank {_rank()}",
            f"plan: {costs}{peak}; {plan.origin}",
            f"inputs: {plan.inputs}",
            f"parameters: {_amount(whole)}, of which {_amount(local)} here",
        )
        return "\n".join(lines)

    @property
    def plan(self) -> Plan:
        """The plan this module runs."""
        return self._plan

    @property
    def tables(self) -> Mapping[str, torch.Tensor]:
        """What was computed once, at capture; no names of the model."""
        tables: Mapping[str, torch.Tensor] = self.__dict__["_tables"]
        return tables

    @property
    def rank_graph(self) -> fx.GraphModule:
        """The graph of this rank: local ATen calls and reshards."""
        graph: fx.GraphModule = self.__dict__["_rank_graph"]
        return graph

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
        captured: CapturedModel = self.__dict__["_captured"]
        inputs = iter(self._checked_inputs(captured, args, kwargs))
        self._check_frozen()
        values = []
        for source in captured.sources:
            if source.kind in ("input", "literal"):
                values.append(next(inputs))
            else:
                values.append(self._local_value(source.names[0]))
        seed = 0
        if self._seeds is not None:
            seed = int(torch.randint(2**62, (), generator=self._seeds))
        with reuse.ReuseRegistry():
            outputs = self._accumulation.run(
                self, self.rank_graph, (*values, seed), self.requires_gradient_sync
            )
        return pytree.tree_unflatten(list(outputs), captured.out_spec)

    def _local_value(self, name: str) -> torch.Tensor:
        table = self.tables.get(name)
        tensor = _lookup(self, name) if table is None else table
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def _check_frozen(self) -> None:
        """Those of the capture: the plan has no way for their gradients."""
        if torch.is_grad_enabled():
            for name, parameter in self._frozen:
                if parameter.requires_grad:
                    raise TensorOptError(
                        f"parameter '{name}' was frozen when the model was captured, so the plan "
                        "sends no gradient to it, but its requires_grad is True now; freeze it "
                        "again by requires_grad_(False), or plan for a model in which it is not "
                        "frozen"
                    )

    def _checked_inputs(
        self, captured: CapturedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        values, spec = pytree.tree_flatten((args, kwargs))
        if spec != captured.in_spec:
            raise TensorOptError(
                f"the model was captured with inputs {captured.in_spec}, called with {spec}; "
                "call it as in the example inputs"
            )
        shapes = iter(self._local_shapes)
        for source, value in zip(captured.inputs, values, strict=True):
            if source.kind == "literal":
                continue
            expected = next(shapes)
            if tuple(value.shape) != expected:
                raise TensorOptError(
                    f"input '{source.names[0]}' has shape {tuple(value.shape)}, the plan expects "
                    f"{expected} on this rank ({self._plan.inputs} inputs on "
                    f"{self._plan.num_devices} devices); "
                    "give " + _expected_share(self._plan) + ", or plan again for this batch"
                )
        return values


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _amount(tensors: Sequence[torch.Tensor]) -> str:
    """E.g. ``1,024 numbers (4 KiB)``."""
    count = sum(tensor.numel() for tensor in tensors)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return f"{count:,} numbers ({format_bytes(num_bytes)})"


def _expected_share(plan: Plan) -> str:
    if plan.inputs == "sharded":
        return "each rank its own share of the global batch"
    return "every rank the same global batch"


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that owns a dotted name, made on the way, and the last part."""
    *path, leaf = name.split(".")
    owner = root
    for part in path:
        child = owner._modules.get(part)
        if child is None:
            child = nn.Module()
            owner.add_module(part, child)
        owner = child
    return owner, leaf


def _lookup(root: nn.Module, name: str) -> torch.Tensor:
    owner, leaf = _owner(root, name)
    tensor = owner._parameters.get(leaf)
    if tensor is not None:
        return tensor
    buffer = owner._buffers[leaf]
    assert buffer is not None
    return buffer
