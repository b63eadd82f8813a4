"""Twelve models at sizes that fill devices, one of them at two, on the meta device, and where
they are planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.coverage.zoo.moe_and_recommenders import Recommender
from benchmarks.coverage.zoo.vision import UNet
from benchmarks.models import hugging_face
from benchmarks.models.catalogue import tokens
from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.models.rnn import RNN, RNNConfig
from benchmarks.models.small import OfHuggingFace
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig
from tensoropt_torch import Example, OptimizerModel

# Presets with 24, 48 and 80 GB by device, for models that fit one machine, and others.
MACHINE = ("rtx4090-4", "l40s-8", "h100-8")
FEW_MACHINES = ("rtx4090-8x4", "l40s-2x8", "h100-8")
MANY_MACHINES = ("rtx4090-32x4", "l40s-16x8", "h100-8x8")
MIXED = OptimizerModel("adamw", "float32", True)


@dataclass(frozen=True)
class Model:
    """What is planned, and where."""

    title: str
    build: Callable[[], Example]
    clusters: tuple[str, ...] = MACHINE
    optimizer: str | OptimizerModel = "adamw"
    most_micro_batches: int = 8


def _llama(config: LlamaConfig, batch: int, length: int) -> Example:
    return Example(Llama(config).bfloat16(), tokens(batch, length))


def llama_8b() -> Example:
    return _llama(LlamaConfig(), 8, 4096)


def llama_8b_large_batch() -> Example:
    """That of Hugging Face, which does not fit without recomputation and micro-batches."""
    model, kwargs = hugging_face.llama("8b", 256, length=4096)
    return Example(model.bfloat16(), (), kwargs)


def llama_70b() -> Example:
    config = LlamaConfig(n_layer=80, n_embd=8192, n_head=64, n_kv_head=8, n_hidden=28672)
    return _llama(config, 16, 2048)


def gpt2() -> Example:
    config = GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    return Example(gpt(config), tokens(64, 1024))


def bert() -> Example:
    import transformers

    model = transformers.BertForMaskedLM(transformers.BertConfig())
    return Example(OfHuggingFace(model), tokens(256, 256))


def vit() -> Example:
    import transformers

    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    images, classes = torch.empty(512, 3, 224, 224), torch.zeros(512, dtype=torch.long)
    return Example(model, (), {"pixel_values": images, "labels": classes})


def wide_resnet() -> Example:
    model = WideResNet(WideResNetConfig(blocks=(3, 4, 6, 3), width=128))
    return Example(model, (torch.empty(256, 3, 224, 224), torch.zeros(256, dtype=torch.long)))


def t5() -> Example:
    import transformers

    config = transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0
    )
    ids, labels = torch.zeros(64, 512, dtype=torch.long), torch.zeros(64, 128, dtype=torch.long)
    config.use_cache = False
    model = transformers.T5ForConditionalGeneration(config)
    return Example(model, (), {"input_ids": ids, "labels": labels})


def experts() -> Example:
    import transformers

    sizes = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    config = transformers.MixtralConfig(vocab_size=32000, **sizes, **heads, num_local_experts=8)
    model = OfHuggingFace(transformers.MixtralForCausalLM(config))
    return Example(model, tokens(16, 1024))


def lstm() -> Example:
    model = RNN(RNNConfig(vocab_size=32768, n_layer=4, n_hidden=2048))
    return Example(model, tokens(512, 40))


def dlrm() -> Example:
    batch, tables, rows = 65536, 8, 4_000_000
    dense, clicked = torch.empty(batch, 12), torch.empty(batch)
    categories = torch.zeros(tables, batch, 4, dtype=torch.long)
    loss_fn = functional.binary_cross_entropy_with_logits
    model = Recommender(rows, tables)
    return Example(model, (dense, categories), loss_fn=loss_fn, targets=(clicked,))


def unet() -> Example:
    images, classes = torch.empty(64, 1, 512, 512), torch.zeros(64, 512, 512, dtype=torch.long)
    model = UNet(False, width=64)
    return Example(model, (images,), loss_fn=functional.cross_entropy, targets=(classes,))


def whisper() -> Example:
    import transformers

    config = transformers.WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    features, labels = torch.empty(64, 80, 3000), torch.zeros(64, 128, dtype=torch.long)
    model = transformers.WhisperForConditionalGeneration(config)
    return Example(model, (), {"input_features": features, "labels": labels})


MODELS: Mapping[str, Model] = {
    "gpt2": Model("GPT-2 small, 64 x 1,024", gpt2),
    "bert": Model("BERT base, 256 x 256", bert),
    "vit": Model("ViT base, 512 images", vit),
    "wide_resnet": Model("WideResNet-50 x 2, 256 images", wide_resnet),
    "unet": Model("U-Net of width 64, 64 images of 512 x 512", unet),
    "lstm": Model("LSTM, 4 x 2,048, 512 x 40", lstm),
    "dlrm": Model("DLRM, 8 tables of 4 million rows, 65,536", dlrm, optimizer="sgd"),
    "experts": Model("Mixtral of 8 layers, 8 experts, 16 x 1,024", experts),
    "t5": Model("T5 base, 64 x 512 to 128", t5),
    "whisper": Model("Whisper small, 64 x 30 s to 128", whisper),
    "llama-8b": Model("Llama 3 8B, 8 x 4,096", llama_8b, FEW_MACHINES, MIXED),
    "llama-8b-256": Model(
        "Llama 3 8B, 256 x 4,096, up to 32 micro-batches",
        llama_8b_large_batch,
        ("h100-8",),
        most_micro_batches=32,
    ),
    "llama-70b": Model("Llama 3 70B, 16 x 2,048", llama_70b, MANY_MACHINES, MIXED),
}


def example_of(name: str) -> Example:
    """The model with its batch, on the meta device."""
    with torch.device("meta"):
        return MODELS[name].build()
