"""Capture of a module with ``torch.export`` (training IR).

The result is an ``fx.GraphModule`` of ATen calls whose placeholders are the
module's parameters, buffers and inputs, together with the C++ graph of it.
"""

from __future__ import annotations

import hashlib
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.lowering import Lowering, lower
from tensoropt_torch.frontend.passes import BUFFER, FOLDED, normalise, target_name

SourceKind = Literal["parameter", "constant", "input", "literal"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_PREFIX = "model."


@dataclass(frozen=True)
class Source:
    """A placeholder of the captured graph.

    ``names`` are the qualified names in the user's module (several for a tied
    parameter), or the name of the input. A ``literal`` is a non-tensor input,
    fixed at capture.
    """

    placeholder: fx.Node
    kind: SourceKind
    names: tuple[str, ...]


@dataclass(frozen=True)
class CapturedModel:
    """A module as the planner and the emission see it."""

    graph_module: fx.GraphModule
    sources: tuple[Source, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    constants: Mapping[str, torch.Tensor]
    lowering: Lowering
    fingerprint: str = field(default="")

    @property
    def graph(self) -> _C.Graph:
        return self.lowering.graph

    @property
    def inputs(self) -> list[Source]:
        return [s for s in self.sources if s.kind in ("input", "literal")]

    @property
    def parameters(self) -> list[Source]:
        return [s for s in self.sources if s.kind == "parameter"]


class _WithLoss(nn.Module):
    """The user's module, with the loss computed inside."""

    def __init__(
        self, model: nn.Module, loss_fn: Callable[..., torch.Tensor] | None, num_inputs: int
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.num_inputs = num_inputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = dict(self.model.named_buffers())
        output = self.model(*args[: self.num_inputs], **kwargs)
        for name, buffer in self.model.named_buffers():
            if buffer is not before[name]:
                self._write(name, before[name], buffer)
        return output if self.loss_fn is None else self.loss_fn(output, *args[self.num_inputs :])

    def _write(self, name: str, buffer: torch.Tensor, value: torch.Tensor) -> None:
        """A new tensor under a buffer's name becomes new contents of the buffer."""
        if (value.shape, value.dtype) != (buffer.shape, buffer.dtype):
            raise TensorOptError(
                f"the forward pass of {type(self.model).__name__} changes buffer '{name}' from "
                f"{buffer.dtype} {tuple(buffer.shape)} to {value.dtype} {tuple(value.shape)}; "
                "a buffer has to keep its size and dtype"
            )
        buffer.copy_(value.detach())


def capture(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
) -> CapturedModel:
    """Capture ``model(*args, **kwargs)``, followed by ``loss_fn(output, *targets)``.

    Args:
        model: any ``nn.Module`` that ``torch.export`` accepts; parameters may
            be on the meta device.
        args, kwargs: example inputs of the global batch; only shapes and
            dtypes matter, so meta tensors will do.
        loss_fn: called with the model's output and ``targets`` if the loss is
            not computed inside the module.

    Raises:
        TensorOptError: the module cannot be captured; says why and where.
    """
    wrapper = _WithLoss(model, loss_fn, len(args))
    inputs, named = _distinct(((*args, *targets), dict(kwargs or {})))
    exported = _export(wrapper, inputs, named)
    module = exported.graph_module
    sources = _sources(exported)
    module.graph.owning_module = module
    normalise(module.graph)
    module.recompile()
    folded = _folded_sources(module.graph)
    sources = (*sources, *folded)
    _warn_without_rule(module.graph)
    lowering = lower(module.graph, {s.placeholder: (s.kind, s.names[0]) for s in sources})
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
    assert in_spec is not None and out_spec is not None
    constants = {
        name: tensor
        for name, tensor in {**exported.state_dict, **exported.constants}.items()
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, nn.Parameter)
    }
    return CapturedModel(
        module,
        sources,
        in_spec,
        out_spec,
        {name.removeprefix(_PREFIX): tensor for name, tensor in constants.items()}
        | {source.names[0]: source.placeholder.meta[FOLDED] for source in folded},
        lowering,
        _fingerprint(module.graph),
    )


def _distinct(arguments: Arguments) -> Arguments:
    """Export merges arguments that are one tensor object; make them different."""
    seen: set[int] = set()

    def copy_if_seen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            return value.clone()
        seen.add(id(value))
        return value

    result: Arguments = pytree.tree_map(copy_if_seen, arguments)
    return result


def _export(
    wrapper: _WithLoss, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            # Recurrent modules keep a list of their weights, which export replaces
            # and restores.
            warnings.filterwarnings("ignore", r"The tensor attributes .*\._flat_weights\[")
            return torch.export.export(wrapper, args, kwargs, strict=False)
    except TensorOptError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise TensorOptError(
            f"torch.export cannot capture {type(wrapper.model).__name__}: "
            f"{type(error).__name__}: {reason[0] if reason else 'no message'}"
            f"{_user_line(error)}. The forward pass must not depend on the values of "
            "tensors (no .item(), no Python if on a tensor) and must accept the example "
            "inputs; try torch.where, or torch.cond, or mark the function as a custom op"
        ) from error


def _user_line(error: BaseException) -> str:
    """The innermost line of the user's code on the way to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and "tensoropt_torch" not in f.filename]
    if not own:
        return ""
    frame = own[-1]
    return f" (at {frame.filename}:{frame.lineno}: {frame.line})"


def _sources(exported: torch.export.ExportedProgram) -> tuple[Source, ...]:
    state = {**exported.state_dict, **exported.constants}
    aliases: dict[int, list[str]] = {}
    for name, tensor in state.items():
        aliases.setdefault(id(tensor), []).append(name.removeprefix(_PREFIX))
    placeholders = exported.graph_module.graph.find_nodes(op="placeholder")
    specs = exported.graph_signature.input_specs
    by_tensor: dict[int, fx.Node] = {}
    sources = []
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            literal = isinstance(spec.arg, ConstantArgument)
            sources.append(Source(node, "literal" if literal else "input", (node.name,)))
            continue
        tensor = state[spec.target]
        first = by_tensor.setdefault(id(tensor), node)
        if first is not node:
            node.replace_all_uses_with(first)
            exported.graph_module.graph.erase_node(node)
            continue
        parameter = spec.kind == InputKind.PARAMETER
        node.meta[BUFFER] = not parameter
        kind: SourceKind = "parameter" if parameter else "constant"
        sources.append(Source(node, kind, tuple(aliases[id(tensor)])))
    return tuple(sources)


def _folded_sources(graph: fx.Graph) -> tuple[Source, ...]:
    """The constants that normalising has computed."""
    nodes = [node for node in graph.find_nodes(op="placeholder") if FOLDED in node.meta]
    return tuple(Source(node, "constant", (node.name,)) for node in nodes)


def _warn_without_rule(graph: fx.Graph) -> None:
    known = frozenset(_C.rule_targets())
    names = {target_name(node) for node in graph.nodes}
    for name in sorted(names - known - {""}):
        warnings.warn(f"operator '{name}' has no rule: it runs whole on every device", stacklevel=3)


def _fingerprint(graph: fx.Graph) -> str:
    """A hash of operators, shapes and dtypes: equal for equal computations, on
    whatever device they were captured."""
    digest = hashlib.sha256()
    for node in graph.nodes:
        value = node.meta.get("val")
        metas = [
            (tuple(v.shape), str(v.dtype), node.op == "placeholder" and v.requires_grad)
            for v in pytree.tree_leaves(value)
            if isinstance(v, torch.Tensor)
        ]
        kwargs = {k: v for k, v in node.kwargs.items() if not isinstance(v, torch.device)}
        digest.update(f"{node.name}|{node.op}|{node.target}|{node.args}|{kwargs}|{metas}".encode())
    return digest.hexdigest()[:16]
