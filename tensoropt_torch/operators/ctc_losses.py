"""``tensoropt::ctc_losses``: the CTC loss of each sequence.

That of ATen gives a second output whose size is the longest of the targets, a value that is not
known when a model is captured. This operator gives losses only, and computes the rest again in
backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("tensoropt::ctc_losses", mutates_args=())
def ctc_losses(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """Of log-probabilities [t, b, c] and targets [b, s], of which sequence i has the first
    ``input_lengths[i]`` and ``target_lengths[i]``: losses [b]."""
    losses, _ = torch.ops.aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    return _without_infinity(losses) if zero_infinity else losses.clone()


@ctc_losses.register_fake
def _(log_probs: Tensor, *_: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@torch.library.custom_op("tensoropt::ctc_losses_backward", mutates_args=())
def ctc_losses_backward(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient of ``log_probs``, given that of the losses [b]."""
    call = (log_probs, targets, input_lengths, target_lengths)
    losses, log_alpha = torch.ops.aten._ctc_loss.Tensor(*call, blank, zero_infinity)
    result: Tensor = torch.ops.aten._ctc_loss_backward.Tensor(
        gradient.contiguous(), *call, losses, log_alpha, blank, zero_infinity
    )
    return result


@ctc_losses_backward.register_fake
def _(gradient: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs)


def _without_infinity(losses: Tensor) -> Tensor:
    return torch.where(losses == torch.inf, 0, losses)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.literals = inputs[4:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = ctc_losses_backward(gradient, *ctx.saved_tensors, *ctx.literals)
    return found, None, None, None, None, None


ctc_losses.register_autograd(_backward, setup_context=_save)
