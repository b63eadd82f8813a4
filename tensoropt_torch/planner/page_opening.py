"""What the page of a frontier says first: what the plan that is picked does, in sentences that are
derived from its costs. Each has the few words that it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensoropt_torch.planner.page_peaks import Peaks
from tensoropt_torch.planner.points import pick_index
from tensoropt_torch.telling.because import costs_in, why_faster
from tensoropt_torch.telling.collectives import Collectives
from tensoropt_torch.telling.details import PlanDetails
from tensoropt_torch.telling.stages import WAITS_FOR_STAGES, StagedDetails
from tensoropt_torch.telling.timeline import FORWARD_SHARE, Timeline
from tensoropt_torch.telling.work import work_in_words
from tensoropt_torch.units import format_bytes, format_part, format_share, format_step

Sentence = tuple[str, str]

_MOST_RUN_AGAIN = 3  # kinds of operators that are named
_LEAST_SHARE = 0.01  # of a sum, of what is told of its parts
_ALIKE = 0.01  # collectives that move the same within this share are named together
# What a simulated peak has that the sum of the search has not.
_FOR_A_MOMENT = ("gathered parameters", "temporaries", "reshard buffers")


def opening(
    details: PlanDetails,
    timeline: Timeline,
    peak_bytes: float | None,
    at_peak: Mapping[str, float],
    device_bytes: float,
) -> Iterator[Sentence]:
    """What a plan does; ``at_peak`` are bytes of the simulated peak by what they are for, as far
    as they are known, and ``device_bytes`` those that a device has."""
    devices = math.prod(details.description.sizes)
    if isinstance(details, StagedDetails):
        yield "Split", details.summary
    else:
        yield "Work", f"{work_in_words(details.work, devices)}.{_micro_batches(details)}"
    yield "Parameters and optimizer state", f"{_stored(details, devices)}."
    yield "Recomputation", f"{_runs_again(details)}."
    yield "Memory", f"{_memory(details, peak_bytes, at_peak, device_bytes)}."
    yield "Time", f"{_time(details, timeline)}."
    if details.collectives:
        yield "Network", f"{_most_bytes(details.collectives)}."


def _micro_batches(details: PlanDetails) -> str:
    count = details.description.micro_batches
    return f" A step runs its batch as {count} micro-batches." if count > 1 else ""


def _stored(details: PlanDetails, devices: int) -> str:
    """How much of what may be stored in parts a device has."""
    held = [
        f"{format_share(details.memory[name] / whole)} of the {name} "
        f"({format_bytes(details.memory[name])} of {format_bytes(whole)})"
        for name, whole in details.whole.items()
        if whole
    ]
    if not held:
        return "There are none"
    text = f"A device stores {_listed(held)}"
    gathered = sum(
        one.num_bytes
        for one in details.collectives
        if one.kind == "all_gather" and one.moved.startswith("parameters")
    )
    if gathered and devices > 1:
        text += f". Operators need {format_bytes(gathered)} of parameters gathered in a step"
    return text


def _listed(texts: Sequence[str]) -> str:
    return " and ".join([*([", ".join(texts[:-1])] if texts[:-1] else []), *texts[-1:]])


def _runs_again(details: PlanDetails) -> str:
    """The share of forward that runs again, and its time."""
    if not details.run_again:
        return "Nothing runs again in backward"
    seconds = sum(details.run_again.values())
    forward = FORWARD_SHARE * details.time["operators"]
    description = details.description
    of_all = f" of {description.num_operators}" if description.num_operators else ""
    text = (
        f"{format_share(seconds / forward)} of the time of forward runs again in backward: "
        f"{description.num_recomputed}{of_all} operators, {format_part(seconds)} of a forward of "
        f"{format_part(forward)}"
    )
    most = list(details.run_again.items())[:_MOST_RUN_AGAIN]
    named = ", ".join(f"{kind} ({format_part(seconds)})" for kind, seconds in most)
    return f"{text}; most of it {named}"


def _memory(
    details: PlanDetails,
    peak_bytes: float | None,
    at_peak: Mapping[str, float],
    device_bytes: float,
) -> str:
    memory = {name: count for name, count in details.memory.items() if count > 0}
    whole = sum(memory.values())
    kept = _largest(memory, whole)
    text = f"A device keeps {format_bytes(whole)}: {kept}"
    if not peak_bytes:
        return text
    why = _for_a_moment(whole, peak_bytes, at_peak)
    text += f". Its peak, {why}, is {format_bytes(peak_bytes)}"
    free = device_bytes - peak_bytes
    has = f"the {format_bytes(device_bytes)} of a device"
    return (
        f"{text}: {format_bytes(free)} of {has} are free" if free >= 0 else f"{text}, beyond {has}"
    )


def _for_a_moment(whole: float, peak_bytes: float, at_peak: Mapping[str, float]) -> str:
    """Why the peak is not what is kept."""
    if peak_bytes <= whole:
        return "not all of it at once"
    text = "with what lives for a moment only"
    moment = {name: at_peak[name] for name in _FOR_A_MOMENT if at_peak.get(name)}
    if moment:
        text += f" ({_largest(moment, whole)})"
    missing = whole + sum(moment.values()) - peak_bytes
    if moment and missing >= _LEAST_SHARE * whole:
        text += f" and without {format_bytes(missing)} that it keeps at other times"
    return text


def _largest(parts: Mapping[str, float], whole: float) -> str:
    return ", ".join(
        f"{format_bytes(count)} {name}"
        for name, count in sorted(parts.items(), key=lambda item: -item[1])
        if count >= _LEAST_SHARE * whole
    )


def _time(details: PlanDetails, timeline: Timeline) -> str:
    for_stages = details.time.get(WAITS_FOR_STAGES, 0.0)
    others = f", and {format_part(for_stages)} for other stages" if for_stages > 0 else ""
    hidden = (
        f", while {format_part(timeline.hidden_s)} of collectives run behind its computing"
        if timeline.hidden_s > 0
        else ""
    )
    computing = format_part(timeline.time_s - timeline.waited_s - for_stages)
    return (
        f"In a step of {format_step(timeline.time_s)} a device computes for {computing} and waits "
        f"{format_part(timeline.waited_s)} for the network{others}{hidden}"
    )


def _most_bytes(collectives: Sequence[Collectives]) -> str:
    """Which collectives move the most bytes, how much all of them do, and which take longest."""
    received: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for one in collectives:
        received[one.name] = received.get(one.name, 0.0) + one.received_bytes
        seconds[one.name] = seconds.get(one.name, 0.0) + one.time_s
    most, longest = max(received.values()), max(seconds.values())
    named = [name for name, count in received.items() if count >= (1 - _ALIKE) * most]
    slow = [name for name, took in seconds.items() if took >= (1 - _ALIKE) * longest]
    took_s = max(seconds[name] for name in named)
    each = " by each of these" if len(named) > 1 else ""
    text = (
        f"Most bytes are moved by {_listed(named)}: a device receives {format_bytes(most)} in a "
        f"step{each}, in {format_part(took_s)}, and {format_bytes(sum(received.values()))} by all "
        "collectives together"
    )
    if set(slow) & set(named):
        return text
    return f"{text}. Longest take {_listed(slow)}: {format_part(longest)}"


def moved_and_waited(details: PlanDetails) -> str:
    """What a step waits for beside what its collectives take by themselves."""
    alone = sum(one.time_s for one in details.collectives)
    waited = details.time["reshards and collectives"]
    text = (
        f"All of these take {format_part(alone)} by themselves; a step waits for "
        f"{format_part(waited)}"
    )
    if waited > 1.001 * alone:
        return (
            f"{text}: {format_part(waited - alone)} more, for local copies around them and for "
            "collectives inside of operators"
        )
    if waited < 0.999 * alone:
        return f"{text}, since others run while it computes, or share a bucket"
    return text


def with_less_memory(
    points: Sequence[tuple[float, float]],
    picked: int,
    limit: float,
    peaks: Peaks,
    details: Callable[[int], PlanDetails],
) -> str:
    """What it costs if a device keeps a round amount less, at most a fifth of the limit, for the
    plan that is picked of (memory, time) ``points``; ``details`` are those of a point by its
    number."""
    less, amount = _round_part(limit)
    other = pick_index(points, points[picked][0] - less)
    if other is None:
        return (
            f"No plan keeps {amount} less than that on a device: the least that one keeps is "
            f"{format_bytes(points[0][0])}."
        )
    memory, time_s = points[other]
    why = why_faster(costs_in(details(other)), costs_in(details(picked)), "this one", small=True)
    peak = peaks.of(other)
    in_all = f" (peak {peak})" if peak else ""
    return (
        f"If a device keeps {amount} less, the fastest plan keeps {format_bytes(memory)}{in_all} "
        f"and takes {format_step(time_s)}, {why}."
    )


def _round_part(limit: float) -> tuple[float, str]:
    """The largest of 1, 2, 5, 10, ... GiB or MiB that is at most a fifth: bytes, and in words."""
    unit, name = (2**30, "GiB") if limit >= 5 * 2**30 else (2**20, "MiB")
    power = 10.0 ** math.floor(math.log10(limit / 5 / unit))
    amount = max(step * power for step in (1, 2, 5) if step * power * unit <= limit / 5)
    return amount * unit, f"{amount:g} {name}"
