"""A training step as a timeline: what the device computes, what the network moves meanwhile, and
what is waited for.

Forward, backward and the update follow each other. In each, all that is computed is one piece, and
what is waited for is one piece after it; a run has both in turns, operator by operator, and a step
in micro-batches has them as often. Lengths are those of the whole step. Forward takes a third of
the time of operators, since a product has two products in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch.telling.collectives import Collectives
from tensoropt_torch.telling.details import PlanDetails

FORWARD_SHARE = 1 / 3

_ROUNDING = 1e-9  # seconds that are nothing
_WAITS = "waits for the network"
COPIES = "copies and collectives of operators"


@dataclass(frozen=True)
class Span:
    """A piece of a lane: seconds from the begin of the step. What is ``hidden`` runs while the
    device computes."""

    name: str
    start_s: float
    seconds: float
    hidden: bool = False


@dataclass(frozen=True)
class Timeline:
    """What the device and the network do in a step of ``time_s`` seconds."""

    device: tuple[Span, ...]
    network: tuple[Span, ...]
    time_s: float

    @property
    def hidden_s(self) -> float:
        """Seconds of collectives that run while the device computes."""
        return sum(span.seconds for span in self.network if span.hidden)

    @property
    def waited_s(self) -> float:
        """Seconds in which the device waits."""
        return sum(span.seconds for span in self.device if span.name == _WAITS)


def timeline_of(details: PlanDetails) -> Timeline:
    """Of the costs of a plan."""
    time = details.time
    operators = time["operators"]
    waits = _waits(details.collectives, time["reshards and collectives"])
    device: list[Span] = []
    network: list[Span] = []
    now = 0.0
    for phase, computed in (
        ("forward", {"forward": FORWARD_SHARE * operators}),
        (
            "backward",
            {
                "operators again": time.get("operators again in backward", 0.0),
                "backward": (1 - FORWARD_SHARE) * operators,
            },
        ),
    ):
        for name, seconds in computed.items():
            device += [Span(name, now, seconds)] if seconds else []
            now += seconds
        moved = waits[phase]
        hidden = min(sum(computed.values()), moved.hidden)
        network += [Span(moved.hidden_name, now - hidden, hidden, True)] if hidden > 0 else []
        begin = now
        for name, seconds in moved.waited.items():
            network += [Span(name, now, seconds)] if seconds > 0 else []
            now += max(0.0, seconds)
        device += [Span(_WAITS, begin, now - begin)] if now > begin else []
    device.append(Span("update", now, time["updates of parameters"]))
    return Timeline(tuple(device), tuple(network), sum(time.values()))


@dataclass(frozen=True)
class _Moved:
    """What the network moves in forward or backward: seconds behind computing, and seconds that
    are waited for."""

    hidden_name: str
    hidden: float
    waited: dict[str, float]


def _waits(collectives: Sequence[Collectives], waited: float) -> dict[str, _Moved]:
    """Those of activations are waited for as they are, those of parameters for what is left of all
    that is waited for. What is left then is no collective of a reshard."""
    alone: dict[tuple[str, bool], float] = {("forward", True): 0.0, ("backward", True): 0.0}
    for one in collectives:
        key = _phase(one.moved), "parameters" in one.moved
        alone[key] = alone.get(key, 0.0) + one.time_s
    activations = {phase: alone.get((phase, False), 0.0) for phase in ("forward", "backward")}
    scale = min(1.0, waited / (sum(activations.values()) or 1.0))
    rest = waited - scale * sum(activations.values())
    parameters = {phase: alone[phase, True] for phase in activations}
    whole = sum(parameters.values())
    found = {}
    for phase, seconds in parameters.items():
        even = FORWARD_SHARE if phase == "forward" else 1 - FORWARD_SHARE
        exposed = rest * (seconds / whole if whole else even)
        what = "parameters" if phase == "forward" else "parameters and their gradients"
        waited_for = {
            what: min(exposed, seconds),
            "activations": scale * activations[phase],
            COPIES: _beyond(exposed, seconds),
        }
        found[phase] = _Moved(what, _beyond(seconds, exposed), waited_for)
    return found


def _beyond(seconds: float, other: float) -> float:
    """By how much it is longer."""
    return seconds - other if seconds > other + _ROUNDING else 0.0


def _phase(moved: str) -> str:
    backward = moved.startswith("gradients") or moved.endswith("again in backward")
    return "backward" if backward else "forward"
