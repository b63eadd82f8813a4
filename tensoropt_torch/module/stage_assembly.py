"""What a rank of a stage runs, put together from the graphs of the stages and what it has of them:
by ``StageMaker`` with process groups and values, by a simulation without either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.module.reached import Reach
from tensoropt_torch.module.stage_outputs import StageOutput
from tensoropt_torch.module.stage_part import StageChunk, StagePart, Tied
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.program.stage_schedules import StageSchedule
from tensoropt_torch.runtime.agreement import CallAgreement
from tensoropt_torch.runtime.stage_groups import StageGroups
from tensoropt_torch.space.rows import OutputRows, loss_node, rows_of_inputs
from tensoropt_torch.stages import StageGraph

# Of each output of each part, by the numbers of both: the dim along which devices of a stage have
# shares, and whether, where each has all of it, the sum of their gradients counts.
OutputDims = Mapping[tuple[int, int], tuple[int | None, bool]]


def stage_part(
    groups: StageGroups,
    captured: CapturedModel,
    graphs: Sequence[StageGraph],
    schedule: StageSchedule,
    chunks: tuple[StageChunk, ...],
    parameters: Mapping[str, torch.Tensor],
    tied: tuple[Tied, ...],
    dims: OutputDims,
    agreement: CallAgreement,
    *,
    uses_seeds: bool,
    output_rows: tuple[OutputRows, ...] = (),
) -> StagePart:
    """See ``StagePart``; ``captured`` is the graph of a micro-batch that was cut into
    ``graphs``, and ``dims`` are of all outputs of these."""
    loss = loss_node(captured)
    makes_gradients = schedule.makes_gradients
    settings = chunks[0].variant.plan.settings
    return StagePart(
        groups,
        schedule,
        chunks,
        parameters,
        tied,
        _stage_outputs(captured, graphs, schedule.stages, dims, settings.num_shares),
        _outputs(captured).index(loss) if makes_gradients and loss is not None else -1,
        Reach(captured) if makes_gradients else None,
        captured.out_spec,
        uses_seeds,
        {n: d for c in chunks for n, d in _rows_of(c).items()},
        settings.num_shares,
        captured.batch or captured,
        agreement,
        output_rows,
    )


def chunk_of(graph: StageGraph, part: RankPart, variant: Variant) -> StageChunk:
    """The chunk that runs a part."""
    settings = part.plan.settings
    by_name = {source.names[0]: source for source in part.captured.inputs}
    received = tuple(part.local_shape(by_name[c.name]) for c in graph.received)
    dims = [dim for dim, _ in output_dims_of(part)[len(graph.outputs) :]]
    sent = tuple(
        _share(crossing.shape, dim, settings.num_shares)
        for crossing, dim in zip(graph.sent, dims, strict=True)
    )
    is_shared = settings.inputs == "sharded" and settings.num_devices > 1
    alone = tuple(is_shared and dim is None for dim in dims)
    return StageChunk(graph, variant, received, sent, alone)


def output_dims_of(part: RankPart) -> tuple[tuple[int | None, bool], ...]:
    """Of each output of a part, as ``OutputDims``."""
    settings = part.plan.settings
    rows = part.output_rows(settings)
    if settings.inputs != "sharded":
        return tuple((None, False) for _ in rows)
    several = settings.num_devices > 1
    return tuple((row.dim, several and row.dim is None and not row.is_loss) for row in rows)


def _stage_outputs(
    captured: CapturedModel,
    graphs: Sequence[StageGraph],
    stages: int,
    dims: OutputDims,
    shares: int,
) -> tuple[StageOutput, ...]:
    values = _outputs(captured.batch or captured)
    found: dict[int, StageOutput] = {}
    for number, graph in enumerate(graphs):
        micro = graph.captured.micro_batching
        assert micro is not None
        for place, index in enumerate(graph.outputs):
            at = number % stages, number // stages, place
            found[index] = StageOutput.of(
                values[index], at, micro.joins[place], *dims[number, place], shares
            )
    return tuple(found[index] for index in range(len(values)))


def _outputs(captured: CapturedModel) -> list[object]:
    return list(captured.graph_module.graph.output_node().args[0])  # type: ignore[arg-type]


def _share(shape: Sequence[int], dim: int | None, parts: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(shape)
    return (*shape[:dim], shape[dim] // parts, *shape[dim + 1 :])


def _rows_of(chunk: StageChunk) -> dict[str, int]:
    return rows_of_inputs(chunk.variant.captured, chunk.variant.plan.shares)
