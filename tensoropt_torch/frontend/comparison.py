"""Does a captured graph compute what its module computes? Both run on the same inputs, in one
process, and outputs, gradients and what buffers become are compared.

::

    found = differences(model, captured, args, kwargs)
    assert not found, found[0]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tensoropt_torch.frontend.batch_norm import sync_batch_norms_are_plain
from tensoropt_torch.frontend.call_context import autocast_off, called_in, current_autocast
from tensoropt_torch.frontend.capture import CapturedModel, kept_of
from tensoropt_torch.frontend.python_calls import remember_hooks, run_by
from tensoropt_torch.frontend.rounding import (
    nudged,
    relative_error,
    rounding_of,
    tolerance_of,
)
from tensoropt_torch.frontend.undoing import StateBefore
from tensoropt_torch.frontend.watching.attribute_uses import owners_of, value_at

# What is compared, by what it is called: tensors, None where there is no gradient, others.
Results = Mapping[str, Any]

NUDGES = 2  # runs of the module with parameters that differ by rounding
NOISE_FACTOR = 4  # what the graph may be off, to what those runs are
OTHER_VALUES = 0.01  # by which parameters differ when something is looked at once more


@dataclass(frozen=True)
class Difference:
    """What a graph computes otherwise than its module.

    Attributes:
        what: e.g. ``the gradient of 'fc.weight'``.
        error: largest difference to the largest number of the module's, or of their norms.
        allowed: what rounding explains.
    """

    what: str
    error: float
    allowed: float

    def __str__(self) -> str:
        if self.error == float("inf"):
            return f"{self.what} is zero, infinite, missing or of another kind in one of them only"
        return (
            f"{self.what} is off by {self.error:.2g} of its own scale, of which rounding explains "
            f"{self.allowed:.1g}"
        )


def differences(
    model: nn.Module,
    captured: CapturedModel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> list[Difference]:
    """What is different, in the order of outputs, gradients, buffers. Nothing stays changed in
    the module, nor of random states.

    Compared are the loss or the outputs, with tensors that are put into attributes; gradients, of
    ones where an output is a number and of random numbers where it has elements, of the
    parameters and of the inputs that require one; and buffers. Both see the same random numbers
    of PyTorch. A parameter's own hooks do not count. Each tensor is compared on its own scale.
    What is off by more than half of the digits is held against how much the module itself moves
    if parameters and inputs move by a rounding, and if nothing does; and what is still off is
    looked at with other parameters, so that a choice (of an expert, of a code) that rounding
    decides is no difference.

    Args:
        model: the module, in the modes of the capture, with parameters that have values.
        captured: its graph, for inputs of these shapes. Not of a micro-batch.
        args, kwargs: inputs of the graph (targets after ``args``), on the model's device.

    Raises:
        Exception: whatever the module raises for these inputs.
    """
    pair = _Pair(model, captured, args, kwargs or {})
    found = pair.look()
    if found:
        with nudged(pair.parameters, OTHER_VALUES, seed=1):
            again = {difference.what for difference in pair.look()}
        found = [difference for difference in found if difference.what in again]
    return found


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, a collective of PyTorch is an error: one process runs alone."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") in ("c10d", "_c10d_functional"):
            raise RuntimeError(f"it calls a collective ({func})")
        return func(*args, **(kwargs or {}))


class _Pair:
    """A module and its graph, which run on the same inputs."""

    def __init__(
        self,
        model: nn.Module,
        captured: CapturedModel,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._model = model
        self._captured = captured
        leaves, spec = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))
        self._leaves = [_own(leaf) for leaf in leaves]
        self._spec = spec
        self._before = StateBefore(model)
        self._eps = rounding_of(captured.graph_module.graph)
        named = dict(model.named_parameters(remove_duplicate=False))
        self._named = {s.names[0]: named[s.names[0]] for s in captured.parameters}
        self.parameters = list(self._named.values())

    def look(self) -> list[Difference]:
        """What is different with the parameters as they are."""
        wanted, got = self._of_module(), self._of_graph()
        tolerance = tolerance_of(self._eps)
        errors = {what: _error(got.get(what), wanted.get(what)) for what in {**wanted, **got}}
        off = {what: error for what, error in errors.items() if not error <= tolerance}
        if not off:
            return []
        allowed = self._allowed(wanted, off, tolerance)
        return [Difference(w, e, allowed[w]) for w, e in off.items() if not e <= allowed[w]]

    def _allowed(self, wanted: Results, off: Collection[str], least: float) -> dict[str, float]:
        """What rounding, and a module that is not deterministic, explains of these."""
        noise = dict.fromkeys(off, 0.0)
        inputs = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        for number in range(NUDGES + 1):
            by = 0.0 if number == 0 else self._eps
            with nudged([*self.parameters, *inputs], by, seed=number << 20):
                other = self._of_module()
            for what in off:
                noise[what] = max(noise[what], _error(other.get(what), wanted.get(what)))
        return {what: max(least, NOISE_FACTOR * value) for what, value in noise.items()}

    def _of_module(self) -> Results:
        captured, form = self._captured, self._captured.form
        args, kwargs = pytree.tree_unflatten(self._inputs(), self._spec)
        name = type(self._model).__name__
        # Those that forward fills where there was none hold what is always the same.
        own = dict(self._model.named_buffers(remove_duplicate=False))
        try:
            with self._running(), _without_hooks(self.parameters):
                with called_in(captured.context):
                    output = self._model(*args[: form.num_inputs], **kwargs)
                    targets = args[form.num_inputs :]
                    kept = kept_of(output, targets, form.loss_fn, captured.context, name)
                outputs = [*pytree.tree_leaves(kept), *self._written()]
                buffers = dict(self._model.named_buffers(remove_duplicate=False))
                kept_buffers = {n: buffer for n, buffer in buffers.items() if n in own}
                return self._results(outputs, self._named, (args, kwargs), kept_buffers)
        finally:
            self._before.restore()

    def _written(self) -> list[torch.Tensor]:
        """The tensors that forward has put into attributes of which the graph says so."""
        written = self._captured.attributes.written
        if written is None:
            return []
        owners = owners_of(self._model, self._captured.form.loss_fn)
        modules = {(owner.path, owner.of_loss): owner.module for owner in owners}
        values = [value_at(modules[place[::2]], place.name) for place in written.places]
        return [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]

    def _of_graph(self) -> Results:
        captured = self._captured
        inputs = self._inputs()
        leaves = {
            name: p.detach().requires_grad_(p.requires_grad) for name, p in self._named.items()
        }
        own = dict(self._model.named_buffers(remove_duplicate=False))
        given_constants = {**captured.constants, **own}
        clones = {id(t): t.detach().clone() for t in given_constants.values()}
        constants = {name: clones[id(t)] for name, t in given_constants.items()}
        given = iter(inputs)
        values = [
            next(given)
            if source.kind in ("input", "literal")
            else source.as_seen({**constants, **leaves}[source.names[0]])
            for source in captured.sources
        ]
        try:
            remember_hooks(self._model, self._model)  # which restoring takes back
            with self._running(), run_by(self._model):
                graph = _Calls(captured.graph_module)
                outputs = list(graph.run(*values, enable_io_processing=False))
                buffers = {name: graph.after(constants[name]) for name in own}
                return self._results(outputs, leaves, inputs, buffers)
        finally:
            self._before.restore()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """By itself, with gradients, without the casts around."""
        torch.clear_autocast_cache()  # of parameters, which are nudged
        with (
            torch.enable_grad(),
            autocast_off(current_autocast()),
            sync_batch_norms_are_plain(),
            NoCollectives(),  # type: ignore[no-untyped-call]
        ):
            yield
        torch.clear_autocast_cache()

    def _inputs(self) -> list[Any]:
        """Tensors of their own, which a run may write."""
        return [_own(leaf) for leaf in self._leaves]

    def _results(
        self,
        outputs: Sequence[Any],
        parameters: Mapping[str, torch.Tensor],
        inputs: Any,
        buffers: Mapping[str, torch.Tensor],
    ) -> Results:
        found: dict[str, Any] = {_output_name(n, len(outputs)): o for n, o in enumerate(outputs)}
        tensors = {f"the gradient of '{name}'": p for name, p in parameters.items()}
        given = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        tensors |= {f"the gradient of input {number}": x for number, x in enumerate(given)}
        wanted = {what: tensor for what, tensor in tensors.items() if tensor.requires_grad}
        found |= dict(zip(wanted, _gradients(outputs, list(wanted.values())), strict=True))
        for what, value in found.items():
            if isinstance(value, torch.Tensor):
                found[what] = value.detach()
        for name, buffer in buffers.items():
            found[f"buffer '{name}' afterwards"] = buffer.detach().clone()
        return found


class _Calls(fx.Interpreter):
    """Those of a captured graph. What it makes of buffers, where it ends, is kept beside them:
    autograd goes on looking at what they held before, as the ranks' graphs let it."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self._written: dict[int, torch.Tensor] = {}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not torch.ops.aten.copy_.default:
            return super().call_function(target, args, kwargs)
        buffer, value = args[:2]
        self._written[id(buffer)] = torch.empty_like(buffer).copy_(value)
        return buffer

    def after(self, buffer: torch.Tensor) -> torch.Tensor:
        """What the buffer is after the graph has run."""
        return self._written.get(id(buffer), buffer)


