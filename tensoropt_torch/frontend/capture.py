"""Capture of a module with ``torch.export`` (training IR).

The result is an ``fx.GraphModule`` of ATen calls whose placeholders are the
module's parameters, buffers and inputs, together with the C++ graph of it.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.collector import without_collections
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.assigned_buffers import AssignedBuffers
from tensoropt_torch.frontend.assumed_checks import AssumedChecks
from tensoropt_torch.frontend.batch_norm import batch_norms_as_calls
from tensoropt_torch.frontend.call_context import (
    TRAINING,
    CallContext,
    CallForm,
    autocast_off,
    called_in,
    current_autocast,
)
from tensoropt_torch.frontend.checkpointing import checkpoints_counted
from tensoropt_torch.frontend.containers import (
    check_loss,
    register_dataclasses,
    training_output,
    whole_output,
)
from tensoropt_torch.frontend.containers_kept import containers_kept
from tensoropt_torch.frontend.ctc_loss import CtcLosses
from tensoropt_torch.frontend.drawn_decisions import DrawnDecisions
from tensoropt_torch.frontend.forward_errors import (
    errors_of,
    errors_of_loss,
    export_is_quiet,
    raise_as,
)
from tensoropt_torch.frontend.gradient_mode import DetachWithoutGrad
from tensoropt_torch.frontend.input_names import input_names
from tensoropt_torch.frontend.lazy_code import lazy_code
from tensoropt_torch.frontend.lowering import Lowering, lower, sizes_are_fixed
from tensoropt_torch.frontend.micro_batching import MicroBatching
from tensoropt_torch.frontend.on_meta import all_on_meta, is_on_meta, to_meta
from tensoropt_torch.frontend.other_memory import KeepMemory
from tensoropt_torch.frontend.own_generators import own_generators_drawn, refuse_objects
from tensoropt_torch.frontend.passes import Blocks, group_batch_norms, normalise, target_name
from tensoropt_torch.frontend.python_calls import (
    NUMBER,
    HookCounts,
    binding_of_node,
    hook_counts,
    is_python_call,
    place_hooks,
    proof_of,
    python_calls_recorded,
    settle,
)
from tensoropt_torch.frontend.sources import (
    Source,
    constants_of,
    exported_sources,
    folded_sources,
    want_blocks,
)
from tensoropt_torch.frontend.sparse_values import (
    refuse_sparse_tensors,
    refuse_split_sparse_values,
)
from tensoropt_torch.frontend.watching import (
    Attributes,
    ForwardWatch,
    Lifted,
    Numbers,
    capture_numbers,
    watched_capture,
)
from tensoropt_torch.logs import get_logger
from tensoropt_torch.units import format_seconds

log = get_logger(__name__)

_UNKNOWN_MEMORY = "fake tensor in the exported program constant's list"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class CapturedModel:
    """A module as the planner and the emission see it."""

    graph_module: fx.GraphModule
    sources: tuple[Source, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    constants: Mapping[str, torch.Tensor]
    lowering: Lowering
    form: CallForm
    context: CallContext = TRAINING
    declarations: tuple[str, ...] = ()  # rules that the user registered, as text
    fingerprint: str = field(default="")
    checkpoints: int = 0  # calls of torch.utils.checkpoint, which are not in the graph
    hooks: HookCounts = field(default_factory=dict)  # that the model's modules had
    micro_batching: MicroBatching | None = None  # if the graph is that of a micro-batch
    batch: CapturedModel | None = field(default=None, repr=False)  # the whole one, then
    attributes: Attributes = field(default_factory=Attributes, repr=False)
    numbers: Numbers | None = field(default=None, repr=False)  # that the graph takes as inputs

    @property
    def graph(self) -> _C.Graph:
        return self.lowering.graph

    def __repr__(self) -> str:
        return (
            f"CapturedModel({self.num_calls} operators, {len(self.parameters)} parameters; "
            f"fingerprint {self.fingerprint})"
        )

    @property
    def micro_batches(self) -> int:
        """How many runs of the graph make a step."""
        return 1 if self.micro_batching is None else self.micro_batching.count

    @property
    def totals(self) -> list[Source]:
        """What a micro-batch gets of the whole batch."""
        return [s for s in self.sources if s.kind == "total"]

    @property
    def num_calls(self) -> int:
        """How many operators are called."""
        return sum(node.op == "call_function" for node in self.graph_module.graph.nodes)

    @property
    def takes_numbers(self) -> bool:
        """Whether the graph takes numbers as inputs besides its sources."""
        return self.numbers is not None and bool(self.numbers.marks)

    @property
    def inputs(self) -> list[Source]:
        return [s for s in self.sources if s.kind in ("input", "literal")]

    @property
    def parameters(self) -> list[Source]:
        return [s for s in self.sources if s.kind == "parameter"]

    @property
    def blocks(self) -> dict[str, Blocks]:
        """The parameters that are seen in the graph by blocks, by first name."""
        return {s.names[0]: s.blocks for s in self.parameters if s.blocks is not None}


class _WithLoss(nn.Module):
    """The user's module, with the loss computed inside."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        num_inputs: int,
        context: CallContext,
        watch: ForwardWatch,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.num_inputs = num_inputs
        self.context = context
        self.watch = watch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with called_in(self.context), CtcLosses():
            return self.watch.traced(self._with_buffers, args, kwargs)

    def _with_buffers(self, *args: Any, **kwargs: Any) -> Any:
        buffers = AssignedBuffers(self.model)
        return buffers.write(self._call(*args, **kwargs))

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        without_grad = DetachWithoutGrad() if self.context.gradients else nullcontext()
        name = type(self.model).__name__
        asked = DrawnDecisions(name), AssumedChecks()
        with without_grad, own_generators_drawn(), KeepMemory(self.model), asked[0], asked[1]:
            inputs = args[: self.num_inputs]
            with errors_of(self.model, inputs, kwargs):
                output = self.model(*inputs, **kwargs)
        with errors_of_loss(name):
            return kept_of(output, args[self.num_inputs :], self.loss_fn, self.context, name)


