"""What is known of how calls of Python can be split, by operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from tensoropt_torch.frontend.passes.nodes import is_python_call


@dataclass(frozen=True)
class Proof:
    """What was found out about an operator.

    Attributes:
        rule: by which it can be split; empty: it runs whole.
        reason: how that was found, or why it runs whole, in words.
        linear: whether the gradients that it gives are linear in those that it gets.
    """

    rule: str
    reason: str
    linear: bool = False


Prover = Callable[[fx.Node], Proof]


class _Known:
    """In this process."""

    def __init__(self) -> None:
        self.prover: Prover = lambda node: Proof("", "nobody tried whether it can be split")
        self.proofs: dict[str, Proof] = {}


_KNOWN = _Known()


def use_prover(prover: Prover) -> None:
    """``prover`` is asked from now on; it also makes the rule that it finds known."""
    _KNOWN.prover = prover


def settle(graph: fx.Graph) -> None:
    """Find out about the calls of a graph that nothing is known of."""
    for node in graph.nodes:
        if is_python_call(node) and str(node.target) not in _KNOWN.proofs:
            _KNOWN.proofs[str(node.target)] = _KNOWN.prover(node)


def proof_of(target: str) -> Proof | None:
    """Of the operator of this name; None if it is no call of Python."""
    return _KNOWN.proofs.get(target)


def forget(target: str) -> None:
    """It is found out anew when it is met the next time."""
    _KNOWN.proofs.pop(target, None)
