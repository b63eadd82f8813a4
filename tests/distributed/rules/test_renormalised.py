"""What takes the place of ``nn.Embedding(max_norm=...)``, which is refused."""

from __future__ import annotations

import pytest
import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tests.distributed.harness import run_ranks
from tests.distributed.renormalised_models import MAX_NORM, Table, batches, renormalise

HERE = "tests.distributed.renormalised_models"


def _losses(max_norm: float | None) -> list[float]:
    torch.manual_seed(0)
    model = Table(max_norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for batch in batches():
        if max_norm is None:
            renormalise(model)
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_renormalising_before_each_step_gives_the_losses_of_max_norm() -> None:
    assert _losses(None) == pytest.approx(_losses(MAX_NORM), rel=1e-6)


def test_max_norm_is_refused_with_what_to_do() -> None:
    with pytest.raises(TensorOptError, match=r"leave max_norm out.*weight.mul_\(\(max_norm"):
        capture(Table(MAX_NORM), batches()[0])


@pytest.mark.parametrize("world", [2, 4])
def test_renormalised_parts_equal_one_process(world: int) -> None:
    kind = f"{HERE}:renormalised"
    assert run_ranks(world, "tests.distributed.kinds:check", kind, 200) == [[]] * world
