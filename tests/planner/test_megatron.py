"""The strategies of Megatron-LM come out by themselves, also of fused weights: restricted to tensor
parallelism, the fastest point has exactly two all-reduces per block in forward and two in backward
(Shoeybi et al., section 3); with sequence parallelism each of them is a gather and a scatter
(Korthikanti et al., section 4.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from examples.gpt import GPT, GPTConfig
from tensoropt_torch import Frontier, find_frontier
from tensoropt_torch.planner.frontier import FrontierPoint
from tensoropt_torch.telling.collectives import collectives_of
from tensoropt_torch.telling.description import space_of
from tests.distributed.fused_models import Attention, Gated, by_unbind

BATCH, LENGTH, WIDTH = 8, 512, 768
Made = tuple[nn.Module, dict[str, torch.Tensor]]


def tokens() -> torch.Tensor:
    return torch.zeros(BATCH, LENGTH, dtype=torch.long)


def gpt2(layers: int, heads: int) -> Made:
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(n_layer=layers, n_head=heads, use_cache=False, **dropouts)
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens()}


def nanogpt(layers: int, heads: int) -> Made:
    config = GPTConfig(
        vocab_size=50304, block_size=LENGTH, n_layer=layers, n_head=heads, n_embd=WIDTH
    )
    return GPT(config), {"idx": tokens(), "targets": tokens()}


def bert(layers: int, heads: int) -> Made:
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.BertConfig(
        num_hidden_layers=layers, num_attention_heads=heads, **dropouts
    )
    return transformers.BertForMaskedLM(config), {"input_ids": tokens(), "labels": tokens()}


def vit(layers: int, heads: int) -> Made:
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.ViTConfig(num_hidden_layers=layers, num_attention_heads=heads, **dropouts)
    labels = torch.zeros(BATCH, dtype=torch.long)
    images = torch.zeros(BATCH, 3, 224, 224)
    return transformers.ViTForImageClassification(config), {
        "pixel_values": images,
        "labels": labels,
    }


class Normed(nn.Module):
    """A block of a Llama whose attention and gated layer have fused weights."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.attention = Attention(nn.Linear(WIDTH, 3 * WIDTH, bias=False), by_unbind, WIDTH, heads)
        self.gated = Gated(WIDTH, 4 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        out: torch.Tensor = x + self.gated(self.norms[1](x))
        return out


class FusedLlama(nn.Module):
    def __init__(self, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(32000, WIDTH)
        self.layers = nn.Sequential(*(Normed(heads) for _ in range(layers)))
        self.head = nn.Linear(WIDTH, 32000, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(self.embed(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def llama(layers: int, heads: int) -> Made:
    return FusedLlama(layers, heads), {"tokens": tokens(), "targets": tokens()}


def phi3(layers: int, heads: int) -> Made:
    config = transformers.Phi3Config(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads == 16 else heads // 3,
        use_cache=False,
        pad_token_id=0,
    )
    return transformers.Phi3ForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


MODELS: Mapping[str, Callable[[int, int], Made]] = {
    "gpt2": gpt2,
    "nanogpt": nanogpt,
    "bert": bert,
    "vit": vit,
    "llama": llama,
}
# Names of norms, and of what lies between them.
PARTS = {
    "gpt2": ("*.ln_[12]", ("*.attn*", "*.mlp*")),
    "nanogpt": ("blocks.*.ln_[12]", ("*.attn*", "*.mlp*")),
    "llama": ("layers.*.norms.*", ("*.attention*", "*.gated*")),
}


def frontier_of(name: str, layers: int, devices: int, **options: Any) -> Frontier:
    heads = 12 if 12 % devices == 0 else 16
    with torch.device("meta"):
        model, inputs = {**MODELS, "phi3": phi3}[name](layers, heads)
    return find_frontier(model, (), inputs, cluster="h100-8", num_devices=devices, **options)


def collectives_per_block(
    name: str, devices: int, pick: Callable[[Frontier], FrontierPoint], **options: Any
) -> dict[tuple[str, str], int]:
    """What a model of three blocks has more than one of two."""
    counts = []
    for layers in (2, 3):
        plan = pick(frontier_of(name, layers, devices, **options)).plan
        count: Counter[tuple[str, str]] = Counter()
        for one in collectives_of(space_of(plan), plan):
            count[one.kind, one.moved] += one.count
        counts.append(count)
    two, three = counts
    return {key: three[key] - two[key] for key in two | three if three[key] != two[key]}


def fastest(frontier: Frontier) -> FrontierPoint:
    return frontier.fastest


# Rows of products, norms and attention.
ROWS = ["b0", "b1", "m", "l"]


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_tensor_parallelism_has_two_all_reduces_each_way(name: str, devices: int) -> None:
    found = collectives_per_block(name, devices, fastest, forbid={"*": ROWS})
    assert found == {
        ("all_reduce", "activations"): 2,
        ("all_reduce", "gradients of activations"): 2,
    }


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_unequal_sections_take_one_sum_of_gradients_more(devices: int) -> None:
    """Rows of a device's queries, keys and values lie all over their weight, which is whole where
    steps are the shortest."""
    whole = ["d0", "d1", "d2"]  # of norms, which are written out, and additions between blocks
    found = collectives_per_block(
        "phi3", devices, fastest, forbid={"*": ROWS, "*norm*": whole, "*layers.?.add*": whole}
    )
    assert found == {
        ("all_reduce", "activations"): 2,
        ("all_reduce", "gradients of activations"): 2,
        ("all_reduce", "gradients of parameters"): 1,
    }


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("name", PARTS)
def test_sequence_parallelism_has_a_gather_and_a_scatter_for_each(name: str, devices: int) -> None:
    """Norms split positions, what lies between them no rows."""
    norms, between = PARTS[name]
    found = collectives_per_block(
        name,
        devices,
        fastest,
        pin={norms: ",".join(["b1"] * (devices.bit_length() - 1))},
        forbid=dict.fromkeys(between, ROWS),
    )
    of_activations = {key: count for key, count in found.items() if "activations" in key[1]}
    assert of_activations == {
        ("all_gather", "activations"): 2,
        ("reduce_scatter", "activations"): 2,
        ("all_gather", "gradients of activations"): 2,
        ("reduce_scatter", "gradients of activations"): 2,
    }
