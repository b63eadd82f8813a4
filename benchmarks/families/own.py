"""What the configurations of single families need beside what all of them get."""

from __future__ import annotations

from typing import Any

_HEAD = {"head_dim": 8}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
_SMALL_NET = {"width_coefficient": 0.25, "depth_coefficient": 0.1, "hidden_dim": 320}
_SECTIONS = {  # of a head of size 8, by time, height and width
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
}
_MIXED = {"num_hidden_layers": 4, "layer_types": ["mamba", "hybrid", "mamba", "hybrid"]}

OWN: dict[str, dict[str, Any]] = {
    "align": {"vision_config": _SMALL_NET},
    "bamba": _MAMBA,
    "bit": {"embedding_size": 32, "hidden_sizes": [32, 64, 64, 64], "num_groups": 4},
    "colqwen2": {"vlm_config": {"text_config": _SECTIONS}},
    "data2vec-audio": {"num_conv_pos_embeddings": 5},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "efficientnet": _SMALL_NET,
    "esm": {"vocab_size": 128, "pad_token_id": 1, "mask_token_id": 32},
    "esmc": {"num_key_value_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm46v": {"text_config": _SECTIONS},
    "glm4v": {"text_config": _SECTIONS},
    "glm4v_moe": {"text_config": {**_SECTIONS, "head_dim": 16}},
    "glm5_next": {"text_config": {"num_key_value_heads": 4}},
    "glm_ocr": {"text_config": _SECTIONS},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite_speech5_ctc": {"encoder_config": {"context_size": 16}},
    "granitemoehybrid": _MAMBA,
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "hunyuan_vl": {"text_config": _HEAD | _SECTIONS},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3_vl": {"text_config": {"layer_types": ["conv", "full_attention"]}},
    "lilt": {"hidden_size": 96},
    "lxmert": {"visual_feat_dim": 32},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2},
    "ministral": _HEAD,
    "moonshine_streaming": {"num_key_value_heads": 4},
    "nemotron": {"num_key_value_heads": 2},
    "qwen2_5_vl": {"text_config": _SECTIONS},
    "qwen2_vl": {"text_config": _SECTIONS},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 4]},
    "xmod": {"default_language": "en_XX"},
    "zamba": _MIXED,
    "zamba2": _MIXED,
}
