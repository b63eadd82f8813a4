"""Models that read at positions that tensors give: recommenders, experts."""

from __future__ import annotations

import torch

# Registers transformers::grouped_mm_fallback.
import transformers.integrations.moe  # noqa: F401
from torch import nn
from torch.nn import functional as F


class Recommender(nn.Module):
    """Bags of features, pairs of their vectors, one number."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(16, 8, mode="mean")
        self.items = nn.Embedding(16, 8, padding_idx=0)
        self.dense = nn.Linear(4, 8)
        self.top = nn.Linear(11, 4)
        self.register_buffer("rows", torch.tensor([0, 0, 1]))
        self.register_buffer("columns", torch.tensor([1, 2, 2]))

    def forward(
        self, x: torch.Tensor, tags: torch.Tensor, offsets: torch.Tensor, item: torch.Tensor
    ) -> torch.Tensor:
        """(n, 4), (tags), (n), (n) -> (n, 4)."""
        dense = F.relu(self.dense(x))
        vectors = torch.stack([dense, self.bags(tags, offsets), self.items(item)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.rows, self.columns]
        return self.top(torch.cat([dense, pairs], 1))


class Experts(nn.Module):
    """Causal attention with one head, then a mixture of the two best of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.qkv = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.router = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 24) / 4)
        self.down = nn.Parameter(torch.randn(4, 24, 16) / 5)
        self.head = nn.Linear(16, 12)
        self.register_buffer("weights", torch.linspace(0.5, 2, 12))

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(b, s) tokens and targets -> the loss."""
        x = self.embedding(tokens)
        query, key, value = (layer(x).unsqueeze(1) for layer in self.qkv)
        x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1)
        scores = self.router(x).softmax(-1)
        best, chosen = scores.topk(2, -1)
        gates = torch.zeros_like(scores).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("bsd,edf->ebsf", x, self.up))
        x = x + torch.einsum("ebsf,efd,bse->bsd", hidden, self.down, gates)
        load = F.one_hot(chosen, 4).sum((0, 1, 2)).to(scores.dtype) / chosen.numel()
        balance = (load * scores.mean((0, 1))).sum()
        logits = self.head(x).flatten(0, 1)
        smooth = F.cross_entropy(logits, target.flatten(), label_smoothing=0.1)
        weighted = F.cross_entropy(logits, target.flatten(), self.weights)
        return smooth + weighted + 0.1 * balance


class SortedExperts(nn.Module):
    """Tokens sorted by expert and multiplied in groups; a scale for each expert and a
    bias for each token are plain tables."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(12, 8))
        self.router = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 12) / 3)
        self.down = nn.Parameter(torch.randn(4, 12, 8) / 3)
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 4))
        self.head = nn.Linear(8, 12)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(b, s) tokens and targets -> the loss."""
        x = self.table[tokens.flatten() - 12]
        best, chosen = self.router(x).softmax(-1).max(-1)
        expert, order = chosen.sort(stable=True)
        ends = F.one_hot(chosen, 4).sum(0).cumsum(0)
        product = torch.ops.transformers.grouped_mm_fallback
        hidden = F.silu(product(x[order], self.up, ends))
        each = product(hidden, self.down, ends) * self.scale.index_select(0, expert)[:, None]
        x = x.index_add(0, order, each * best[order][:, None])
        scores = self.head(x).log_softmax(-1)
        return -scores.gather(-1, target.flatten()[:, None]).mean()


class RoutedExperts(nn.Module):
    """Two of four gated experts for each token, in the calls that Hugging Face's experts
    make; the last one is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.router = nn.Linear(8, 4)
        self.gate_up = nn.Parameter(torch.randn(4, 24, 8) / 3)
        self.down = nn.Parameter(torch.randn(4, 8, 12) / 3)
        self.head = nn.Linear(8, 12)
        with torch.no_grad():
            self.router.bias.copy_(torch.tensor([2.0, 1.0, 0.0, -90.0]))

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(b, s) tokens and targets -> the loss."""
        x = self.table(tokens).flatten(0, 1)
        best, chosen = self.router(x).softmax(-1).topk(2, -1)
        x = x + self.experts(x, chosen, best / best.sum(-1, keepdim=True))
        return F.cross_entropy(self.head(x), target.flatten())

    def experts(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Rows sorted by expert, and where they came from again."""
        expert, order = torch.sort(chosen.reshape(-1))
        counts = torch.histc(expert.float(), bins=4, min=0, max=3)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        gate, up = product(x[order // 2], self.gate_up.transpose(-2, -1), ends).chunk(2, dim=-1)
        each = product(F.silu(gate) * up, self.down.transpose(-2, -1), ends)
        each = each * weights.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.size(0))
        return each[inverse].view(x.size(0), 2, x.size(1)).sum(dim=1)
