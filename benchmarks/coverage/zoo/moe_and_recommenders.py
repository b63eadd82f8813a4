"""Experts chosen by token, and recommenders with large tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.coverage.zoo.data import text, tokens
from benchmarks.coverage.zoo.example import Build, Example

WIDTH = 16
EXPERTS = 4
CHOSEN = 2


class Experts(nn.Module):
    """The weights of all experts, and what chooses among them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(0.1 * torch.randn(EXPERTS, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(0.1 * torch.randn(EXPERTS, 2 * WIDTH, WIDTH))

    def routes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers (tokens, CHOSEN) of the experts of each token."""
        weights, chosen = self.router(x).softmax(-1).topk(CHOSEN, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen


class DenseExperts(Experts):
    """Every expert takes up to ``capacity`` tokens; the others pass it by."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, WIDTH) to the same shape."""
        flat = x.reshape(-1, WIDTH)
        capacity = flat.shape[0] * CHOSEN // EXPERTS
        weights, chosen = self.routes(flat)
        choice = F.one_hot(chosen, EXPERTS)
        order = choice.reshape(-1, EXPERTS).cumsum(0).view_as(choice) - 1
        place = (order * choice).sum(-1)
        kept = (place < capacity).to(x.dtype)
        slots = F.one_hot(place.clamp(max=capacity - 1), capacity).to(x.dtype)
        slots = slots * kept.unsqueeze(-1)
        dispatch = torch.einsum("tke,tkc->tec", choice.to(x.dtype), slots)
        combine = torch.einsum("tk,tke,tkc->tec", weights, choice.to(x.dtype), slots)
        inside = torch.einsum("tec,td->ecd", dispatch, flat)
        hidden = F.gelu(torch.einsum("ecd,edh->ech", inside, self.up))
        outside = torch.einsum("ech,ehd->ecd", hidden, self.down)
        return torch.einsum("tec,ecd->td", combine, outside).view_as(x)


class ScatterExperts(Experts):
    """Weights of experts that were not chosen are zero."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, WIDTH) to the same shape."""
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.routes(flat)
        gates = torch.zeros(flat.shape[0], EXPERTS, dtype=x.dtype).scatter_(1, chosen, weights)
        hidden = F.silu(torch.einsum("td,edh->teh", flat, self.up))
        each = torch.einsum("teh,ehd->ted", hidden, self.down)
        return (each * gates.unsqueeze(-1)).sum(1).view_as(x)


class IndexExperts(Experts):
    """Tokens sorted by expert, and added where they came from."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, WIDTH) to the same shape."""
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.routes(flat)
        order = chosen.flatten().argsort(stable=True)
        token = order // CHOSEN
        expert = chosen.flatten()[order]
        hidden = F.gelu(torch.bmm(flat[token].unsqueeze(1), self.up[expert]))
        each = torch.bmm(hidden, self.down[expert]).squeeze(1)
        each = each * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add_(0, token, each).view_as(x)


class ExpertModel(nn.Module):
    """Two residual layers of experts between embedding and head."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(text().vocab_size, WIDTH)
        self.layers = nn.ModuleList(kind() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, text().vocab_size)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Ids and targets (batch, length) to the loss."""
        x = self.embedding(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class Recommender(nn.Module):
    """DLRM: bags of categories and dense features, multiplied pair by pair."""

    def __init__(self, rows: int = 48, tables: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, WIDTH), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """(batch, 12) and (tables, batch, categories in a bag) to scores (batch)."""
        base = self.bottom(dense)
        vectors = [base, *(t(categories[i]) for i, t in enumerate(self.tables))]
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        features = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([base, features], 1)).squeeze(1)


def recommender() -> Example:
    dense, clicked = torch.randn(8, 12), torch.randint(0, 2, (8,)).float()
    categories = torch.randint(0, 48, (4, 8, 3))
    loss_fn = F.binary_cross_entropy_with_logits
    return Example(Recommender(), (dense, categories), loss_fn=loss_fn, targets=(clicked,))


MODELS: dict[str, Build] = {
    "dlrm": recommender,
    "moe_dense": lambda: Example(ExpertModel(DenseExperts), tokens()),
    "moe_scatter": lambda: Example(ExpertModel(ScatterExperts), tokens()),
    "moe_index_add": lambda: Example(ExpertModel(IndexExperts), tokens()),
}
