"""Models that ask for activation checkpointing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as module
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import tensoropt_torch
from tensoropt_torch.frontend import capture


class Checkpointed(nn.Module):
    """Layers that are checkpointed in the one way or the other, or not."""

    def __init__(self, reentrant: bool | None, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 8) -> the loss."""
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x).tanh()
            else:
                x = checkpoint(lambda x, own: own(x).tanh(), x, layer, use_reentrant=self.reentrant)
        return x.square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_calls_are_counted_and_the_graph_is_that_without(reentrant: bool) -> None:
    args = (torch.ones(4, 8),)
    before = module.CheckpointFunction
    found = capture(Checkpointed(reentrant), args)
    plain = capture(Checkpointed(None), args)
    assert (found.checkpoints, plain.checkpoints) == (3, 0)
    assert found.fingerprint == plain.fingerprint
    assert module.CheckpointFunction is before


def test_sequential_segments_are_counted() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=False).mean()

    assert capture(Model(), (torch.ones(4, 8),)).checkpoints == 1  # the last one is not


def test_a_model_that_raises_leaves_torch_as_it_was() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    before = module.CheckpointFunction
    with pytest.raises(tensoropt_torch.TensorOptError):
        capture(Model(), (torch.ones(4, 8),))
    assert module.CheckpointFunction is before


@pytest.mark.parametrize(
    ("reentrant", "recompute", "expected"),
    [
        (None, None, False),
        (False, None, True),
        (True, None, True),
        (False, False, False),
        (None, True, True),
    ],
)
def test_the_wish_decides_unless_the_user_does(
    reentrant: bool | None, recompute: bool | None, expected: bool
) -> None:
    frontier = tensoropt_torch.find_frontier(
        Checkpointed(reentrant),
        (torch.ones(256, 8),),
        cluster="h100-8",
        num_devices=2,
        recompute=recompute,
    )
    assert frontier.fastest.plan.settings.recompute == expected
    smallest, fastest = frontier.smallest.memory_bytes, frontier.fastest.memory_bytes
    assert (smallest < fastest) or not expected
