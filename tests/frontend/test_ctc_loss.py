"""CTC losses are captured, in each form that PyTorch takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.ctc_loss import CtcLosses

LENGTHS = torch.tensor([3, 0, 2, 1])
SHORT = torch.tensor([9, 7, 8, 9])


def _log_probs(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(0)
    numbers = torch.randn(shape, generator=random, dtype=torch.float64)
    return numbers.log_softmax(-1).requires_grad_()


def _labels(*shape: int) -> Tensor:
    return torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(1))


def _selected() -> Tensor:
    labels = _labels(4, 3)
    return labels.masked_select(torch.arange(3) < LENGTHS.unsqueeze(1))


def _picked() -> Tensor:
    return _labels(4, 3)[torch.arange(3) < LENGTHS.unsqueeze(1)]


FORMS = {
    "padded": lambda x, **k: F.ctc_loss(x, _labels(4, 3), SHORT, LENGTHS, **k),
    "concatenated": lambda x, **k: F.ctc_loss(x, _labels(6), SHORT, LENGTHS, **k),
    "selected": lambda x, **k: F.ctc_loss(x, _selected(), SHORT, LENGTHS, **k),
    "picked": lambda x, **k: F.ctc_loss(x, _picked(), SHORT, LENGTHS, **k),
    "lists": lambda x, **k: F.ctc_loss(x, _labels(4, 3), [9] * 4, [3, 0, 2, 1], **k),
    "module": lambda x, **k: nn.CTCLoss(**k)(x, _labels(4, 3), SHORT, LENGTHS),
    "no way": lambda x, **k: F.ctc_loss(x, _labels(4, 3), SHORT - 7, LENGTHS, **k),
    "one": lambda x, **k: F.ctc_loss(x[:, 0], _labels(3), SHORT[0], LENGTHS[0], **k),
    "blank": lambda x, **k: F.ctc_loss(x, _labels(4, 3) - 1, SHORT, LENGTHS, blank=4, **k),
}


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_loss_of_pytorch(form: str, reduction: str, zero_infinity: bool) -> None:
    options: dict[str, Any] = {"reduction": reduction, "zero_infinity": zero_infinity}
    x = _log_probs(9, 4, 5)
    expected = FORMS[form](x, **options)
    with CtcLosses():
        got = FORMS[form](x, **options)
    torch.testing.assert_close(got, expected)
    weights = torch.rand(expected.shape, dtype=torch.float64)
    found = [torch.autograd.grad((loss * weights).sum(), x)[0] for loss in (got, expected)]
    torch.testing.assert_close(*found, equal_nan=True)


class _Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        log_probs = self.layer(x).log_softmax(-1).transpose(0, 1)
        targets = labels[labels > 0] + 0
        return F.ctc_loss(log_probs, targets, [9] * len(x), (labels > 0).sum(1))


def test_targets_of_a_number_that_depends_on_values_are_refused() -> None:
    with pytest.raises(TensorOptError, match="concatenated targets whose number depends on values"):
        capture(_Letters(), (torch.randn(4, 9, 4), _labels(4, 3)))
