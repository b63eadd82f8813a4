"""Random fills, generators of the forward pass, and sparse gradients, against one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tensoropt_torch import auto_parallel
from tests.distributed.harness import run_ranks
from tests.distributed.random_kinds import (
    NOISES,
    Noisy,
    Tables,
    batches,
    own_generators,
    table_batches,
)

HERE = "tests.distributed.frontend.test_random_kinds"
KINDS = [
    "rows_dropped",
    "all_fills",
    "filled_parts",
    "draws_by_value",
    "generators",
    "tables",
    "tables_with_adagrad",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_in_one_process(world: int, kind: str) -> None:
    name = f"tests.distributed.random_kinds:{kind}"
    assert run_ranks(world, "tests.distributed.kinds:check", name, 300) == [[]] * world


def losses_of(name: str) -> tuple[list[float], list[float]]:
    """Of four steps with the runtime's own streams: they are the same on all ranks."""
    torch.manual_seed(0)
    parallel = auto_parallel(Noisy(NOISES[name]).double(), batches(1)[0], measure=False)
    losses = [float(parallel(*batches(1)[0]).detach()) for _ in range(4)]
    everyone: list[list[float]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, losses)
    return losses, everyone[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(NOISES))
def test_numbers_differ_from_step_to_step_unless_the_model_draws_the_same(name: str) -> None:
    for own, first in run_ranks(2, f"{HERE}:losses_of", name, 120):
        assert own == pytest.approx(first, rel=1e-12)
        assert (len(set(own)) == 1) == (NOISES[name] is own_generators)


def step_of_sparse_adam(_: None) -> tuple[bool, str]:
    """Whether gradients are dense, and what an optimizer that needs sparse ones says."""
    parallel = auto_parallel(Tables(), table_batches(1)[0], measure=False)
    parallel(*table_batches(1)[0]).backward()
    dense = not any(p.grad.is_sparse for p in parallel.parameters() if p.grad is not None)
    optimizer = torch.optim.SparseAdam([parallel.get_parameter("table.weight")])
    try:
        optimizer.step()
    except RuntimeError as error:
        return dense, str(error)
    return dense, ""


def test_an_optimizer_for_sparse_gradients_says_that_they_are_dense() -> None:
    for dense, message in run_ranks(2, f"{HERE}:step_of_sparse_adam", None, 120):
        assert dense
        assert "does not support dense gradients" in message
