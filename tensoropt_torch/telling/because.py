"""Why one strategy is faster than another: a sentence of the parts of both costs.

A step's time is that of operators, of those that run again in backward, of updates and of the
collectives that it waits for. What differs most between two strategies is said first, what speaks
for the slower one last, and collectives that differ are named with their bytes and seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.telling.collectives import Collectives
from tensoropt_torch.telling.description import Described
from tensoropt_torch.telling.details import PlanDetails, details_of
from tensoropt_torch.telling.stages import WAITS_FOR_STAGES
from tensoropt_torch.units import format_bytes, format_part

# Differences below this share of the slower step are not named.
_LEAST_NAMED = 0.005
# Nor those below this share of the difference of all, where that itself is smaller.
_LEAST_OF_SMALL = 0.1
# Of strategies that differ by less than this share of the step it is not asked why.
_SAME = 5e-4
_MOST_COLLECTIVES = 2
_WORDS = {
    "operators": ("computes {} less", "computes {} longer"),
    "operators again in backward": (
        "spends {} less on operators that run again",
        "spends {} more on operators that run again",
    ),
    "updates of parameters": (
        "spends {} less on updates of parameters",
        "spends {} more on updates of parameters",
    ),
    "reshards and collectives": (
        "waits {} less for collectives",
        "waits {} longer for collectives",
    ),
    "waiting for the host": ("waits {} less for the host", "waits {} longer for the host"),
    WAITS_FOR_STAGES: ("waits {} less for other stages", "waits {} longer for other stages"),
}
_WAITED = "reshards and collectives"


@dataclass(frozen=True)
class Costs:
    """What a strategy's step is made of.

    Attributes:
        time: seconds by part; their sum is the step time.
        moved: bytes on one device, and seconds of them alone, by what the collectives do.
    """

    time: Mapping[str, float]
    moved: Mapping[str, tuple[float, float]]

    @property
    def time_s(self) -> float:
        return sum(self.time.values())


def costs_of(plan: Described, space: _C.SearchSpace) -> Costs:
    """Of a plan in its search space."""
    return costs_in(details_of(plan, space))


def costs_in(details: PlanDetails) -> Costs:
    """Of a plan whose details are known."""
    return Costs(details.time, _moved(details.collectives))


def _moved(collectives: Sequence[Collectives]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for one in collectives:
        num_bytes, seconds = found.get(one.name, (0.0, 0.0))
        found[one.name] = num_bytes + one.num_bytes, seconds + one.time_s
    return found


def why_faster(ours: Costs, theirs: Costs, name: str, *, small: bool = False) -> str:
    """E.g. ``12% faster than DDP: it waits 0.2 s less for collectives (...)``; of what is as fast
    or slower it says that, and with ``small`` also by how little it differs, and why."""
    gain = theirs.time_s - ours.time_s
    share = abs(gain) / min(ours.time_s, theirs.time_s)
    way = "faster" if gain > 0 else "slower"
    if abs(gain) >= _LEAST_NAMED * theirs.time_s:
        head, least = f"{100 * share:.0f}% {way} than {name}", _LEAST_NAMED * theirs.time_s
    elif not small or share < _SAME:
        return f"as fast as {name}"
    else:
        head, least = f"{100 * share:.1g}% {way} than {name}", _LEAST_OF_SMALL * abs(gain)
    parts = _differences(ours, theirs, gain, least)
    return f"{head}: it {parts}" if parts else head


def _differences(ours: Costs, theirs: Costs, gain: float, least: float) -> str:
    """What makes the difference, the most of it first, then what is against it; of at least so
    many seconds."""
    names = dict.fromkeys([*ours.time, *theirs.time])
    saved = {name: theirs.time.get(name, 0.0) - ours.time.get(name, 0.0) for name in names}
    named = [name for name in saved if abs(saved[name]) >= least]
    named.sort(key=lambda name: (saved[name] * gain < 0, -abs(saved[name])))
    with_it = [_part(name, saved[name], ours, theirs) for name in named if saved[name] * gain > 0]
    against = [_part(name, saved[name], ours, theirs) for name in named if saved[name] * gain < 0]
    text = _listed(with_it)
    return f"{text}, but {_listed(against)}" if with_it and against else text


def _listed(texts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([*([", ".join(texts[:-1])] if texts[:-1] else []), *texts[-1:]])


def _part(name: str, saved: float, ours: Costs, theirs: Costs) -> str:
    less, more = _WORDS[name]
    text = (less if saved > 0 else more).format(format_part(abs(saved)))
    if name != _WAITED:
        return text
    moved = _moved_in_words(ours, theirs, saved)
    return f"{text} ({moved})" if moved else text


def _moved_in_words(ours: Costs, theirs: Costs, saved: float) -> str:
    """The collectives that differ most, each alone."""
    nothing = (0.0, 0.0)
    names = dict.fromkeys([*ours.moved, *theirs.moved])
    differ = {
        name: theirs.moved.get(name, nothing)[1] - ours.moved.get(name, nothing)[1]
        for name in names
    }
    named = sorted((n for n in differ if differ[n] * saved > 0), key=lambda n: -abs(differ[n]))
    return "; ".join(
        f"{name}: {_amount(ours.moved.get(name))} instead of {_amount(theirs.moved.get(name))}"
        for name in named[:_MOST_COLLECTIVES]
    )


def _amount(moved: tuple[float, float] | None) -> str:
    if moved is None:
        return "none"
    return f"{format_bytes(moved[0])} in {format_part(moved[1])}"
