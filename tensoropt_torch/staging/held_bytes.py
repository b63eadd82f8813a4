"""What stages hold of what crosses their cuts."""

from __future__ import annotations


def held_bytes(in_flight: int, micro_batches: int, received: float, sent: float) -> float:
    """What a device holds of values of so many bytes that a micro-batch takes over the cuts of a
    stage: what it receives till it has done its backward, with that of the next one, which arrives
    ahead; what it sends till the gradient has come back."""
    return min(in_flight + 1, micro_batches) * received + in_flight * sent
