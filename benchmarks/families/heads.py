"""Which class of a family is trained: one with a loss if there is one."""

from __future__ import annotations

from functools import cache

from transformers.models.auto import modeling_auto

# The first that a family has comes first.
_FIRST = (
    "CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
    "QUESTION_ANSWERING",
    "TOKEN_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION",
    "TIME_SERIES_PREDICTION",
    "MASKED_IMAGE_MODELING",
    "PRETRAINING",
)


@cache
def families() -> dict[str, tuple[tuple[str, str], ...]]:
    """By family its tasks with the names of their classes, the likeliest first."""
    names = [n for n in vars(modeling_auto) if n.startswith("MODEL_FOR_")]
    tasks = [n[10:-14] for n in names if n.endswith("_MAPPING_NAMES")]
    ordered = [*_FIRST, *sorted(set(tasks) - set(_FIRST))]
    found: dict[str, list[tuple[str, str]]] = {}
    for task in ordered:
        for family, heads in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            head = heads if isinstance(heads, str) else heads[0]
            if head not in [other for _, other in found.get(family, [])]:
                found.setdefault(family, []).append((task, head))
    return {family: tuple(found[family]) for family in sorted(found)}
