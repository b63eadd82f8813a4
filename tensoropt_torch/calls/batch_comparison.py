"""A module is compared with a graph of it on the inputs of a call: on all rows, or on a few of
them, for which it is captured once more."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.calls.call_kind import ModuleCall
from tensoropt_torch.calls.few_rows import Dims, few_rows, likely_dims, repeated_rows, rows_of_batch
from tensoropt_torch.config import available_memory
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.comparison import Difference, differences
from tensoropt_torch.frontend.undoing import StateBefore
from tensoropt_torch.units import format_bytes

FEW_ROWS = 4  # of two rows batch normalisation makes 1 and -1, whatever they are
# A graph with fewer bytes of values for each call runs in less time than another one is
# captured in.
QUICK_BYTES_PER_CALL = 2**19
MOST_BYTES = 2**31  # of the values of a graph that is run where a few rows do not do
SHARE_OF_MEMORY = 0.5  # of what is free, which a comparison may take


class NotComparedError(Exception):
    """Says why."""


def no_values(model: nn.Module) -> str | None:
    """Why a module cannot run as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        return "it is on the meta device, without values"
    if any(isinstance(tensor, DTensor) for tensor in tensors):
        return "its parameters are distributed already"
    if len({tensor.device for tensor in tensors}) > 1:
        return "it is on several devices"
    if any(t.numel() and not t.untyped_storage().size() for t in tensors):
        return "the memory of its parameters was freed"
    return None


