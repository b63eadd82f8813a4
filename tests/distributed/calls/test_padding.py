"""Hand-written loops in which each rank pads to its own longest sample, and has other rows in its
last batch, do what one process does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.calls.test_padding"
SAMPLES, BATCH, WORDS, IGNORED = 21, 4, 16, -100  # of a rank; the last batches have 3 and 2 rows
PADDING = {"tokens": 0, "mask": 0, "labels": IGNORED}


class Tagger(nn.Module):
    """Words beside their mean, which depends on what is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, 8), nn.Linear(16, WORDS)

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        words = self.embed(tokens) * mask[..., None]
        mean = words.sum(1, keepdim=True) / mask.sum(1)[:, None, None]
        scores = self.head(torch.cat([words, mean.expand_as(words)], -1).tanh())
        return cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def samples() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (SAMPLES,), generator=generator).tolist()
    return [torch.randint(WORDS, (length,), generator=generator) for length in lengths]


def collated(rows: list[Tensor]) -> dict[str, Tensor]:
    """Padded to the longest of these."""
    mask = pad_sequence([torch.ones(len(row)) for row in rows], True)
    return {
        "tokens": pad_sequence(rows, True),
        "mask": mask,
        "labels": pad_sequence([row.roll(1) for row in rows], True, IGNORED),
    }


def shares(rank: int, ranks: int) -> Iterator[list[Tensor]]:
    own = samples()[rank::ranks]
    for start in range(0, len(own), BATCH):
        yield own[start : start + BATCH]


def train(side: str) -> float:
    """By how much parameters differ from those of one process."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    one, model = Tagger(), Tagger()
    model.load_state_dict(one.state_dict())
    example = collated([row for r in range(ranks) for row in next(shares(r, ranks))])
    parallel = tensoropt_torch.auto_parallel(model, (), example, inputs="sharded", measure=False)
    parts: Any = zip(*(shares(r, ranks) for r in range(ranks)), strict=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (one, parallel)]
    for rows in parts:
        own = tensoropt_torch.pad_together(collated(rows[rank]), PADDING, side=side)
        one(**collated([row for part in rows for row in part])).backward()
        parallel(**own).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(one.parameters(), parallel.parameters(), strict=True)
    return max(float((a - whole(b)).abs().max()) for a, b in pairs)


def refuse(_: None) -> None:
    rank = dist.get_rank()
    batch = {"x": torch.ones(2, 3 + rank), "id": "a"}
    with pytest.raises(TensorOptError, match=r"'x' has other lengths .* \{'x': 0"):
        tensoropt_torch.pad_together(batch, {})
    with pytest.raises(TensorOptError, match="rank 1 has a batch of x, z, rank 0 of x, y"):
        tensoropt_torch.pad_together({"x": torch.ones(2), "yz"[rank]: torch.ones(2)}, {})
    with pytest.raises(TensorOptError, match=r"torch.float32 \[2\] on rank 1.* only lengths"):
        tensoropt_torch.pad_together(
            {"x": torch.ones(2, 3)[:, 0] if rank else torch.ones(2, 3)}, {}
        )
    padded = tensoropt_torch.pad_together(batch, {"x": 7})
    assert padded["id"] == "a" and padded["x"].shape == (2, 4)  # type: ignore[union-attr]
    assert rank or padded["x"][:, 3].tolist() == [7, 7]  # type: ignore[index]
    assert not rank or padded["x"] is batch["x"]


@pytest.mark.parametrize("side", ["right", "left"])
def test_lengths_and_rows_of_ranks_may_differ(side: str) -> None:
    assert max(run_ranks(2, f"{HERE}:train", side, 300)) < 1e-5


def test_what_cannot_be_padded_is_refused_on_all_ranks() -> None:
    run_ranks(2, f"{HERE}:refuse")
