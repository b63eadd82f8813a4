"""Features of pictures in the places that a text keeps for them."""

from __future__ import annotations

import torch
from torch import nn

from tests.distributed.kinds import Kind

PICTURE = 0


class PicturesInText(nn.Module):
    """Embeds ids [b, s], with features [n, 6] of pictures in place of those that are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.seen = nn.Linear(6, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        """A number."""
        texts = self.table(ids)
        places = (ids == PICTURE).unsqueeze(-1).expand_as(texts)
        joined = texts.masked_scatter(places, self.seen(pictures))
        return self.mix(joined).relu().square().mean()


def _batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with different numbers of pictures."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 10, (4, 5), generator=random)
    ids[0, :3] = ids[2, 1:3] = ids[3, 4] = PICTURE
    return ids, torch.randn(6, 6, generator=random)


def pictures_in_text() -> Kind:
    return Kind(PicturesInText, [_batch(0), _batch(1)])
