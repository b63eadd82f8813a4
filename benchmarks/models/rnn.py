"""The RNN of the TensorOpt paper: an LSTM language model of 108 GiB.

The paper gives the bytes of the parameters and a batch of 256. Chosen here: as
many units as features, so that all layers are alike; 13 layers of 16384 units
(8 GiB each) and a vocabulary of 32768 (2 GiB for the embedding and for the head)
are 108.0 GiB in float32. Sequences of 20 tokens are those of the LSTM language
models of Jozefowicz et al. (2016).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
LENGTH = 20


@dataclass(frozen=True)
class RNNConfig:
    """The defaults are the sizes of the paper's model; ``cell`` is 'lstm' or 'gru'."""

    vocab_size: int = 32768
    n_layer: int = 13
    n_hidden: int = 16384
    cell: str = "lstm"
    dropout: float = 0.0


class RNN(nn.Module):
    """Token ids and targets (batch, time) -> mean cross entropy."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.n_hidden)
        layers = {"lstm": nn.LSTM, "gru": nn.GRU}[config.cell]
        self.layers = layers(
            config.n_hidden,
            config.n_hidden,
            config.n_layer,
            batch_first=True,
            dropout=config.dropout,
        )
        self.head = nn.Linear(config.n_hidden, config.vocab_size)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of predicting targets."""
        hidden, _ = self.layers(self.embed(tokens))
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens() -> tuple[Tensor, Tensor]:
    """A batch of the paper's size."""
    shape = (BATCH, LENGTH)
    return torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