def kept_of(
    output: Any,
    targets: Sequence[Any],
    loss_fn: Callable[..., torch.Tensor] | None,
    context: CallContext,
    name: str,
) -> Any:
    """What a call keeps of the output of the module of this name."""
    whole = context.outputs == "all"
    if loss_fn is None:
        if whole or not context.gradients:
            return whole_output(output)
        return training_output(output, name)
    loss = loss_fn(output, *targets)
    check_loss(loss, f"what loss_fn returns for {name}")
    return (loss, whole_output(output)) if whole else loss


@without_collections()
def capture(
    model: nn.Module | torch.export.ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    context: CallContext = TRAINING,
    blocks: Mapping[str, Blocks] | None = None,
) -> CapturedModel:
    """Capture ``model(*args, **kwargs)``, followed by ``loss_fn(output, *targets)``.

    Args:
        model: any ``nn.Module`` that ``torch.export`` accepts, an ``fx.GraphModule``
            included; if parameters are on the meta device, all is captured there. Or a
            program that was exported already, with its own example inputs if none are
            given.
        args, kwargs: example inputs of the global batch; only shapes and
            dtypes matter, so meta tensors will do. Containers may be nested.
        loss_fn: called with the model's output and ``targets`` if the loss is
            not computed inside the module.
        context: what else the call depends on.
        blocks: how parameters are seen, as another capture of the module has found it; by
            default it is found here.

    Keywords are in the order of their names, in the graph and in ``in_spec``. Without
    ``loss_fn`` the outputs are the module's. Of a dict, a dataclass or a ``ModelOutput`` with
    a ``loss`` a training step keeps only that, unless ``context`` asks for all.

    Raises:
        TensorOptError: the module cannot be captured; says why and where.
    """
    if isinstance(model, torch.export.ExportedProgram) and not args and not kwargs:
        args, kwargs = model.example_inputs
    model = as_module(model)
    positional = {"args": args, "targets": targets}
    _check_call(model, positional, kwargs, loss_fn)
    refuse_sparse_tensors(model, positional, kwargs)
    example = _Example(model, args, kwargs, loss_fn, targets, context, blocks)
    return watched_capture(model, loss_fn, lambda watch: _capture(example, watch))


