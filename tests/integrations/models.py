"""Small models of Hugging Face and batches for them; nothing is downloaded."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import peft
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

VOCABULARY, LENGTH, CLASSES = 64, 16, 4
PADDING = -100  # no target


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Sequences that follow one rule, so that there is something to learn; each is padded to
    another length, so that ranks have different numbers of targets."""

    def __init__(self, count: int, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(0, VOCABULARY, (count, 1), generator=generator)
        self.tokens = (starts + 3 * torch.arange(LENGTH)) % VOCABULARY
        self.lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        kept = torch.arange(LENGTH) < self.lengths[index]
        tokens = torch.where(kept, self.tokens[index], 0)
        return {
            "input_ids": tokens,
            "attention_mask": kept.long(),
            "labels": torch.where(kept, tokens, PADDING),
        }


class Topics(Texts):
    """The same with a class for each."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            **super().__getitem__(index),
            "labels": self.tokens[index, 0] * CLASSES // VOCABULARY,
        }


def gpt2(dropout: float = 0.0, **changes: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY,
        "n_positions": LENGTH,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
    }
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **rates, **ends, **changes}))


def lora() -> nn.Module:
    """GPT-2 with adapters: its own parameters are frozen."""
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    model = gpt2()
    torch.manual_seed(1)
    adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


MODELS = {
    "gpt2": (gpt2, Texts),
    "gpt2_with_dropout": (partial(gpt2, dropout=0.2), Texts),
    "lora": (lora, Texts),
    "bert": (bert, Topics),
}


def accuracy(prediction: Any) -> dict[str, float]:
    """Of next tokens, or of classes."""
    logits, labels = prediction.predictions, prediction.label_ids
    if logits.ndim == 3:
        logits, labels = logits[:, :-1], labels[:, 1:]
    valid = labels != PADDING
    return {"accuracy": float(np.mean((logits.argmax(-1) == labels)[valid]))}


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Of the weights of two models."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).abs().max().detach()) for a, b in pairs)