def _own(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _output_name(number: int, count: int) -> str:
    return "the loss or output" if count == 1 else f"output {number}"


def _gradients(
    outputs: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Of sums of the outputs, weighted by the same numbers each time."""
    trained = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not trained or not tensors:
        return [None] * len(tensors)
    generator = torch.Generator().manual_seed(0)
    weights = [_weights(output, number, generator) for number, output in enumerate(trained)]
    return torch.autograd.grad(trained, tensors, weights, allow_unused=True)


def _weights(output: torch.Tensor, number: int, generator: torch.Generator) -> torch.Tensor:
    if output.numel() == 1:
        return torch.full_like(output.detach(), 1.0 / (1 + number))
    drawn = torch.randn(output.shape, generator=generator)
    return drawn.to(output.device, output.dtype)


@contextmanager
def _without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hooks of these tensors do not run inside."""
    hooks = [t._backward_hooks for t in tensors if t._backward_hooks]
    before = [dict(own) for own in hooks]
    for own in hooks:
        own.clear()
    try:
        yield
    finally:
        for own, kept in zip(hooks, before, strict=True):
            own.update(kept)


def _error(got: Any, wanted: Any) -> float:
    """How far apart two results are; of others than tensors 0 where they are equal."""
    if got is None or wanted is None:
        there = got if wanted is None else wanted
        none_or_zeros = there is None or (isinstance(there, torch.Tensor) and not there.any())
        return 0.0 if none_or_zeros else float("inf")
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return 0.0 if type(got) is type(wanted) and got == wanted else float("inf")
    got, wanted = (t.to_dense() if t.is_sparse else t for t in (got, wanted))
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return float("inf")
    return relative_error(got, wanted)