def capture_with_numbers(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    plain: CapturedModel,
    keys: Sequence[Lifted],
    *,
    targets: Sequence[Any] = (),
    blocks: Mapping[str, Blocks] | None = None,
) -> CapturedModel:
    """The graph that takes the numbers ``keys`` as inputs, of a call that gives ``plain`` with
    their values.

    Raises:
        UnfollowableError: there is none.
    """
    loss_fn = plain.form.loss_fn
    example = _Example(model, args, kwargs, loss_fn, targets, plain.context, blocks)
    run = partial(_capture, example)
    marked, numbers = capture_numbers(model, loss_fn, run, plain, keys)
    return replace(marked, numbers=numbers)


@dataclass(frozen=True)
class _Example:
    """What is captured: the arguments of ``capture``."""

    model: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    loss_fn: Callable[..., torch.Tensor] | None
    targets: Sequence[Any]
    context: CallContext
    blocks: Mapping[str, Blocks] | None


def _capture(example: _Example, watch: ForwardWatch) -> CapturedModel:
    start = time.perf_counter()
    model, args, kwargs = example.model, example.args, example.kwargs
    loss_fn, targets, context = example.loss_fn, example.targets, example.context
    blocks = example.blocks
    wrapper = _WithLoss(model, loss_fn, len(args), context, watch)
    arguments = _distinct(((*args, *targets), dict(sorted((kwargs or {}).items()))), model)
    differentiable = [
        isinstance(leaf, torch.Tensor) and leaf.requires_grad
        for leaf in pytree.tree_leaves(arguments)
    ]
    with (
        torch.set_grad_enabled(context.gradients),
        autocast_off(current_autocast()),
        checkpoints_counted() as checkpoints,
        batch_norms_as_calls(context.batch_norm_groups),
        python_calls_recorded(model),
    ):
        if is_on_meta(model):
            with all_on_meta(model):
                exported = _export_watched(wrapper, *to_meta(arguments))
        else:
            exported = _export_watched(wrapper, *arguments)
    refuse_objects(exported)
    module = exported.graph_module
    names = input_names(model, args, loss_fn, *arguments)
    sources = exported_sources(exported, names, differentiable, trained=context.gradients)
    if blocks is not None:
        want_blocks(sources, blocks)
    module.graph.owning_module = module
    with autocast_off(current_autocast()), sizes_are_fixed(module.graph):
        place_hooks(module.graph)
        normalise(module.graph)
        group_batch_norms(module.graph, context.batch_norm_groups)
    module.recompile()
    settle(module.graph)
    folded = folded_sources(module.graph)
    sources = (*sources, *folded)
    lowering = lower(module.graph, {s.placeholder: (s.kind, s.names[0]) for s in sources})
    _warn_without_rule(module.graph, lowering.rules)
    declarations = _declarations(module.graph, lowering.rules)
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
    assert in_spec is not None and out_spec is not None
    captured = CapturedModel(
        module,
        sources,
        in_spec,
        out_spec,
        constants_of(exported, folded),
        lowering,
        CallForm(len(args), loss_fn, len(targets)),
        context,
        declarations,
        _fingerprint(module.graph, declarations),
        checkpoints.calls,
        hook_counts(model),
        attributes=watch.attributes,
    )
    seconds = format_seconds(time.perf_counter() - start)
    log.info("captured %s in %s: %r", type(model).__name__, seconds, captured)
    return captured


def _check_call(model: Any, positional: Mapping[str, Any], kwargs: Any, loss_fn: Any) -> None:
    if not isinstance(model, nn.Module):
        kind = "a class, not a module" if isinstance(model, type) else type(model).__name__
        raise TensorOptError(
            f"the model is {model!r} ({kind}); give an nn.Module, or a program of torch.export"
        )
    for name, values in positional.items():
        if not isinstance(values, (tuple, list)):
            raise TensorOptError(
                f"{name} is a {type(values).__name__}; give a tuple of the arguments, such as (x,)"
            )
    if not isinstance(kwargs or {}, Mapping):
        raise TensorOptError(f"kwargs is a {type(kwargs).__name__}; give a dict of the arguments")
    if loss_fn is not None and not callable(loss_fn):
        raise TensorOptError(
            f"loss_fn = {loss_fn!r} cannot be called; give a function of the model's output and "
            "the targets"
        )


