"""Calls of Python that are no operators of PyTorch, and act on values or gradients: as
operators of the captured graph."""

from tensoropt_torch.frontend.passes.nodes import NUMBER, is_python_call
from tensoropt_torch.frontend.python_calls.operators import Binding, binding_of_node
from tensoropt_torch.frontend.python_calls.proofs import (
    Proof,
    forget,
    proof_of,
    settle,
    use_prover,
)
from tensoropt_torch.frontend.python_calls.recording import python_calls_recorded

__all__ = [
    "NUMBER",
    "Binding",
    "Proof",
    "binding_of_node",
    "forget",
    "is_python_call",
    "proof_of",
    "python_calls_recorded",
    "settle",
    "use_prover",
]
