"""Models that are trained with the CTC loss: texts in pictures, speech."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

from tests.distributed.kinds import Kind

LENGTHS = (6, 4, 5, 3)


class Reader(nn.Module):
    """Columns of pictures [b, 1, 8, w] as letters."""

    def __init__(self, reduction: str = "mean", concatenated: bool = False) -> None:
        super().__init__()
        self.reduction, self.concatenated = reduction, concatenated
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.rnn = nn.LSTM(4 * 8, 12, batch_first=True)
        self.letters = nn.Linear(12, 7)

    def forward(
        self, x: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """A number, of targets [b, s]."""
        columns = self.conv(x).relu().permute(0, 3, 1, 2).flatten(2)
        states, _ = self.rnn(columns)
        log_probs = self.letters(states).log_softmax(-1).transpose(0, 1)
        inputs = torch.full((len(x),), len(log_probs))
        if self.concatenated:
            targets = torch.cat([targets[i, :n] for i, n in enumerate(LENGTHS)])
        loss = F.ctc_loss(
            log_probs, targets, inputs, lengths, reduction=self.reduction, zero_infinity=True
        )
        return loss.square().mean()


class Speech(nn.Module):
    """Wav2Vec2 of Hugging Face, without random masks and layers."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        config = Wav2Vec2Config(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            conv_dim=(8, 8),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            vocab_size=12,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            apply_spec_augment=False,
            layerdrop=0.0,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            ctc_loss_reduction=reduction,
            pad_token_id=0,
        )
        self.model = Wav2Vec2ForCTC(config)

    def forward(self, sound: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """A number, of sounds [b, t] and labels [b, s] of which -100 is none."""
        loss: torch.Tensor = self.model(sound, labels=labels).loss
        return loss


def _pictures(seed: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    pictures = torch.randn(4, 1, 8, 16, generator=random)
    return pictures, torch.randint(1, 7, (4, 6), generator=random), torch.tensor(LENGTHS)


def reader() -> Kind:
    return Kind(Reader, [_pictures(0), _pictures(1)])


def reader_of_each() -> Kind:
    return Kind(lambda: Reader("none"), [_pictures(0), _pictures(1)])


def reader_of_sums() -> Kind:
    return Kind(lambda: Reader("sum", concatenated=True), [_pictures(0), _pictures(1)])


def _speech(reduction: str) -> Kind:
    random = torch.Generator().manual_seed(2)
    labels = torch.randint(1, 12, (4, 6), generator=random)
    for row, length in enumerate(LENGTHS):
        labels[row, length:] = -100
    batches = [(torch.randn(4, 400, generator=random), labels) for _ in range(2)]
    # The loss is computed in float32.
    return Kind(lambda: Speech(reduction), batches, tolerance=1e-5)


def speech() -> Kind:
    return _speech("mean")


def speech_of_sums() -> Kind:
    return _speech("sum")
