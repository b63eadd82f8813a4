"""A model that makes and reads tensors row by row, as those do that sum up each text of a batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Texts(nn.Module):
    """The last state of each text, what is pooled of it, the token at its end, its bag of words
    and how much of it there is of each kind, together into one of five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.forwards = nn.LSTM(8, 8, batch_first=True)
        self.backwards = nn.GRU(8, 8)
        self.plain = nn.RNN(8, 8, batch_first=True)
        self.query = nn.Parameter(torch.randn(8))
        self.words = nn.EmbeddingBag(12, 8, mode="mean")
        self.head = nn.Linear(48 + 4, 5)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(n, t) tokens and (n) classes -> the loss."""
        rows = len(tokens)
        x = self.embedding(tokens)
        _, (last, _) = self.forwards(x)
        _, first = self.backwards(x.flip(1).transpose(0, 1))
        hidden, _ = self.plain(x, torch.zeros(1, rows, 8, dtype=x.dtype))
        pooled = (hidden @ self.query).softmax(-1).unsqueeze(-1).mul(hidden).sum(1)
        at_end = hidden[torch.arange(rows, device=tokens.device), tokens.argmax(-1)]
        kinds = torch.zeros(rows, 4, dtype=x.dtype).scatter_add(1, tokens % 4, hidden.mean(-1))
        hidden = hidden.gather(1, hidden.detach().argsort(dim=1))
        summary = [last[-1], first[-1], pooled, at_end, kinds, hidden[:, -1], self.words(tokens)]
        return F.cross_entropy(self.head(torch.cat(summary, -1)), target)
