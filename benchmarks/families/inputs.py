"""Inputs that a head of any family may take, the likeliest first.

Nothing says which shapes a model takes: those of its kind are tried until one gives a loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.families.configs import FIRST_SPECIAL, IMAGE, LENGTH, PATCH

BATCH = 4
FIRST, LAST = 3, 60  # of the ids of a text
FRAMES = 4  # of a video

Inputs = dict[str, torch.Tensor]


def likely_inputs(model: nn.Module, task: str) -> Iterator[Inputs]:
    """Keywords of ``forward``, with labels first where it takes some."""
    names = inspect.signature(model.forward).parameters
    for main in _main_inputs(model, names):
        for labels in _labels(model, task, names, main):
            yield {**main, **labels}
        yield main


def _main_inputs(model: Any, names: Mapping[str, Any]) -> Iterator[Inputs]:
    config = model.config
    if "past_values" in names:
        yield from _series(config, names)
    if "pixel_values" in names and "input_ids" in names:
        yield from _text_with_images(model, names)
    if "input_ids" in names:
        yield _text(names)
        yield {"input_ids": ids()[:, :8], **_boxes(names)}
    for make in (_images, _sounds):
        for given in make(config, names):
            yield given
            if "decoder_input_ids" in names:
                yield {**given, "decoder_input_ids": ids()}
            if "input_ids" in names:
                yield {**given, **_text(names)}
    if "inputs" in names:
        yield {"inputs": ids()}


def ids(length: int = LENGTH) -> torch.Tensor:
    """Texts of random words."""
    return torch.randint(FIRST, LAST, (BATCH, length))


def _text(names: Mapping[str, Any]) -> Inputs:
    return {"input_ids": ids(), **_boxes(names), **_needed(names)}


def _boxes(names: Mapping[str, Any]) -> Inputs:
    """Where words are on a page."""
    if "bbox" not in names:
        return {}
    corner = torch.randint(0, 20, (BATCH, LENGTH, 2))
    return {"bbox": torch.cat([corner, corner + torch.randint(1, 20, (BATCH, LENGTH, 2))], -1)}


def _needed(names: Mapping[str, Any]) -> Inputs:
    """What has no default, and what one of the defaults does not do for."""
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "attention_mask": lambda: torch.ones(BATCH, LENGTH, dtype=torch.long),
        "decoder_input_ids": ids,
        "visual_feats": lambda: torch.randn(BATCH, 5, 32),
        "visual_pos": lambda: torch.rand(BATCH, 5, 4),
    }
    asked = [n for n, p in names.items() if p.default is p.empty or n.startswith("visual_")]
    required = [name for name in asked if name in makers]
    return {name: makers[name]() for name in required}


def _images(config: Any, names: Mapping[str, Any]) -> Iterator[Inputs]:
    parts = [config, *(getattr(config, n, None) for n in ("vision_config", "backbone_config"))]
    sizes = [_first(parts, "image_size", IMAGE), IMAGE, 64]
    channels = _first(parts, "num_channels", _first(parts, "in_channels", 3))
    for name in ("pixel_values", "pixel_values_videos", "flat_patches", "flattened_patches"):
        if name not in names:
            continue
        for size in dict.fromkeys(s if isinstance(s, int) else max(s) for s in sizes):
            image = (channels, size, size)
            yield {name: torch.randn(BATCH, *image)}
            yield {name: torch.randn(2, _first(parts, "num_frames", FRAMES), *image)}
        yield {name: torch.randn(BATCH, LENGTH, 2 + channels * PATCH * PATCH)}


def _first(parts: list[Any], name: str, otherwise: Any) -> Any:
    found = [getattr(p, name) for p in parts if getattr(p, name, None) is not None]
    return found[0] if found else otherwise


def _text_with_images(model: Any, names: Mapping[str, Any]) -> Iterator[Inputs]:
    """An image in each text, with as many places for it as it has features."""
    config = model.config
    token = _first([config], "image_token_id", _first([config], "image_token_index", None))
    features = getattr(model, "get_image_features", None)
    if token is None or features is None:
        return
    for images in (*_grids(config, names), *_images(config, names)):
        try:
            with torch.no_grad():
                found = features(**images)
        except Exception:  # another shape
            continue
        count = _rows(found) // BATCH
        if not 0 < count <= 40:
            continue
        places = torch.full((BATCH, count), token)
        words = ids()
        text = torch.cat([words[:, :2], places, words[:, 2:]], 1)
        given = {"input_ids": text, **images}
        kinds = (text == token).int()
        if "mm_token_type_ids" in names:
            given["mm_token_type_ids"] = kinds
        if "token_type_ids" in names:
            given["token_type_ids"] = kinds
        yield given


def _grids(config: Any, names: Mapping[str, Any]) -> Iterator[Inputs]:
    """Images as patches of all of them, with the grid of each."""
    vision = getattr(config, "vision_config", None)
    if vision is None or "image_grid_thw" not in names:
        return
    patch = _first([vision], "patch_size", PATCH)
    channels = _first([vision], "in_channels", _first([vision], "num_channels", 3))
    for frames in (_first([vision], "temporal_patch_size", 2), 1):
        width = channels * frames * patch * patch
        yield {
            "pixel_values": torch.randn(BATCH * 16, width),
            "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
        }


def _rows(features: Any) -> int:
    """How many feature vectors there are."""
    features = getattr(features, "pooler_output", features)
    if isinstance(features, (tuple, list)):
        return sum(_rows(part) for part in features)
    return features.numel() // features.shape[-1] if isinstance(features, torch.Tensor) else 0


def _sounds(config: Any, names: Mapping[str, Any]) -> Iterator[Inputs]:
    parts = [config, *(getattr(config, n, None) for n in ("audio_config", "encoder_config"))]
    bands = _first(parts, "num_mel_bins", _first(parts, "input_feat_per_channel", 16))
    frames = 2 * _first(parts, "max_source_positions", 32)
    for name in ("input_values", "input_features"):
        if name not in names:
            continue
        if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
            yield {name: torch.randn(BATCH, config.max_length, bands)}
        if name == "input_values":
            yield {name: torch.randn(BATCH, 8000)}
            yield {name: torch.randn(BATCH, 1, 8000)}
        yield {name: torch.randn(BATCH, bands, frames)}
        yield {name: torch.randn(BATCH, 64, bands)}
        yield {name: torch.randn(BATCH, 64, _first(parts, "feature_projection_input_dim", 32))}


def _series(config: Any, names: Mapping[str, Any]) -> Iterator[Inputs]:
    """Time series, with what came after them."""
    context = _first([config], "context_length", LENGTH)
    ahead = _first([config], "prediction_length", 4)
    channels = _first([config], "num_input_channels", 1)
    past, future = torch.randn(BATCH, context, channels), torch.randn(BATCH, ahead, channels)
    if "future_values" in names:
        yield {"past_values": past, "future_values": future}
    yield {"past_values": past}
    yield {"past_values": past[..., 0]}
    lagged = context + max(getattr(config, "lags_sequence", None) or [0])
    length = {
        "past_values": torch.rand(BATCH, lagged),
        "past_time_features": torch.rand(BATCH, lagged, 1),
        "past_observed_mask": torch.ones(BATCH, lagged),
        "future_values": torch.rand(BATCH, ahead),
        "future_time_features": torch.rand(BATCH, ahead, 1),
    }
    yield length


def _labels(model: Any, task: str, names: Mapping[str, Any], given: Inputs) -> Iterator[Inputs]:
    """Targets of a task that ``forward`` takes."""
    main = next(iter(given.values()))
    batch = main.shape[0] if "image_grid_thw" not in given else BATCH
    text = given.get("input_ids")
    classes = getattr(model.config, "num_labels", 2) or 2
    if "start_positions" in names:
        places = torch.randint(1, 7, (2, batch))
        yield {"start_positions": places[0], "end_positions": places[1]}
    if "next_sentence_label" in names and "labels" in names and text is not None:
        yield {"labels": text, "next_sentence_label": torch.randint(0, 2, (batch,))}
    for name in ("labels", "mc_labels"):
        if name not in names:
            continue
        if text is not None and task not in ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION"):
            shown = torch.where(text >= FIRST_SPECIAL, -100, text)
            yield {name: shown % classes if task == "TOKEN_CLASSIFICATION" else shown}
        elif "CLASSIFICATION" not in task:
            words = getattr(model.config, "vocab_size", LAST) or LAST
            yield {name: ids(8)[:batch] % words}
        yield {name: torch.randint(0, classes, (batch,))}
        size = main.shape[-1]
        yield {name: torch.randint(0, classes, (batch, size, size))}
        yield {name: torch.rand(batch, size, size)}
