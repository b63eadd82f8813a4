"""The comparison itself: it passes what is equal, and tells what is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.b(self.a(x).tanh()), y)


def plain() -> Kind:
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(16, 16, generator=generator), torch.randint(0, 4, (16,), generator=generator))
        for _ in range(3)
    ]
    return Kind(Net, batches)


def shares() -> Kind:
    kind = plain()
    kind.inputs = "sharded"
    return kind


def wrong() -> Kind:
    """A weight of the parallel module alone is another one."""
    kind = plain()

    def change(module: nn.Module) -> None:
        if not isinstance(module, Net):
            with torch.no_grad():
                module.get_parameter("a.weight").mul_(1.001)

    kind.after = change
    return kind


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", ["plain", "shares"])
def test_an_ordinary_module_is_equal_under_all(world: int, kind: str) -> None:
    name = f"tests.distributed.test_kinds:{kind}"
    assert run_ranks(world, "tests.distributed.kinds:check", name) == [[]] * world


def test_what_differs_is_told() -> None:
    name = "tests.distributed.test_kinds:wrong"
    for found in run_ranks(2, "tests.distributed.kinds:check", name):
        assert any("parameter a.weight is off" in text for text in found)
        assert {text.partition(":")[0] for text in found} >= {
            "random strategy, seed 3",
            "random strategy, seed 8",
        }
