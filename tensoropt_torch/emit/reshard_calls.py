"""Calls of reshards in the graph of a rank."""

from __future__ import annotations

from torch import fx

from tensoropt_torch.operators import OPS

FORWARD_GROUPS = 2  # the argument of reshards that counts in forward

# In the meta of reshards of parameters: whether a step makes their value once, and the bytes of
# their gradient if that is sent.
HELD = "held"
SENT_BYTES = "sent_bytes"


def slot_of(node: fx.Node) -> int:
    """The one that a call for a parameter names."""
    slot = node.args[-1]
    assert isinstance(slot, int)
    return slot


def slots_begun(node: fx.Node) -> set[int]:
    """The slots whose values a call begins."""
    if node.target is OPS.begin_value.default:
        return {slot_of(node)}
    if node.target is OPS.begin_gathers.default:
        return set(node.args[-1])  # type: ignore[arg-type]
    return set()
