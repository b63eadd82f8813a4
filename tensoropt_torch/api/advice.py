"""What training takes and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_args

from tensoropt_torch import advising
from tensoropt_torch.advising import Advice, Asked, Beside, Machine, Price, work_of
from tensoropt_torch.checks import check_counts, check_memory_limit
from tensoropt_torch.errors import check_choice
from tensoropt_torch.tasks import (
    ADVISES,
    Example,
    Model,
    PlanningKeywords,
    PlanningOptions,
    check_unused,
    example_of,
    planning_of,
    takes_keywords,
)


@takes_keywords(planning=PlanningOptions)
def advise(
    model: Model | Example | Mapping[str, Example],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    machines: Sequence[Machine],
    device_counts: Sequence[int],
    tokens: float | None = None,
    samples: float | None = None,
    steps: float | None = None,
    price: Price | None = None,
    beside: Beside = "marked",
    memory_limit: float | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Advice:
    """What training takes and costs on kinds and numbers of machines (docs/advise.md): for each
    the fastest strategy that fits, with recomputation and in micro-batches unless ``recompute``
    and ``max_micro_batches`` say otherwise. Not collective.

    Args:
        model, args, kwargs: as for ``find_frontier``; or several examples by their names, such as
            several batches of one model.
        machines: kinds such as ``h100``, of which there are any number; presets, cluster files and
            descriptions, which have as many devices as they have.
        device_counts: numbers of devices, for each of them.
        tokens, samples, steps: how much is trained, one of them. Samples are rows of the batch.
        price: of a device for an hour; by default that of the cluster.
        beside: where DDP, FSDP2 and tensor parallelism with FSDP2 are looked at as well: at the
            rows that are ``"marked"`` (cheapest, fastest, knee), at ``"all"``, or at ``"none"``.
        memory_limit: bytes per device; by default 90 % of it.

    Raises:
        TensorOptError: a machine is not known or has no such number of devices, the work is not
            given in one unit that the example has, or the model cannot be captured.
    """
    check_counts(device_counts)
    check_memory_limit(memory_limit)
    check_choice("beside", beside, get_args(Beside))
    if "max_micro_batches" not in keywords and keywords.get("planning") is None:
        keywords["max_micro_batches"] = advising.MOST_MICRO_BATCHES
    planning, work = planning_of(keywords), work_of(tokens, samples, steps)
    check_unused("advise", planning, ADVISES)
    if isinstance(model, Mapping):
        examples = dict(model)
    else:
        example = example_of(model, args, kwargs, keywords)
        examples = {type(example.model).__name__: example}
    return advising.advise(
        Asked(examples, machines, device_counts, work, planning, memory_limit, price, beside)
    )