def as_module(model: nn.Module | torch.export.ExportedProgram) -> nn.Module:
    """The module of an exported program, with its parameters; modules as they are."""
    if isinstance(model, torch.export.ExportedProgram):
        return model.module(check_guards=False)
    return model


def _distinct(arguments: Arguments, model: nn.Module) -> Arguments:
    """Export merges arguments that are one tensor object, or a tensor of the module;
    make them different."""
    register_dataclasses(arguments)
    own = (*model.parameters(), *model.buffers())
    seen: set[int] = {id(tensor) for tensor in own}

    def copy_if_seen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            return value.detach().clone()
        seen.add(id(value))
        return value

    result: Arguments = pytree.tree_map(copy_if_seen, arguments)
    return result


def _export_watched(
    wrapper: _WithLoss, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.export.ExportedProgram:
    exported = _export(wrapper, args, kwargs)
    if wrapper.watch.needs_second_pass:
        with wrapper.watch.second_pass():
            _export(wrapper, args, kwargs)
    return exported


def _export(
    wrapper: _WithLoss, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings(), export_is_quiet(), lazy_code():
            # Recurrent modules keep a list of their weights, which export replaces
            # and restores.
            warnings.filterwarnings("ignore", r"The tensor attributes .*\._flat_weights\[")
            with containers_kept(wrapper):
                return torch.export.export(wrapper, args, kwargs, strict=False)
    except TensorOptError:
        raise
    except Exception as error:
        name = type(wrapper.model).__name__
        if _UNKNOWN_MEMORY in str(error):
            raise TensorOptError(
                f"the forward pass of {name} uses a tensor that does not come from its inputs, "
                "parameters, buffers or calls of operators, so that a captured graph has no name "
                "for it; write it with operators, or make the function that makes it one "
                "(torch.library.custom_op)"
            ) from error
        raise_as(f"the forward pass of {name}", name, error)


def _warn_without_rule(graph: fx.Graph, rules: _C.Rules) -> None:
    known = frozenset(rules.targets())
    refuse_split_sparse_values(graph, known)
    calls = Counter(target_name(node) for node in graph.nodes)
    notes = {target_name(n): _note(n) for n in graph.nodes if is_python_call(n)}
    for name in sorted(calls.keys() - known - {""}):
        log.info("left whole, without a rule: %d calls of %s", calls[name], name)
        note = notes.get(name, "")
        warnings.warn(
            f"operator '{name}' has no rule: it runs whole on every device{note}", stacklevel=7
        )


def _note(node: fx.Node) -> str:
    """What a call of Python is, and why it runs whole."""
    proof = proof_of(target_name(node))
    reason = "" if proof is None else proof.reason
    return f" ({binding_of_node(node).title}; {reason})"


def _declarations(graph: fx.Graph, rules: _C.Rules) -> tuple[str, ...]:
    """What the user registered for operators of the graph."""
    targets = sorted({target_name(node) for node in graph.nodes} - {""})
    return tuple(text for text in map(rules.declaration, targets) if text)


def _fingerprint(graph: fx.Graph, declarations: Sequence[str]) -> str:
    """A hash of operators, shapes, dtypes and registered rules: equal for equal
    computations, on whatever device they were captured."""
    digest = hashlib.sha256()
    for declaration in declarations:
        digest.update(declaration.encode())
    for node in graph.nodes:
        value = node.meta.get("val")
        metas = [
            (tuple(v.shape), str(v.dtype), node.op == "placeholder" and v.requires_grad)
            for v in pytree.tree_leaves(value)
            if isinstance(v, torch.Tensor)
        ]
        kwargs = {
            k: v for k, v in node.kwargs.items() if not isinstance(v, torch.device) and k != NUMBER
        }
        digest.update(f"{node.name}|{node.op}|{node.target}|{node.args}|{kwargs}|{metas}".encode())
    return digest.hexdigest()[:16]
