"""A rank's step as two compiled graphs: one of forward, one of backward, with all collectives.

::

    whole = whole_graph(part, records, "inductor", otherwise)
    outputs = whole.forward(*inputs, seed)       # as the graph of the rank, ``otherwise``

AOTAutograd traces both of the functional graph at the first call, with tensors of no memory, and
hands them to the backend. Ranks then compare which collectives their graphs have, one after the
other. Unless all have the same, or where the compiler fails on some rank, all run ``otherwise``
from then on, and the log says why.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.ahead import BACKENDS, Collectives, Compiled, Traced, compiled_ahead
from tensoropt_torch.emit.collective_buckets import Buckets
from tensoropt_torch.emit.functional import FunctionalProgram, FunctionalWriter, Place
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.logs import get_logger
from tensoropt_torch.program.passes import RankRecords
from tensoropt_torch.runtime.agreement import confirm_call, gather
from tensoropt_torch.runtime.functional import NotFunctionalError
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tensoropt_torch.runtime.random import seed_tensor
from tensoropt_torch.units import format_duration

log = get_logger(__name__)

_NOT_USED = "collectives are not compiled, what is between them is: %s"


class WholeGraph:
    """Takes and gives what the graph of a rank does, which is ``otherwise``.

    Attributes:
        reason: why that is run instead; empty: it is not.
    """

    def __init__(
        self,
        program: FunctionalProgram,
        backend: str,
        buckets: Buckets,
        otherwise: fx.GraphModule,
    ) -> None:
        self.reason = ""
        self._program = program
        self._backend = backend
        self._buckets = buckets
        self._otherwise = otherwise
        self._compiled: dict[bool, tuple[Compiled, list[tuple[int, ...]]]] = {}
        self._leaves, self._spec = pytree.tree_flatten(
            program.output, is_leaf=lambda leaf: isinstance(leaf, Place)
        )

    @property
    def num_graphs(self) -> int:
        """How many graphs were compiled so far: with gradients, each with its backward, and
        without."""
        return len(self._compiled)

    def forward(self, *values: Any) -> Any:
        """The outputs of the rank; ``values`` are its inputs and the seed of the step."""
        if self.reason:
            return self._otherwise.forward(*values)
        program = self._program
        given: Sequence[Any] = ()
        if program.before is not None:
            with torch.no_grad():
                given = program.before.forward(*values)
        seed = [seed_tensor(values[-1])] if program.takes_seed else []
        taken = [*[values[number] for number in program.inputs], *seed, *given]
        gradients = torch.is_grad_enabled()
        if gradients not in self._compiled and not self._compile(taken):
            return self._otherwise.forward(*values)
        made = self._run(*self._compiled[gradients], taken)
        if program.after is not None:
            program.after.forward(*made[program.outputs :])
        leaves = [made[leaf.number] if isinstance(leaf, Place) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)

    def _run(
        self, compiled: Compiled, strides: list[tuple[int, ...]], taken: list[torch.Tensor]
    ) -> Sequence[Any]:
        """With tensors that lie in memory as those did for which it was compiled."""
        changed = self._program.changed
        written = {taken[number].untyped_storage()._cdata for number in changed}
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, tensor in enumerate(taken):
            is_changed = number in changed
            shared = written and not is_changed and tensor.untyped_storage()._cdata in written
            if tensor.stride() != strides[number] or shared:
                own = tensor.new_empty_strided(tensor.shape, strides[number])
                taken[number] = own.copy_(tensor)
                copies += [(tensor, own)] if is_changed else []
        made = compiled(*taken)
        for tensor, own in copies:
            tensor.copy_(own)
        return made

    def _compile(self, taken: Sequence[torch.Tensor]) -> bool:
        """Compiles both graphs on all ranks; False: some rank cannot, or has others."""
        confirm_call()  # what follows is collective
        begin = time.perf_counter()
        traced = Traced(self._buckets)
        compiled, error = None, ""
        try:
            compiled = compiled_ahead(self._backend, self._program.main, taken, traced)
        except LostRanksError:
            raise
        except Exception as caught:
            error = str(caught) or type(caught).__name__
        reports = gather((error, traced.collectives))
        self.reason = _reason([error for error, _ in reports], [own for _, own in reports])
        if self.reason or compiled is None:
            log.warning(_NOT_USED, self.reason)
            return False
        self._compiled[torch.is_grad_enabled()] = compiled, [t.stride() for t in taken]
        count = sum(map(len, traced.collectives))
        duration = format_duration(time.perf_counter() - begin)
        log.info("compiled a step with %d collectives in %s", count, duration)
        return True


def _reason(errors: Sequence[str], collectives: Sequence[Collectives]) -> str:
    """Why the graphs of the ranks cannot run together; empty: they can."""
    for rank, error in enumerate(errors):
        if error:
            return f"rank {rank}: {error.strip().splitlines()[0]}"
    if any(own != collectives[0] for own in collectives):
        return "the collectives of the ranks' graphs differ"
    return ""


def whole_graph(
    part: RankPart, records: RankRecords, backend: str, otherwise: fx.GraphModule
) -> WholeGraph | None:
    """That of a rank's records; None: there is none, which the log explains. Collective."""
    program, reason = None, ""
    try:
        program = _program(part, records, backend)
    except NotFunctionalError as error:
        reason = str(error)
    reason = next((text for text in gather(reason) if text), "")
    if program is None or reason:
        log.info(_NOT_USED, reason)
        return None
    settings = part.plan.settings
    buckets = Buckets(int(settings.bucket_bytes), int(settings.shard_bytes))
    return WholeGraph(program, backend, buckets, otherwise)


def _program(part: RankPart, records: RankRecords, backend: str) -> FunctionalProgram:
    if backend not in BACKENDS:
        raise NotFunctionalError(f"backend '{backend}' is none of {', '.join(BACKENDS)}")
    if part.captured.micro_batching is not None:
        raise NotFunctionalError("the step has micro-batches")
    sources = part.captured.sources
    untrained = frozenset(s.placeholder.name for s in sources if s.kind != "parameter")
    return FunctionalWriter(records, untrained).emit()
