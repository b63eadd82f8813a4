"""Language models with recurrent layers, of PyTorch and by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.coverage.zoo.data import LENGTH, text, tokens
from benchmarks.coverage.zoo.example import Build, Example

UNITS = 24
STEPS = 4  # of loops: each step is calls of its own


class RecurrentModel(nn.Module):
    """Embedding, something recurrent, and a head; returns the loss."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(text().vocab_size, UNITS)
        self.layers = layers
        self.head = nn.Linear(UNITS, text().vocab_size)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Ids and targets (batch, length)."""
        output = self.layers(self.embedding(ids))
        hidden = output[0] if isinstance(output, tuple) else output
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class CellLoop(nn.Module):
    """``nn.LSTMCell``, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(UNITS, UNITS)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, UNITS) to the same shape."""
        h = x.new_zeros(x.shape[0], UNITS)
        c = torch.zeros_like(h)
        outputs = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1)


class HandwrittenLoop(nn.Module):
    """The equations of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.of_input = nn.Linear(UNITS, 4 * UNITS)
        self.of_hidden = nn.Linear(UNITS, 4 * UNITS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, UNITS) to the same shape."""
        h = torch.zeros(x.shape[0], UNITS, dtype=x.dtype, device=x.device)
        c = torch.zeros(x.shape[0], UNITS, dtype=x.dtype, device=x.device)
        outputs = []
        for t in range(x.shape[1]):
            gates = self.of_input(x[:, t]) + self.of_hidden(h)
            i, f, g, o = gates.chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, 1)


def language_model(layers: nn.Module, length: int = LENGTH) -> Example:
    return Example(RecurrentModel(layers), tokens(length))


MODELS: dict[str, Build] = {
    "lstm": lambda: language_model(nn.LSTM(UNITS, UNITS, 2, batch_first=True)),
    "gru": lambda: language_model(nn.GRU(UNITS, UNITS, 2, batch_first=True)),
    "lstm_loop": lambda: language_model(HandwrittenLoop(), STEPS),
    "lstm_cell_loop": lambda: language_model(CellLoop(), STEPS),
}
