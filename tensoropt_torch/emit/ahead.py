"""Compiles a functional graph and its backward before they run, without looking at any values.

::

    backend, seen = Backend("inductor", Buckets(sums=25 * 2**20)), Seen()
    function = compiled_ahead(backend, graph, tensors, seen)
    seen.collectives         # of forward, then of backward

    seen = traced_ahead(backend, graph, tensors)   # the same graphs, which nobody compiles
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from tensoropt_torch.emit.collective_buckets import Buckets, in_buckets
from tensoropt_torch.emit.compiled_halves import Seen
from tensoropt_torch.emit.compiler import CUDA_GRAPHS
from tensoropt_torch.emit.cuda_graphs import check_can_be_captured
from tensoropt_torch.emit.early_products import mean_bytes, run_early
from tensoropt_torch.runtime.functional import Collective, NotFunctionalError, collectives_in

# Inductor keeps memory that is free for what it makes later, so that a graph needs more than the
# tensors that are there at once. To ask for new memory takes 1 us, nothing beside what fills that.
_OWN_BUFFER_BYTES = 128 * 1024

Compiled = Callable[..., Sequence[Any]]
Make = Callable[[fx.GraphModule, list[Any], "Backend", Seen], Compiled]


@dataclass(frozen=True)
class Backend:
    """What compiles, by name; the buckets that are made in traced graphs before it has them, and
    its options."""

    name: str
    buckets: Buckets
    patches: Mapping[str, Any] = field(default_factory=dict)

    def see(self, module: fx.GraphModule) -> list[Collective]:
        """The graph of forward, or of backward: its collectives, with buckets.

        Raises:
            NotFunctionalError: it shall be a CUDA graph and cannot.
        """
        in_buckets(module.graph, self.buckets)
        module.recompile()
        if self.patches.get(CUDA_GRAPHS):
            check_can_be_captured(module.graph)
        return list(collectives_in(module.graph))

    @property
    def without_cuda_graphs(self) -> Backend:
        """The same for graphs whose outputs are kept: those of CUDA graphs are written over by
        the next run."""
        patches = {name: value for name, value in self.patches.items() if name != CUDA_GRAPHS}
        return replace(self, patches=patches)


def compiled_ahead(
    backend: Backend, graph: fx.GraphModule, taken: Sequence[torch.Tensor], seen: Seen
) -> Compiled:
    """The graph with its backward, if gradients are enabled, for tensors like these, both of which
    are ``seen``."""
    return _ahead(BACKENDS[backend.name], backend, graph, taken, seen)


def traced_ahead(backend: Backend, graph: fx.GraphModule, taken: Sequence[torch.Tensor]) -> Seen:
    """What Inductor would be given, of the graph with its backward."""
    seen = Seen()
    _ahead(partial(_by_inductor, compiled=_as_given), backend, graph, taken, seen)
    return seen


def _ahead(
    make: Make,
    backend: Backend,
    graph: fx.GraphModule,
    taken: Sequence[torch.Tensor],
    seen: Seen,
) -> Compiled:
    if not all(isinstance(tensor, torch.Tensor) for tensor in taken):
        raise NotFunctionalError("an input of the graph is no tensor")
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    # Each by itself, whatever memory they share now: they may not share it in the next call.
    examples = [_like(mode, tensor) for tensor in taken]
    guards = torch._guards
    with (
        guards.tracing(guards.TracingContext(mode)),
        # Backward as well, so that it is not one rank alone which fails later.
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
    ):
        return make(graph, examples, backend, seen)


def _like(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    with mode:
        fake = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
    return fake.requires_grad_(tensor.requires_grad)


def _see(backend: Backend, module: fx.GraphModule, seen: Seen, is_backward: bool) -> None:
    """The graph of forward, or of backward: in the order in which it is compiled."""
    seen.collectives.append(backend.see(module))
    if is_backward:
        about: Any = torch._guards.TracingContext.get().fw_metadata
        run_early(module.graph, about.bw_donated_idxs or ())
        module.recompile()


def _as_it_is(graph: fx.GraphModule, examples: list[Any], backend: Backend, seen: Seen) -> Compiled:
    """As the backend ``aot_eager`` does."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compile(module: fx.GraphModule, inputs: list[Any], is_backward: bool) -> Any:
        _see(backend, module, seen, is_backward)
        made = boxed_nop(module, inputs)
        seen.add(module.graph, made, is_backward)
        return made

    make: Any = aot_autograd(
        fw_compiler=partial(compile, is_backward=False),
        bw_compiler=partial(compile, is_backward=True),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    made: Compiled = make(graph, examples)
    return made


def _as_given(module: fx.GraphModule, inputs: list[Any], **_: Any) -> Any:
    from torch._dynamo.backends.debugging import boxed_nop

    return boxed_nop(module, inputs)


def _by_inductor(
    graph: fx.GraphModule,
    examples: list[Any],
    backend: Backend,
    seen: Seen,
    compiled: Callable[..., Any] | None = None,
) -> Compiled:
    """``compiled`` compiles each graph, by default Inductor."""
    from torch._inductor import compile_fx
    from torch._inductor import config as inductor

    compiled = compiled or compile_fx.compile_fx_inner

    def compile(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        is_backward = bool(options.get("is_backward", False))
        _see(backend, module, seen, is_backward)
        graph = fx.Graph()  # as it is before it is compiled
        graph.output(graph.graph_copy(module.graph, {}))
        reuses = inductor.allow_buffer_reuse and mean_bytes(module.graph) < _OWN_BUFFER_BYTES
        with inductor.patch(allow_buffer_reuse=reuses):
            made = compiled(module, inputs, **options)
        seen.add(graph, made, is_backward)
        return made

    make: Any = compile_fx.compile_fx
    patches = dict(backend.patches)
    made: Compiled = make(graph, examples, inner_compile=compile, config_patches=patches)
    return made


# Those whose graphs can be seen before they have them.
BACKENDS: Mapping[str, Make] = {
    "inductor": _by_inductor,
    "aot_eager": _as_it_is,
}
