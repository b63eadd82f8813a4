"""What the configurations of single families need beside what all of them get."""

from __future__ import annotations

from typing import Any

_HEAD = {"head_dim": 8}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
_SMALL_NET = {"width_coefficient": 0.25, "depth_coefficient": 0.1}

OWN: dict[str, dict[str, Any]] = {
    "align": {"vision_config": _SMALL_NET},
    "bamba": _MAMBA,
    "data2vec-audio": {"num_conv_pos_embeddings": 5},
    "efficientnet": _SMALL_NET,
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next": {"text_config": {"num_key_value_heads": 4}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite_speech5_ctc": {"context_size": 16},
    "granitemoehybrid": _MAMBA,
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "hunyuan_vl": {"text_config": _HEAD},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lilt": {"hidden_size": 24},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2},
    "ministral": _HEAD,
}
