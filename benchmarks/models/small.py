"""Models that a small machine trains in a second or less, with what people split them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.models.rnn import RNN, RNNConfig
from benchmarks.models.transformer import Transformer, TransformerConfig
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig

Batch = tuple[torch.Tensor, ...]
# Which linear layers are split by columns and by rows: names within the model.
Styles = Callable[[Any], dict[str, ParallelStyle]]


@dataclass(frozen=True)
class SmallModel:
    """A model that gives its loss, and a batch.

    Attributes:
        make: both of them, on the default device.
        blocks: the modules that FSDP2 gathers one at a time.
        styles: how people split its layers; None: nobody does.
    """

    make: Callable[[], tuple[nn.Module, Batch]]
    blocks: Callable[[Any], Iterable[nn.Module]]
    styles: Styles | None = None


class Wide(nn.Module):
    """Layers with many parameters for each sample."""

    def __init__(self, width: int = 2048, layers: int = 4) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what the layers give."""
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class OfHuggingFace(nn.Module):
    """The loss of a model of Hugging Face on ids and labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of the labels."""
        loss: torch.Tensor = self.model(input_ids=ids, labels=labels).loss
        return loss


def small_gpt() -> tuple[nn.Module, Batch]:
    """6 layers of 256, 16 x 128 tokens of 4,096."""
    config = GPTConfig(vocab_size=4096, block_size=128, n_layer=6, n_head=8, n_embd=256)
    return gpt(config), tuple(torch.randint(4096, (2, 16, 128)))


def gpt2() -> tuple[nn.Module, Batch]:
    """GPT-2 small, its head by itself, 8 x 64 tokens of 50,257."""
    config = GPTConfig(vocab_size=50257, block_size=64, n_layer=12, n_head=12, n_embd=768)
    return gpt(config), tuple(torch.randint(50257, (2, 8, 64)))


def small_transformer(layers: int, batch: int) -> tuple[nn.Module, Batch]:
    """Encoder and decoder of so many layers of 256, ``batch`` sequences of 64 tokens."""
    config = TransformerConfig(
        vocab_size=1024, n_layer=layers, n_head=4, head_size=64, n_embd=256, n_hidden=1024
    )
    generator = torch.Generator().manual_seed(1)
    return Transformer(config), tuple(torch.randint(1024, (3, batch, 64), generator=generator))


def wide() -> tuple[nn.Module, Batch]:
    """4 layers of 2,048, 64 samples."""
    return Wide(), (torch.randn(64, 2048),)


def small_bert() -> tuple[nn.Module, Batch]:
    """6 layers of 256, 16 x 64 tokens of 30,522, of which no four equal parts can be made."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4}
    return bert(16, intermediate_size=1024, **sizes)


def bert_base() -> tuple[nn.Module, Batch]:
    """12 layers of 768, 8 x 64 tokens of 30,522."""
    return bert(8)


def bert(batch: int, **sizes: int) -> tuple[nn.Module, Batch]:
    """Without dropout, with so many texts of 64 tokens."""
    import transformers

    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **dropouts)
    model = OfHuggingFace(transformers.BertForMaskedLM(config))
    return model, tuple(torch.randint(config.vocab_size, (2, batch, 64)))


def bert_layers(model: Any) -> Iterable[nn.Module]:
    """The blocks of a BERT."""
    layers: nn.ModuleList = model.model.bert.encoder.layer
    return layers


def small_experts() -> tuple[nn.Module, Batch]:
    """Mixtral with 4 layers of 256 and 8 experts, 16 x 64 tokens of 4,096."""
    import transformers

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.MixtralConfig(vocab_size=4096, **sizes, **heads, num_local_experts=8)
    model = OfHuggingFace(transformers.MixtralForCausalLM(config))
    return model, tuple(torch.randint(4096, (2, 16, 64)))


def small_resnet() -> tuple[nn.Module, Batch]:
    """8 bottlenecks of 24 to 192 channels inside, 32 images of 64 x 64."""
    config = WideResNetConfig(blocks=(2, 2, 2, 2), width=24, image_size=64, n_class=10)
    return WideResNet(config), (torch.randn(32, 3, 64, 64), torch.randint(10, (32,)))


def small_lstm() -> tuple[nn.Module, Batch]:
    """2 layers of 512, 32 x 20 tokens of 4,096."""
    model = RNN(RNNConfig(vocab_size=4096, n_layer=2, n_hidden=512))
    return model, tuple(torch.randint(4096, (2, 32, 20)))


def study_rnn() -> tuple[nn.Module, Batch]:
    """2 layers of 256, 32 x 16 tokens of 2,048."""
    model = RNN(RNNConfig(vocab_size=2048, n_layer=2, n_hidden=256))
    return model, tuple(torch.randint(2048, (2, 32, 16)))


def study_wide_resnet() -> tuple[nn.Module, Batch]:
    """4 bottlenecks of 32 to 256 channels inside, 16 images of 64 x 64."""
    config = WideResNetConfig(blocks=(1, 1, 1, 1), width=32, image_size=64, n_class=128)
    return WideResNet(config), (torch.randn(16, 3, 64, 64), torch.randint(128, (16,)))


def study_transformer() -> tuple[nn.Module, Batch]:
    """Encoder and decoder of 2 layers of 256, 16 sequences of 32 tokens of 2,048."""
    config = TransformerConfig(
        vocab_size=2048, n_layer=2, n_head=8, head_size=32, n_embd=256, n_hidden=1024
    )
    return Transformer(config), tuple(torch.randint(2048, (3, 16, 32)))


def gpt_styles(model: Any) -> dict[str, ParallelStyle]:
    """Heads and hidden features are split, and the vocabulary, as in PyTorch's tutorial."""
    styles: dict[str, ParallelStyle] = {
        "wte": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    columns, rows = ("attn.query", "attn.key", "attn.value", "mlp.fc"), ("attn.proj", "mlp.proj")
    for index in range(len(model.blocks)):
        styles |= {f"blocks.{index}.{name}": ColwiseParallel() for name in columns}
        styles |= {f"blocks.{index}.{name}": RowwiseParallel() for name in rows}
    return styles


def wide_styles(model: Any) -> dict[str, ParallelStyle]:
    """Layers in turn by columns and by rows."""
    return {
        f"blocks.{index}.0": RowwiseParallel() if index % 2 else ColwiseParallel()
        for index in range(len(model.blocks))
    }


MODELS = {
    "gpt": SmallModel(small_gpt, lambda model: model.blocks, gpt_styles),
    "wide": SmallModel(wide, lambda model: model.blocks, wide_styles),
    "bert": SmallModel(small_bert, bert_layers),
    "experts": SmallModel(small_experts, lambda model: model.model.model.layers),
    "resnet": SmallModel(small_resnet, lambda model: model.layers),
    "lstm": SmallModel(small_lstm, lambda model: [model.embed, model.layers, model.head]),
}

# Seconds a step, and some GiB for each way to train it.
LARGE = {
    "gpt2": SmallModel(gpt2, lambda model: model.blocks, gpt_styles),
    "bert_base": SmallModel(bert_base, bert_layers),
}

# Those of benchmarks/estimation_error.py, which are the models of the TensorOpt paper made small.
STUDY = {
    "rnn": SmallModel(study_rnn, lambda model: [model.embed, model.layers, model.head]),
    "wide_resnet": SmallModel(study_wide_resnet, lambda model: model.layers),
    "transformer": SmallModel(study_transformer, lambda model: [*model.encoder, *model.decoder]),
}
