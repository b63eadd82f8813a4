"""Models of Hugging Face ``transformers`` with random weights, called as its users
do: keyword arguments, labels that are the input ids, an output that holds the loss.

Dropout is 0, since its masks are not those of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import transformers as hf

from benchmarks.coverage.zoo.data import LENGTH, NUM_DIGITS, digits, text, tokens
from benchmarks.coverage.zoo.example import Build, Example

WIDTH = 32
HEADS = 4
HIDDEN = 64

# Words that many configurations share.
DECODER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 4 * LENGTH,
    "use_cache": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
GROUPED: dict[str, Any] = {**DECODER, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 4 * LENGTH,
    **NO_DROPOUT,
}


def language_model(model: Any, config: Any, **settings: Any) -> Build:
    """Text whose labels are the text itself."""

    def build() -> Example:
        module = model(config(vocab_size=text().vocab_size, **settings))
        ids, _ = tokens()
        return Example(module, kwargs={"input_ids": ids, "labels": ids})

    return build


def expert_model(model: Any, config: Any, **settings: Any) -> Build:
    """A language model whose products of experts do not take float64."""

    def build() -> Example:
        return replace(language_model(model, config, **settings)(), precision=torch.float32)

    return build


def gemma3() -> Example:
    """Its norms compute in float32 with weights that begin at zero. After some steps
    these are as small as the updates, in which AdamW makes rounding errors of small
    gradients larger."""
    build = language_model(hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, **GEMMA3)
    return replace(build(), tolerance=1e-4)


def masked_model(model: Any, config: Any, **settings: Any) -> Build:
    """Text of which a seventh is hidden; some lines are shorter than others."""

    def build() -> Example:
        module = model(config(vocab_size=text().vocab_size, **settings))
        labels, _ = tokens()
        hidden = torch.arange(labels.numel()).view_as(labels) % 7 == 3
        ids = labels.masked_fill(hidden, 2)
        attention_mask = torch.ones_like(ids)
        attention_mask[::3, -2:] = 0
        kwargs = {
            "input_ids": ids,
            "attention_mask": attention_mask,
            "labels": labels.masked_fill(~hidden, -100),
        }
        return Example(module, kwargs=kwargs)

    return build


def translation(model: Any, config: Any, **settings: Any) -> Build:
    """From a text to the one that follows."""

    def build() -> Example:
        module = model(config(vocab_size=text().vocab_size, **settings))
        ids, labels = tokens()
        return Example(module, kwargs={"input_ids": ids, "labels": labels})

    return build


def image_model(model: Any, config: Any, **settings: Any) -> Build:
    """Digits; transformers finds the loss by the number of classes."""

    def build() -> Example:
        module = model(config(num_channels=1, num_labels=NUM_DIGITS, **settings))
        images, classes = digits(settings["image_size"])
        return Example(module, kwargs={"pixel_values": images, "labels": classes})

    return build


def convnext() -> Example:
    config = hf.ConvNextConfig(
        num_channels=1,
        num_labels=NUM_DIGITS,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 2, 1],
        num_stages=4,
        drop_path_rate=0.0,
    )
    images, classes = digits(32)
    model = hf.ConvNextForImageClassification(config)
    return Example(model, kwargs={"pixel_values": images, "labels": classes})


GPT2: dict[str, Any] = {
    "n_positions": 4 * LENGTH,
    "n_embd": WIDTH,
    "n_layer": 2,
    "n_head": HEADS,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EXPERTS: dict[str, Any] = {**GROUPED, "num_experts_per_tok": 2, "output_router_logits": True}
T5: dict[str, Any] = {
    "d_model": WIDTH,
    "d_kv": WIDTH // HEADS,
    "d_ff": HIDDEN,
    "num_layers": 2,
    "num_heads": HEADS,
    "dropout_rate": 0.0,
    "use_cache": False,
    "decoder_start_token_id": 0,
    "tie_word_embeddings": True,
}
BART: dict[str, Any] = {
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": HIDDEN,
    "decoder_ffn_dim": HIDDEN,
    "max_position_embeddings": 4 * LENGTH,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "use_cache": False,
}
DISTILBERT: dict[str, Any] = {
    "dim": WIDTH,
    "hidden_dim": HIDDEN,
    "n_layers": 2,
    "n_heads": HEADS,
    "max_position_embeddings": 4 * LENGTH,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
VIT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "image_size": 16,
    "patch_size": 4,
    **NO_DROPOUT,
}
ROBERTA: dict[str, Any] = {**BERT, "pad_token_id": 1, "type_vocab_size": 1}
GEMMA3: dict[str, Any] = {
    **GROUPED,
    "pad_token_id": 0,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}

MODELS: dict[str, Callable[[], Example]] = {
    "gpt2": language_model(hf.GPT2LMHeadModel, hf.GPT2Config, **GPT2),
    "llama": language_model(hf.LlamaForCausalLM, hf.LlamaConfig, **GROUPED),
    "mistral": language_model(hf.MistralForCausalLM, hf.MistralConfig, **GROUPED, sliding_window=4),
    "qwen3": language_model(hf.Qwen3ForCausalLM, hf.Qwen3Config, **GROUPED),
    "gemma3": gemma3,
    "phi3": language_model(hf.Phi3ForCausalLM, hf.Phi3Config, **DECODER, num_key_value_heads=2),
    "gpt_neox": language_model(
        hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, **DECODER, hidden_dropout=0.0
    ),
    "bert": masked_model(hf.BertForMaskedLM, hf.BertConfig, **BERT),
    "roberta": masked_model(hf.RobertaForMaskedLM, hf.RobertaConfig, **ROBERTA),
    "distilbert": masked_model(hf.DistilBertForMaskedLM, hf.DistilBertConfig, **DISTILBERT),
    "t5": translation(hf.T5ForConditionalGeneration, hf.T5Config, **T5),
    "bart": translation(hf.BartForConditionalGeneration, hf.BartConfig, **BART),
    "vit": image_model(hf.ViTForImageClassification, hf.ViTConfig, **VIT),
    "convnext": convnext,
    "mixtral": expert_model(
        hf.MixtralForCausalLM, hf.MixtralConfig, **EXPERTS, num_local_experts=4
    ),
    "qwen3_moe": expert_model(
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig,
        **EXPERTS,
        num_experts=4,
        moe_intermediate_size=HIDDEN // 2,
        norm_topk_prob=True,
    ),
}
