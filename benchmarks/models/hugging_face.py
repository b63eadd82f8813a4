"""Models of ``transformers`` at the sizes that are planned for, by name.

Each is built on the default device (``torch.device("meta")``: no memory), with the arguments by
keyword of one training step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

Step = tuple[nn.Module, dict[str, torch.Tensor]]
LENGTH = 8192
# Hidden size, layers, heads and width inside of Llama 3, whose keys have 8 heads.
_LLAMA = {
    "8b": (4096, 32, 32, 14336),
    "70b": (8192, 80, 64, 28672),
    "405b": (16384, 126, 128, 53248),
}


def _texts(model: nn.Module, batch: int, length: int) -> Step:
    ids = torch.zeros(batch, length, dtype=torch.long)
    return model, {"input_ids": ids, "labels": ids}


def llama(size: str, batch: int, length: int = LENGTH) -> Step:
    """Llama 3 with sequences of so many tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, layers, heads, inside = _LLAMA[size]
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        intermediate_size=inside,
        vocab_size=128256,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return _texts(LlamaForCausalLM(config), batch, length)


def rwkv(length: int) -> Step:
    """RWKV of 2 layers, whose recurrence is unrolled: several states for each token."""
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(num_hidden_layers=2, use_cache=False)
    return _texts(RwkvForCausalLM(config), 8, length)


def xlstm(length: int) -> Step:
    """xLSTM of 2 small layers, unrolled as well."""
    from transformers import xLSTMConfig, xLSTMForCausalLM

    config = xLSTMConfig(
        num_hidden_layers=2, hidden_size=64, num_heads=4, vocab_size=128, use_cache=False
    )
    return _texts(xLSTMForCausalLM(config), 8, length)


MODELS: Mapping[str, Callable[[], Step]] = {
    "hf-llama-8b": partial(llama, "8b", 64),
    "hf-llama-70b": partial(llama, "70b", 128),
    "hf-llama-405b": partial(llama, "405b", 512),
    "hf-llama-405b-2048": partial(llama, "405b", 2048),
    "hf-rwkv-8": partial(rwkv, 8),
    "hf-rwkv-32": partial(rwkv, 32),
    "hf-xlstm-8": partial(xlstm, 8),
}
