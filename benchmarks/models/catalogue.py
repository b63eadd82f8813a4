"""The models at the sizes that are planned for, by name.

Each is built on the default device (``torch.device("meta")``: no memory), with the
arguments of one training step.
"""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.models import rnn as rnn_model
from benchmarks.models import transformer as transformer_model
from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.models.vgg import vgg16
from benchmarks.models.wide_resnet import wide_resnet

Example = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


def tokens(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    """Token ids and targets."""
    return tuple(torch.zeros(batch, length, dtype=torch.long) for _ in range(2))


def llama() -> Example:
    """The shape of Llama 3 8B: 32 layers, batch 16 of 4096 tokens."""
    return Llama(LlamaConfig()), tokens(16, 4096)


def llama_long() -> Example:
    """The same with 16 sequences of 8192 tokens."""
    return Llama(LlamaConfig()), tokens(16, 8192)


def llama_70b(batch: int) -> Example:
    """The shape of Llama 3 70B: 80 layers, sequences of 8192 tokens."""
    config = LlamaConfig(n_layer=80, n_embd=8192, n_head=64, n_kv_head=8, n_hidden=28672)
    return Llama(config), tokens(batch, 8192)


def rnn() -> Example:
    """The paper's RNN of 108 GiB, batch 256."""
    return rnn_model.RNN(rnn_model.RNNConfig()), rnn_model.tokens()


def transformer() -> Example:
    """The paper's Transformer of 9.7 GiB, batch 256."""
    config = transformer_model.TransformerConfig()
    return transformer_model.Transformer(config), transformer_model.tokens()


def transformer_small() -> Example:
    """The paper's Transformer-S of 4.8 GiB, batch 256."""
    model = transformer_model.Transformer(transformer_model.SMALL)
    return model, transformer_model.tokens()


MODELS: dict[str, Callable[[], Example]] = {
    "llama": llama,
    "llama-8192": llama_long,
    "llama-70b-64": partial(llama_70b, 128),
    "llama-70b-256": partial(llama_70b, 512),
    "vgg16": vgg16,
    "wide_resnet": wide_resnet,
    "rnn": rnn,
    "transformer": transformer,
    "transformer-s": transformer_small,
}
