"""Plans in stages for other calls of a model whose stages have their parameters already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensoropt_torch.batches import batch_rows, micro_batched
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.plan import StagedPlan, StagePlan
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.program.stage_schedules import in_flight
from tensoropt_torch.stages import cut_graph, owned_cuts


def find_pinned_stages(
    plan: StagedPlan,
    captured: CapturedModel,
    owned: Sequence[frozenset[str]],
    storage: Mapping[str, str],
    most_rows: int,
) -> StagedPlan:
    """The plan of ``captured``, another graph of the model of ``plan``: cut where the stages have
    what each part takes, each part with the strategy that ``find_pinned`` finds. Every device of
    a stage gets all rows.

    Args:
        owned: by part, the parameters and buffers that its stage has.
        storage: the layouts of all of them, by name.
        most_rows: of a micro-batch, where gradients are made; without them there is one.

    Raises:
        TensorOptError: the graph takes parameters in another order.
    """
    whole, deferred = captured, plan.schedule == "gpipe"
    if captured.context.gradients:
        whole_inputs = plan.shares.whole
        rows = batch_rows(captured, whole_inputs)
        counts = (c for c in range(1, rows + 1) if rows % c == 0 and rows <= c * most_rows)
        captured = micro_batched(captured, next(counts, 1), whole_inputs, deferred=deferred)
    count = captured.micro_batches
    cuts = owned_cuts(captured, owned)
    parts = []
    draws = 0
    for number, graph in enumerate(cut_graph(captured, cuts, deferred=deferred)):
        flight = 1
        if captured.context.gradients:
            flight = in_flight(plan.schedule, number, plan.stages, count, plan.chunks)
        own = plan.parts[number].plan
        own = replace(own, settings=replace(own.settings, in_flight=flight))
        names = {source.names[0] for source in graph.captured.sources}
        pinned = {name: layout for name, layout in storage.items() if name in names}
        strategy = find_pinned(own, graph.captured, pinned, gathered=True)
        found = own.of_variant(graph.captured, strategy)
        part = StagePlan(replace(found, captured=None), pinned, draws)
        draws += RankPart(found, graph.captured, 0, pinned).random_calls
        parts.append(part)
    return StagedPlan(
        whole.fingerprint,
        tuple(cuts),
        tuple(parts),
        plan.stages,
        count,
        plan.schedule,
        shares=plan.shares,
    )
