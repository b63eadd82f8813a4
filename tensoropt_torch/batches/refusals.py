"""What is said of a batch that cannot be run as micro-batches."""

from __future__ import annotations

from tensoropt_torch.errors import TensorOptError


def refusal(count: int, why: str, hint: str) -> TensorOptError:
    """The error that says why, what to try, and the way out that there always is."""
    return TensorOptError(
        f"the batch cannot be run as {count} micro-batches: {why}; {hint}, or plan with "
        "max_micro_batches=1 (micro_batches=1 of find_stages)"
    )
