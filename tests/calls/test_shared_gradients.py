"""What gradients of the outputs of a call of shares count."""

from __future__ import annotations

import torch

from tensoropt_torch.calls.shared_gradients import SharedGradients
from tensoropt_torch.space.rows import OutputRows

RANKS = 4
ROWS = OutputRows(0, depends=True)
TABLE = OutputRows(None)
LOSS = OutputRows(None, depends=True, is_loss=True)
MEAN = OutputRows(None, depends=True)


def gradients(averages: bool) -> list[float]:
    """Of rows, of a table, of the loss and of a mean that are returned, for a gradient of 1,
    and of rows and of a table among the inputs."""
    counts = SharedGradients(RANKS, (ROWS, TABLE, LOSS, MEAN), (0, None), averages)
    inputs = [torch.ones(3, requires_grad=True) for _ in range(2)]
    made = [torch.ones((), requires_grad=True) for _ in range(4)]
    outputs = counts.leaving({"y": made[0], "rest": made[1:]})
    sum([outputs["y"], *outputs["rest"]]).backward()
    sum(value.sum() for value in counts.entering(inputs)).backward()  # type: ignore[union-attr]
    found = [tensor.grad for tensor in (*made, *inputs)]
    assert all(grad is not None for grad in found)
    return [float(grad.max()) for grad in found if grad is not None]


def test_gradients_are_summed_but_for_the_mean_of_those_that_ranks_share() -> None:
    assert gradients(averages=False) == [1, 1, 1, 1 / RANKS, 1, 1]


def test_the_mean_of_losses_is_taken_once() -> None:
    assert gradients(averages=True) == [1 / RANKS, 1 / RANKS, 1, 1 / RANKS, RANKS, 1]


def test_what_the_module_itself_uses_keeps_its_gradient() -> None:
    counts = SharedGradients(RANKS, (ROWS,), (0,), averages=True)
    x = torch.ones(3, requires_grad=True)
    y = 2 * x
    (y.sum() + 10 * counts.leaving(y).sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [2 + 2 * 10 / RANKS] * 3


def test_without_gradients_nothing_is_changed() -> None:
    counts = SharedGradients(RANKS, (ROWS,), (0,), averages=True)
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert counts.leaving(x) is x and counts.entering([x])[0] is x
