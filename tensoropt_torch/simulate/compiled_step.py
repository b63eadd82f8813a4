"""A training step of one rank that is compiled as one graph, without its memory.

What the compiler would be given, forward and backward with what is kept between them, is traced on
tensors without memory; ``compiled_memory.py`` says what memory they have.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from tensoropt_torch import emit
from tensoropt_torch.emit.ahead import traced_ahead
from tensoropt_torch.emit.compiled_halves import Seen
from tensoropt_torch.emit.compiler import CompileOptions
from tensoropt_torch.emit.functional import FunctionalWriter
from tensoropt_torch.emit.whole import WholeGraph
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.runtime.functional import NotFunctionalError
from tensoropt_torch.simulate.compiled_memory import GraphMemory, outputs_of
from tensoropt_torch.simulate.ledger import Ledger
from tensoropt_torch.simulate.simulated_rank import SimulatedRank, group_name
from tensoropt_torch.simulate.tracker import name_of

_CPU = torch.device("cpu")


class CompiledPass:
    """Forward and backward of a rank, as Inductor has them.

    Raises:
        TensorOptError: the step is not compiled as one graph, and why.
    """

    def __init__(self, rank: SimulatedRank) -> None:
        try:
            seen = _traced(rank)
        except NotFunctionalError as error:
            raise TensorOptError(
                f"compiled=True: this plan's steps are not compiled as one graph ({error}); "
                "simulate them without compiled=True, which is what they take besides what is "
                "fused between collectives"
            ) from error
        if seen.forward is None or seen.backward is None:
            raise TensorOptError(
                "compiled=True: nothing in the captured model is trained; simulate it without"
            )
        self._forward, self._backward = (graph for graph, _ in (seen.forward, seen.backward))

    def forward(self, ledger: Ledger) -> dict[fx.Node, int]:
        """Runs forward; the allocations of what backward takes, by its placeholders."""
        memory = GraphMemory(self._forward)
        alive = _replay(memory, ledger, {})
        later = self._backward.find_nodes(op="placeholder")
        given = outputs_of(self._forward)
        saved = given[len(given) - (len(later) - 1) :]
        found: dict[fx.Node, int] = {}
        for placeholder, value in zip(later, saved, strict=False):
            owner = None if value is None else memory.owner(value)
            if owner in alive:
                found[placeholder] = alive[owner]
        return found

    def backward(self, ledger: Ledger, saved: dict[fx.Node, int]) -> list[int]:
        """Runs backward, which frees what was saved; the allocations of gradients."""
        memory = GraphMemory(self._backward)
        alive = _replay(memory, ledger, saved)
        gradients = (memory.owner(one) for one in outputs_of(self._backward) if one is not None)
        return list(dict.fromkeys(alive[owner] for owner in gradients if owner in alive))


def _traced(rank: SimulatedRank) -> Seen:
    """What the compiler is given of the rank's step."""
    part = rank.part
    emitter = part.emitter(_CPU, group_name)
    emitter.write()
    untrained = frozenset(
        source.placeholder.name for source in part.captured.sources if source.kind != "parameter"
    )
    program = FunctionalWriter(emitter.program, untrained).emit()
    backend = emit.backend_of(part, CompileOptions(), group_name)
    on_cpu = rank.on(_CPU)
    with rank.silent():
        with FakeTensorMode(allow_non_fake_inputs=True):
            taken = WholeGraph(program, backend).taken(_values(on_cpu))
        with torch.enable_grad():
            return traced_ahead(backend, program.main, taken)


def _values(rank: SimulatedRank) -> list[object]:
    """What the graph of a rank takes, with the seed."""
    variant = programs_of(rank.module()).base
    args, kwargs = rank.inputs()
    inputs = torch.utils._pytree.tree_leaves((args, kwargs))
    values, trained = variant.boxed_values(inputs, variant.own_tensors(), 0)
    for number in trained.numbers:
        values[number] = values[number].detach().requires_grad_()
    return values


def _replay(memory: GraphMemory, ledger: Ledger, given: dict[fx.Node, int]) -> dict[fx.Node, int]:
    """Allocates and frees what a graph does; what is alive afterwards, by who has it."""
    alive = dict(given)
    shared = list(given.values())
    for event in memory.events(lambda placeholder: placeholder in given):
        target = event.node.target
        ledger.operator = name_of(target) if isinstance(target, OpOverload) else event.node.name
        ledger.node = event.node.name
        if event.takes_over is not None:
            alive[event.node] = alive.pop(event.takes_over)
        elif event.made_bytes:
            alive[event.node] = ledger.allocate(event.made_bytes)
        for node in event.freed:
            number = alive.pop(node)
            if number in shared:
                shared.remove(number)
                if number in shared:  # another view of it is yet to be read
                    continue
            ledger.free(number)
    return alive