class BatchComparison:
    """Of a module with a graph of it, on the inputs of a call."""

    def __init__(
        self,
        model: nn.Module,
        captured: CapturedModel,
        call: ModuleCall,
        shared: Dims,
        ranks: int,
        stand_ins: Mapping[tuple[str, bool], nn.Module],
    ) -> None:
        """``stand_ins`` have the attributes that were changed on them, by path."""
        self._model = model
        self._graph = captured.batch or captured
        self._call = call
        self._stand_ins = stand_ins
        is_shared = any(dim is not None for dim in shared)
        self._times = ranks if is_shared and not call.kind.gathered else 1
        self._dims = shared if is_shared else likely_dims(call.values)
        tensors = [*model.parameters(), *model.buffers()]
        # Groups of batch normalisation are the plan's, and numbers are inputs of a graph alone.
        in_groups = self._graph.context.batch_norm_groups > 1
        self._is_of_module = not in_groups and not self._graph.takes_numbers
        self._device = tensors[0].device if tensors else torch.device("cpu")

    def made(self) -> tuple[str, list[Difference]]:
        """On which rows, and what is different.

        Raises:
            NotComparedError: the module cannot run so.
        """
        reason = no_values(self._model)
        if reason is not None:
            raise NotComparedError(reason)
        self._check_memory()
        before = StateBefore(self._model)
        try:
            with _as_called(self._model, self._call):
                self._take_attributes()
                return self._first_that_works()
        finally:
            before.restore()

    def _take_attributes(self) -> None:
        """What was changed on the parallel module is so on the model."""
        for place, _ in self._call.kind.attributes.changed:
            if not place.of_loss:
                own = vars(self._model.get_submodule(place.path))
                theirs = vars(self._stand_ins[place[::2]])
                if place.name in theirs:
                    own[place.name] = theirs[place.name]
                else:
                    own.pop(place.name, None)

    def _first_that_works(self) -> tuple[str, list[Difference]]:
        reasons = []
        for attempt in self._attempts():
            try:
                return attempt()
            except Exception as error:  # whatever the module raises for such rows
                reasons.append(_first_line(error))
        raise NotComparedError("; ".join(dict.fromkeys(reasons)) or "it is too large")

    def _attempts(self) -> Iterator[Callable[[], tuple[str, list[Difference]]]]:
        whole_bytes = _bytes_of(self._graph.graph_module.graph)
        runs_whole = self._is_of_module and _has_values(self._graph, self._model)
        rows = rows_of_batch(self._call.values, self._dims)
        most = min(MOST_BYTES, SHARE_OF_MEMORY * _free_bytes(self._device))
        quick = whole_bytes <= min(most, QUICK_BYTES_PER_CALL * self._graph.num_calls)
        if runs_whole and quick:
            yield self._on_all_rows
            return
        if rows > FEW_ROWS:
            yield self._on_few_rows
        if whole_bytes <= most:
            yield self._on_all_rows if runs_whole else self._on_own_rows

    def _on_all_rows(self) -> tuple[str, list[Difference]]:
        """The graph itself, with this rank's rows in place of those of other ranks."""
        values = repeated_rows(self._call.values, self._dims, self._times)
        return f"on {self._in_words(values)}", self._compared(self._graph, values)

    def _on_own_rows(self) -> tuple[str, list[Difference]]:
        return self._captured_for(list(self._call.values))

    def _on_few_rows(self) -> tuple[str, list[Difference]]:
        return self._captured_for(few_rows(self._call.values, self._dims, FEW_ROWS))

    def _captured_for(self, values: list[Any]) -> tuple[str, list[Difference]]:
        """Another graph for these rows, of the same operators."""
        args, kwargs = self._arguments(values)
        form = self._graph.form
        # What capture draws is not what the module draws next, if that is from Python or NumPy.
        before = StateBefore(self._model, random_numbers=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said of the graph that is trained
            other = capture(
                self._model,
                args[: form.num_inputs],
                kwargs,
                loss_fn=form.loss_fn,
                targets=args[form.num_inputs :],
                context=replace(self._graph.context, batch_norm_groups=1),
                blocks=self._graph.blocks,
            )
        before.restore()
        if self._is_of_module and not _same_operators(self._graph, other):
            raise NotComparedError("captured for these rows alone it has other operators")
        return f"on {self._in_words(values)}", self._compared(other, values)

    def _compared(self, graph: CapturedModel, values: list[Any]) -> list[Difference]:
        args, kwargs = self._arguments(values)
        return differences(self._model, graph, args, kwargs)

    def _arguments(self, values: Sequence[Any]) -> Any:
        """Where the module is, with the gradients of the call."""
        moved = [
            v.detach().to(self._device).requires_grad_(v.requires_grad)
            if isinstance(v, torch.Tensor)
            else v
            for v in values
        ]
        return pytree.tree_unflatten(moved, self._call.kind.spec)

    def _in_words(self, values: Sequence[Any]) -> str:
        rows = rows_of_batch(values, self._dims)
        return f"{rows} rows of the first batch" if rows else "the first batch"

    def _check_memory(self) -> None:
        """There are two sets of gradients at once."""
        trained = sum(p.nbytes for p in self._model.parameters() if p.requires_grad)
        free = _free_bytes(self._device)
        if 2 * trained > SHARE_OF_MEMORY * free:
            raise NotComparedError(
                f"its gradients would take {format_bytes(2 * trained)} on the first rank, of which "
                f"{format_bytes(free)} are free"
            )


@contextmanager
def _as_called(model: nn.Module, call: ModuleCall) -> Iterator[None]:
    """Inside, the module is in the modes of the call, and the same parameters are trained."""
    before = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    _set_modes(model, call.kind.modes, call.kind.trained)
    try:
        yield
    finally:
        _set_modes(model, *before)


def _set_modes(model: nn.Module, modes: Sequence[bool], trained: Sequence[bool]) -> None:
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    for parameter, wanted in zip(model.parameters(), trained, strict=True):
        parameter.requires_grad_(wanted)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def _has_values(captured: CapturedModel, model: nn.Module) -> bool:
    """Whether constants of the graph have some, besides buffers, whose values are the model's."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    constants = [t for name, t in captured.constants.items() if name not in buffers]
    return all(type(t) is torch.Tensor and not t.is_meta for t in constants)


def _bytes_of(graph: fx.Graph) -> int:
    """Of what all calls of a graph return."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    leaves = pytree.tree_leaves([node.meta.get("val") for node in calls])
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))


def _same_operators(one: CapturedModel, other: CapturedModel) -> bool:
    """Whether two graphs make the same calls but for sizes, with the same constants."""
    if _calls(one) != _calls(other):
        return False
    constants = [[c.constants[s.names[0]] for s in c.sources if s.is_folded] for c in (one, other)]
    return len(constants[0]) == len(constants[1]) and all(
        a.shape != b.shape or (not a.is_meta and torch.equal(a, b))
        for a, b in zip(*constants, strict=True)
    )


def _calls(captured: CapturedModel) -> list[tuple[str, list[str]]]:
    """Operators and those of their arguments that are no sizes."""
    nodes = captured.graph_module.graph.nodes
    return [(str(n.target), _literals(n)) for n in nodes if n.op == "call_function"]


def _literals(node: fx.Node) -> list[str]:
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return [repr(leaf) for leaf in leaves if isinstance(leaf, (float, bool, str, torch.dtype))]


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or ["no message"]
    return text[0] if isinstance(error, NotComparedError) else f"{type(error).__name__}: {text[0]}"
