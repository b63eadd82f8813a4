"""What is planned does not depend on how large a batch is but where it should."""

from __future__ import annotations

import torch
from torch import nn

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.capture import CapturedModel

FEATURES, HEADS, LENGTH = 8, 2, 2048
MANY = 1024  # rows: 2^21 places in a batch, 2^32 in a mask


class Packed(nn.Module):
    """Attention by a causal mask within texts, whose numbers it counts from positions: as
    transformers does where it gets no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        places = torch.arange(length, device=x.device).expand(rows, length)
        first = places.new_full((rows, 1), -1)
        text = (torch.diff(places, dim=-1, prepend=first) != 1).cumsum(-1)
        same = text[:, None, :, None] == text[:, None, None, :]
        mask = same & (places[:, None, None, :] <= places[:, None, :, None])
        heads = self.project(x).reshape(rows, length, HEADS, -1).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, mask)
        return attended.pow(2).mean()


def packed(rows: int) -> CapturedModel:
    with torch.device("meta"):
        return capture(Packed(), (torch.empty(rows, LENGTH, FEATURES),))


def calls(captured: CapturedModel) -> list[str]:
    return [
        str(node.target) for node in captured.graph_module.graph.nodes if node.op != "placeholder"
    ]


def test_masks_of_all_rows_are_seen_through_whatever_their_number() -> None:
    small, large = packed(2), packed(MANY)
    assert calls(large) == calls(small)
    (attention,) = (
        node for node in large.graph_module.graph.nodes if "scaled_dot_product" in str(node.target)
    )
    assert attention.args[3] is None and attention.args[5] is True
    assert max(source.placeholder.meta["val"].dim() for source in large.sources) <= 3


def test_micro_batches_of_any_size_are_made() -> None:
    assert micro_batched(packed(MANY), 2).micro_batches == 2
