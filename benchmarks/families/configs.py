"""Small configurations of any family, made from the one that its class gives by default.

Names that many families share have one small value each, whatever the family; what only one of
them needs is in ``OWN``. Configurations of parts (of a text model, of an image encoder) are made
small in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from benchmarks.families.own import OWN

WIDTH, HIDDEN, HEADS, LAYERS = 32, 64, 4, 2
VOCABULARY = 128
FIRST_SPECIAL = 100  # token ids from here on are not those of a text
LENGTH = 16
IMAGE, PATCH = 32, 8

_BY_VALUE: tuple[tuple[int, str], ...] = (
    (
        WIDTH,
        """
        hidden_size d_model n_embd dim embed_dim embedding_size embedding_dim emb_dim
        projection_dim encoder_hidden_size decoder_hidden_size encoder_hidden_dim
        output_hidden_size out_hidden_size text_hidden_size audio_hidden_size hidden_dim
        pooler_output_size backbone_hidden_size fpn_hidden_size fusion_hidden_size
        mask_feature_size projector_hidden_size word_embed_proj_dim cross_attention_hidden_size
        classifier_proj_size query_dim lru_width width image_text_hidden_size pooler_hidden_size
        downsample_hidden_size head_hidden_size memory_attention_hidden_size
        memory_encoder_hidden_size iou_head_hidden_dim codevector_dim proj_codevector_dim
        xvector_output_dim feature_size output_channels d_latents hidden_size_global output_dim
        vision_output_dim adapter_out_dim
        """,
    ),
    (
        HIDDEN,
        """
        intermediate_size ffn_dim d_ff d_inner dim_ff dff mlp_dim n_inner encoder_ffn_dim
        decoder_ffn_dim ffn_hidden_size dim_feedforward decoder_intermediate_size
        encoder_feedforward_dim shared_intermediate_size dense_intermediate_size
        intermediate_size_mlp feed_forward_size expert_ffn_hidden_size
        speech_encoder_intermediate_size
        """,
    ),
    (
        WIDTH // 2,
        """
        moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size
        shared_experts_intermediate_size kv_lora_rank q_lora_rank o_lora_rank num_queries
        num_mel_bins mamba_d_state state_size ssm_state_size hidden_size_per_layer_input
        router_hidden_size mamba_chunk_size
        """,
    ),
    (
        HEADS,
        """
        rotary_dim num_attention_heads n_head n_heads num_heads attention_heads
        encoder_attention_heads
        decoder_attention_heads decoder_num_attention_heads encoder_num_attention_heads
        num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads
        memory_attention_num_attention_heads speech_encoder_attention_heads num_experts
        num_local_experts n_routed_experts moe_num_experts linear_num_value_heads index_n_heads
        decoder_self_attention_heads decoder_cross_attention_heads
        """,
    ),
    (
        2,
        """
        num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads linear_num_key_heads
        num_experts_per_tok moe_topk moe_top_k moe_k num_experts_per_token encoder_layers
        decoder_layers num_hidden_layers n_layer n_layers num_layers num_encoder_layers
        num_decoder_layers decoder_num_hidden_layers depth layers num_lstm_layers
        speech_encoder_layers num_conv_pos_embedding_groups num_codevector_groups
        memory_attention_num_layers lqe_layers c2f_num_blocks
        """,
    ),
    (
        1,
        """
        n_group topk_group first_k_dense_replace num_dense_layers
        """,
    ),
    (
        WIDTH // HEADS,
        """
        head_dim d_kv d_head dim_head swa_head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim
        linear_key_head_dim linear_value_head_dim index_head_dim kv_channels attention_head_dim
        attention_head_size global_head_dim
        """,
    ),
    (
        VOCABULARY,
        """
        vocab_size vocab_size_per_layer_input unpadded_vocab_size input_vocab_size
        output_vocab_size decoder_vocab_size text_vocab_size t2u_vocab_size entity_vocab_size
        shape_vocab_size pronunciation_vocab_size encoder_hash_byte_group_vocab
        """,
    ),
    (
        4 * LENGTH,
        """
        max_position_embeddings n_positions n_ctx max_seq_len max_2d_position_embeddings
        max_source_positions max_target_positions context_length model_max_length
        original_max_position_embeddings max_sequence_length
        """,
    ),
    (
        LENGTH // 2,
        """
        sliding_window sliding_window_size attention_chunk_size chunk_size
        """,
    ),
    (
        IMAGE,
        """
        image_size pretrain_image_size crop_size
        """,
    ),
    (
        PATCH,
        """
        patch_size
        """,
    ),
)
_NAMED = {name: value for value, names in _BY_VALUE for name in names.split()}

_LISTS: dict[str, Any] = {
    "hidden_sizes": lambda n: [16, 32, 32, 64, 64, 64][:n],
    "encoder_hidden_sizes": lambda n: [16, 32, 32, 64][:n],
    "embed_dims": lambda n: [16, 32, 32, 64][:n],
    "depths": lambda n: [1] * n,
    "conv_dim": lambda n: [16] * n,
    "num_heads": lambda n: [1, 2, 2, 4][:n],
    "num_attention_heads": lambda n: [1, 2, 2, 4][:n],
}


def small_config(family: str) -> PreTrainedConfig:
    """A configuration of a family whose model has some ten thousand parameters."""
    return _small(CONFIG_MAPPING[family], {}, OWN.get(family, {}))


def _small(kind: type[PreTrainedConfig], given: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    default = kind(**given)
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    changes: dict[str, Any] = dict(given)
    special = FIRST_SPECIAL
    for name in names:
        value = default.__dict__.get(name)
        if isinstance(value, PreTrainedConfig):
            changes[name] = _small(type(value), _differing(value), own.get(name, {}))
        elif _is_token(name) and not isinstance(value, (list, tuple)):
            changes[name], special = _token(value, special)
        elif _is_token(name):
            changes[name] = [special]
            special += 1
        else:
            small = _small_value(name, value)
            if small is not None:
                changes[name] = small
    if "kv_lora_rank" in names and "num_key_value_heads" in names:  # each head has its own
        changes["num_key_value_heads"] = HEADS
    parts = {name for name in names if isinstance(default.__dict__.get(name), PreTrainedConfig)}
    changes.update({name: value for name, value in own.items() if name not in parts})
    return _with_attention(kind, changes)


def _with_attention(kind: type[PreTrainedConfig], changes: dict[str, Any]) -> Any:
    """The last layer is one of attention, if none of so few is."""
    made = kind(**changes)
    layers = getattr(made, "layer_types", None) or ()
    if layers and set(layers) == {"linear_attention"}:
        made = kind(**{**changes, "layer_types": [*layers[:-1], "full_attention"]})
    return made


def _differing(config: PreTrainedConfig) -> dict[str, Any]:
    """What a configuration was given that its class would not have had."""
    default = type(config)()
    names = inspect.signature(type(config).__init__).parameters
    return {
        name: value
        for name, value in config.__dict__.items()
        if name in names and _plain(value) and value != default.__dict__.get(name)
    }


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _is_token(name: str) -> bool:
    return name.endswith(("token_id", "token_index"))


def _token(value: Any, special: int) -> tuple[Any, int]:
    """An id of the small vocabulary; ids that are none stay."""
    if not isinstance(value, int) or isinstance(value, bool) or value < FIRST_SPECIAL:
        return value, special
    return special, special + 1


def _small_value(name: str, value: Any) -> Any:
    """The small value of an attribute; None where it stays what it is."""
    if isinstance(value, Mapping) and "mrope_section" in value:
        return {**value, "mrope_section": [2, 1, 1]}  # halves of a head
    if isinstance(value, (list, tuple)) and name in _LISTS and _all_int(value):
        return _LISTS[name](len(value))
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    small = _NAMED.get(name)
    return None if small is None or small >= value else small


def _all_int(values: Any) -> bool:
    return all(isinstance(value, int) for value in values)
