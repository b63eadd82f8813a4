"""Calls of Python that are no operators of PyTorch, and act on values or gradients: as
operators of the captured graph."""

from tensoropt_torch.frontend.passes.nodes import NUMBER, is_python_call
from tensoropt_torch.frontend.python_calls.call_operators import binding_of_node
from tensoropt_torch.frontend.python_calls.model_names import ModelNames, name_copy
from tensoropt_torch.frontend.python_calls.proofs import (
    Proof,
    forget,
    proof_of,
    settle,
    use_prover,
)
from tensoropt_torch.frontend.python_calls.recording import python_calls_recorded
from tensoropt_torch.frontend.python_calls.standing import (
    HookCounts,
    are_hooks_silent,
    check_hooks,
    hook_counts,
    hooks_silent,
    rebind_forward_hooks,
    remember_hooks,
    run_by,
)
from tensoropt_torch.frontend.python_calls.tensor_hooks import place_hooks
from tensoropt_torch.frontend.python_calls.user_functions import UserFunction

__all__ = [
    "NUMBER",
    "HookCounts",
    "ModelNames",
    "Proof",
    "UserFunction",
    "are_hooks_silent",
    "binding_of_node",
    "check_hooks",
    "forget",
    "hook_counts",
    "hooks_silent",
    "is_python_call",
    "name_copy",
    "place_hooks",
    "proof_of",
    "python_calls_recorded",
    "rebind_forward_hooks",
    "remember_hooks",
    "run_by",
    "settle",
    "use_prover",
]
