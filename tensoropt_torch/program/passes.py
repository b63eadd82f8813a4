"""What one rank of a plan does, as records: the captured graph with all that passes put between its
calls.

::

    program = RankRecords.of(captured, space, rank_program, site, options)
    program.records       # Input(...), Reshard(...), Call(...), ..., Output(...)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.program.averaged_buffers import with_averages
from tensoropt_torch.program.calls import WrittenCalls
from tensoropt_torch.program.confirmation import confirmed
from tensoropt_torch.program.forward_sums import with_loss_sums, with_sums_joined
from tensoropt_torch.program.halos import with_halos
from tensoropt_torch.program.in_place import in_place
from tensoropt_torch.program.kept_buffers import with_copies
from tensoropt_torch.program.local_calls import CallSite
from tensoropt_torch.program.lookups import with_checks
from tensoropt_torch.program.moved_buffers import moved_inputs, with_values_kept
from tensoropt_torch.program.number_inputs import with_numbers
from tensoropt_torch.program.overlap import in_queue, with_values_begun
from tensoropt_torch.program.records import Record, check
from tensoropt_torch.program.reshards import GroupName
from tensoropt_torch.program.walk import Walk
from tensoropt_torch.program.whole_draws import WholeDraws


@dataclass(frozen=True)
class ProgramOptions:
    """How a rank runs its part.

    Attributes:
        sizes: of the mesh axes.
        averaged_axes: of all ranks that average buffers; 0: none do.
        overlap: reshards of parameters run while the rank computes.
        bucket_bytes, shard_bytes: of gradients that are summed together, and of parameters and
            gradients that are gathered and scattered together.
        whole_draws: random operators draw what one process draws, where these say which part of
            it is the rank's.
        first_draw: the number of the first random call of a step, where others come before the
            captured graph.
    """

    sizes: Sequence[int]
    averaged_axes: int = 0
    overlap: bool = False
    bucket_bytes: int = 0
    shard_bytes: int = 0
    whole_draws: WholeDraws | None = None
    first_draw: int = 0


@dataclass(frozen=True)
class RankRecords:
    """What one rank does.

    Attributes:
        records: take local parameters, constants and inputs in the order of the captured
            sources, then the seed of the step.
        uses_seeds: whether steps need one.
        group_name: of the rank's process group, by the axis sets that reshards name.
    """

    records: Sequence[Record]
    uses_seeds: bool
    group_name: GroupName

    @staticmethod
    def of(
        captured: CapturedModel,
        space: _C.SearchSpace,
        program: _C.RankProgram,
        site: CallSite,
        options: ProgramOptions,
    ) -> RankRecords:
        """The records of a captured graph under what C++ says of each call and each edge."""
        walk = Walk(captured, space, program)
        calls = WrittenCalls(
            replace(site, step_seed=walk.step_seed),
            frozenset(captured.lowering.rules.targets()),
            options.whole_draws,
            options.first_draw,
        )
        overlap, shard_bytes = options.overlap, options.shard_bytes
        records: Sequence[Record] = walk.records
        records = in_queue(records, walk.first_edges(), overlap, options.bucket_bytes, shard_bytes)
        records = with_copies(records, captured.graph_module.graph, walk.inputs)
        records = with_averages(records, options.sizes, options.averaged_axes, site.group_name)
        records = with_halos(records, site.group_name)
        # Kernels of other devices than CPUs assert.
        records = with_checks(records, site.group_name, counts=site.device.type == "cpu")
        records = calls.of(records)
        records = with_numbers(records, captured.numbers)
        records = in_place(records)
        records = with_values_kept(records, moved_inputs(captured, walk.inputs))
        records = with_values_begun(records, overlap, shard_bytes)
        records = with_loss_sums(records, site.group_name)
        records = with_sums_joined(records)
        records = confirmed(records)
        check(records)
        return RankRecords(records, calls.random_calls > options.first_draw, site.group_name)
