"""Runs the graph of a rank while a tape records: what a dispatch mode does not see of it, the tape
is told.

::

    if all(map(can_be_recorded, calls)):
        with tape:
            outputs = Recorder(rank_graph, tape).run(*inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.hooked import pass_sink
from tensoropt_torch.emit.tape import Tape
from tensoropt_torch.emit.traced import TRACED
from tensoropt_torch.frontend.python_calls import is_python_call
from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.agreement import confirm_call
from tensoropt_torch.runtime.parameter_queue import parameter_queue
from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.runtime.recomputation import recomputed, recomputed_beside, recomputed_draw

# Operators of ours of which a mode sees all that they do in both directions, and which make what
# does not depend on values: neither shapes nor whom they send how much.
_RECORDED = TRACED | {
    OPS.await_gradients.default,
    OPS.balanced_causal_attention.default,
    OPS.batch_norm_groups.default,
    OPS.batch_norm_sharded.default,
    OPS.begin_gathers.default,
    OPS.begin_value.default,
    OPS.bounded_lookup.default,
    OPS.check_lookup.default,
    OPS.check_lookups.default,
    OPS.cross_entropy_vocab.default,
    OPS.forward_sums.default,
    OPS.masked_scatter_shard.default,
    OPS.mean_over_ranks.default,
    OPS.out_of_range.default,
    OPS.reshard.default,
    OPS.reshard_gradients.default,
    OPS.reshard_parameter.default,
    OPS.sum_of.default,
}
_DRAWS = (call_seeded, recomputed_draw)
# Where the function is, that these call again in backward.
_AGAIN: Mapping[Any, int] = {recomputed: 0, recomputed_beside: 1}


def can_be_recorded(node: fx.Node) -> bool:
    """Whether a call may be: Python of the model, what values decide, and what compares the ranks
    before it draws may not."""
    if node.target in (getitem, confirm_call, parameter_queue, pass_sink, reuse.keep_before):
        return True
    if node.target in _DRAWS:
        return isinstance(node.args[0], OpOverload)
    place = _AGAIN.get(node.target)
    target = node.target if place is None else node.args[place]
    if not isinstance(target, OpOverload) or is_python_call(node):
        return False
    return target.namespace != "tensoropt" or target in _RECORDED


def is_seed(node: fx.Node) -> bool:
    """Whether an input is the seed that random operators take."""
    users = [*node.users]
    return bool(users) and all(u.target in _DRAWS and u.args[1] is node for u in users)


class Recorder(fx.Interpreter):
    """Runs a graph; the tape is told of draws, of queues, and of what is called for its effect, as
    the confirmation of the call."""

    def __init__(self, graph: fx.GraphModule, tape: Tape) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # errors are as operators say them, on all ranks alike
        self._tape = tape

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _DRAWS:
            function, seed, stream, *rest = args
            drawn = self._drawing(function, stream), seed, stream, *rest
            return super().call_function(target, drawn, kwargs)
        result = super().call_function(target, args, kwargs)
        if result is None and not isinstance(target, OpOverload) and not _takes_tensors(args):
            assert not kwargs, target
            self._tape.add_effect(target, *args)
        elif target is parameter_queue:
            self._tape.add_queue(result, *args)
        return result

    def _drawing(self, function: OpOverload, stream: tuple[int, ...]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            with self._tape.drawing(stream):
                return function(*args, **kwargs)

        return draw


def _takes_tensors(args: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(args))
