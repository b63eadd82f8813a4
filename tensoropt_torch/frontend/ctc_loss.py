"""CTC losses while a model is captured.

ATen's operator cannot be captured: the size of an output depends on values, as does that of
targets which a model has concatenated by a mask. So a call becomes
``tensoropt::ctc_losses``, which gives the loss of each sequence, and its reduction. Targets are
[b, s] there: those of a sequence come first in its row.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.operators import OPS

# The last one with a mask as its index.
_SELECTS = (torch.masked_select, torch.Tensor.masked_select, torch.Tensor.__getitem__)
_LOSSES = (functional.ctc_loss, torch.ctc_loss)


class CtcLosses(TorchFunctionMode):
    """Calls of CTC losses give those of the operator that can be captured."""

    def __init__(self) -> None:
        super().__init__()
        # What masks have picked, and of what.
        self._selected: dict[int, tuple[weakref.ref[Tensor], Tensor, Tensor]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _LOSSES:
            return self._loss(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _SELECTS:
            self._note(result, *args, **kwargs)
        return result

    def _note(self, result: Any, x: Tensor, mask: Any, **_: Any) -> None:
        """Of rows [b, s]."""
        is_mask = isinstance(mask, Tensor) and mask.dtype == torch.bool
        if is_mask and x.dim() == 2 and mask.shape == x.shape:
            self._selected[id(result)] = (weakref.ref(result), x, mask)

    def _loss(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: str | int = "mean",
        zero_infinity: bool = False,
    ) -> Tensor:
        batched = log_probs.dim() == 3
        if not batched:
            log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
        count = log_probs.shape[1]
        inputs = _lengths(input_lengths, count, log_probs.device)
        outputs = _lengths(target_lengths, count, log_probs.device)
        rows = self._rows(targets, outputs)
        losses: Tensor = OPS.ctc_losses(log_probs, rows, inputs, outputs, blank, zero_infinity)
        return _reduced(losses, outputs, reduction, batched)

    def _rows(self, targets: Tensor, lengths: Tensor) -> Tensor:
        """The targets of each sequence in a row of their own, in front."""
        if targets.dim() == 2:
            return targets
        longest = targets.shape[0]
        reference, x, mask = self._selected.get(id(targets), (None, targets, targets))
        if reference is not None and reference() is targets:
            longest = x.shape[1]
            targets = _selected_first(x.flatten(), mask.flatten())
        if not isinstance(targets.shape[0], int):
            raise TensorOptError(
                "CTC loss gets concatenated targets whose number depends on values; give them as "
                "[batch, longest], padded, with their target_lengths"
            )
        starts = lengths.cumsum(0) - lengths
        places = starts.unsqueeze(1) + torch.arange(longest, device=targets.device)
        rows: Tensor = targets[places.clamp(max=targets.shape[0] - 1)]
        return rows


def _selected_first(x: Tensor, mask: Tensor) -> Tensor:
    """What ``masked_select`` gives, and 0 behind it."""
    order = torch.argsort(mask.logical_not().to(torch.int8), stable=True)
    return x.masked_fill(mask.logical_not(), 0).index_select(0, order)


def _lengths(lengths: Any, count: int, device: torch.device) -> Tensor:
    """[b], of a tensor, a list or a number."""
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths, dtype=torch.long, device=device)
    given: Tensor = lengths.reshape(count)
    return given


def _reduced(losses: Tensor, lengths: Tensor, reduction: str | int, batched: bool) -> Tensor:
    """As ``torch.nn.functional.ctc_loss`` reduces."""
    if reduction in ("mean", 1):
        return (losses / lengths.clamp(min=1).to(losses)).mean()
    if reduction in ("sum", 2):
        return losses.sum()
    if reduction in ("none", 0):
        return losses if batched else losses.squeeze(0)
    raise TensorOptError(
        f"CTC loss has no reduction {reduction!r}; allowed: 'mean', 'sum' and 'none'"
    )
