"""Language models without code: of a config file of Hugging Face, or of sizes.

::

    example = example_of_config("config.json", BatchSize(8, 8192))
    example = example_of_config("hf:llama,hidden_size=8192", BatchSize(8, 8192))

The model is built by the installed ``transformers`` on the meta device: no memory, no weights, and
nothing is fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tensoropt_torch.checks import check_whole
from tensoropt_torch.errors import TensorOptError, close_match
from tensoropt_torch.tasks import Example

SIZES = "hf:"
_FILE = "config.json"
_BATCH = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True)
class BatchSize:
    """Rows of a global batch, and tokens of each."""

    rows: int
    tokens: int

    def __post_init__(self) -> None:
        check_whole("rows of a batch", self.rows, least=1)
        check_whole("tokens of a row", self.tokens, least=1)

    def __str__(self) -> str:
        return f"{self.rows}x{self.tokens}"


def parse_batch(text: str) -> BatchSize:
    """``8x8192``: 8 rows of 8,192 tokens.

    Raises:
        TensorOptError: it is something else.
    """
    found = _BATCH.fullmatch(text.strip())
    if found is None:
        raise TensorOptError(
            f"batch '{text}' is not known; give rows x tokens of the global batch, such as 8x8192"
        )
    return BatchSize(int(found[1]), int(found[2]))


def example_of_config(config: str | Path, batch: BatchSize) -> Example:
    """The language model of a config file, of a folder with ``config.json``, or of ``hf:`` with a
    model type and sizes, with a batch of token ids that are their own labels.

    Parameters are in the dtype that the config names, else float32.

    Raises:
        TensorOptError: ``transformers`` is not installed, or the config is no file, of no
            architecture that it knows, or of no language model.
    """
    transformers = _transformers(str(config))
    settings = (
        _of_sizes(transformers, str(config))
        if _has_sizes(config)
        else _of_file(transformers, Path(config))
    )
    settings.use_cache = False
    _check_length(settings, batch, str(config))
    model = _model(transformers, settings, str(config))
    with torch.device("meta"):
        ids = torch.zeros(batch.rows, batch.tokens, dtype=torch.long)
    return Example(model, (), {"input_ids": ids, "labels": ids})


def _has_sizes(config: str | Path) -> bool:
    return isinstance(config, str) and config.startswith(SIZES)


def _transformers(config: str) -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise TensorOptError(
            f"config '{config}' needs the package 'transformers', which cannot be imported "
            f"({error}); install it (pip install transformers), or give file.py:function"
        ) from error
    module: ModuleType = transformers
    return module


def _of_file(transformers: ModuleType, path: Path) -> Any:
    """The config of a file, or of the one in a folder."""
    file = path / _FILE if path.is_dir() else path
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TensorOptError(
            f"config '{path}' cannot be read: {error}; give a config.json, a folder with one, or "
            f"sizes such as {SIZES}llama,hidden_size=4096 (nothing is fetched)"
        ) from error
    except ValueError as error:
        raise TensorOptError(f"config '{path}' is no JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("model_type"), str):
        raise TensorOptError(
            f"config '{path}' has no 'model_type', which says what it is of; give a config.json "
            "of transformers"
        )
    sizes = {key: value for key, value in record.items() if key != "model_type"}
    return _made(transformers, record["model_type"], sizes, f"config '{path}'")


def _of_sizes(transformers: ModuleType, text: str) -> Any:
    """The config of ``hf:llama,hidden_size=4096``."""
    kind, *given = text.removeprefix(SIZES).split(",")
    sizes: dict[str, Any] = {}
    for part in given:
        name, equals, value = part.partition("=")
        if not equals:
            raise TensorOptError(
                f"'{text}': '{part}' has no '='; give {SIZES}TYPE,NAME=VALUE, such as "
                f"{SIZES}llama,hidden_size=4096,num_hidden_layers=32"
            )
        sizes[name.strip()] = _value(value)
    made = _made(transformers, kind, {}, f"'{text}'")
    unknown = [name for name in sizes if not hasattr(made, name)]
    if unknown:
        raise TensorOptError(
            f"'{text}': a config of '{kind}' has no '{unknown[0]}'; "
            f"{close_match(unknown[0], made.to_dict())}it has: " + ", ".join(sorted(made.to_dict()))
        )
    return _made(transformers, kind, sizes, f"'{text}'")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _made(transformers: ModuleType, kind: str, sizes: Mapping[str, Any], where: str) -> Any:
    known = transformers.CONFIG_MAPPING
    if kind not in known:
        raise TensorOptError(
            f"{where}: transformers {transformers.__version__} knows no model type '{kind}'; "
            f"{close_match(kind, known.keys())}install a version that knows it, or give "
            "file.py:function"
        )
    try:
        return known[kind].from_dict(dict(sizes))
    except Exception as error:  # of a config class, which may raise anything
        raise TensorOptError(
            f"{where}: transformers cannot make a config of '{kind}' of it: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_length(settings: Any, batch: BatchSize, config: str) -> None:
    """Raises TensorOptError for rows that learned positions do not reach."""
    most = getattr(settings, "n_positions", None) or getattr(
        settings, "max_position_embeddings", None
    )
    rotary = getattr(settings, "rope_theta", None) or getattr(settings, "rope_parameters", None)
    if isinstance(most, int) and not rotary and batch.tokens > most:
        raise TensorOptError(
            f"batch {batch}: '{config}' has positions for {most} tokens; give rows of at most so "
            "many"
        )


def _model(transformers: ModuleType, settings: Any, config: str) -> nn.Module:
    """On the meta device, in the dtype of the config."""
    kind = _class_of(transformers, settings, config)
    dtype = getattr(settings, "dtype", None) or torch.float32
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TensorOptError(
            f"config '{config}' has dtype '{settings.dtype}', which parameters cannot have; give "
            "float32, bfloat16 or float16"
        )
    try:
        with torch.device("meta"):
            model: nn.Module = kind(settings)
    except Exception as error:  # of a model class, which may raise anything
        raise TensorOptError(
            f"config '{config}': {kind.__name__} cannot be built of it: "
            f"{type(error).__name__}: {error}"
        ) from error
    if getattr(model, "loss_type", None) is None:
        model.__dict__["loss_type"] = "ForCausalLM"  # what it takes anyhow, but with a warning
    return model.to(dtype).train()


def _class_of(transformers: ModuleType, settings: Any, config: str) -> type[nn.Module]:
    """The class that the config names, if that is of a language model; of one that does not, the
    masked one of encoders, else the causal one."""
    causal = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    masked = transformers.MODEL_FOR_MASKED_LM_MAPPING
    mappings = (causal, masked) if getattr(settings, "is_decoder", False) else (masked, causal)
    kinds = [mapping[type(settings)] for mapping in mappings if type(settings) in mapping]
    named = getattr(settings, "architectures", None) or ()
    found: list[type[nn.Module]] = [kind for kind in kinds if kind.__name__ in named]
    if not kinds or (named and not found and not _is_base(named)):
        what = f"{', '.join(named)} of type" if named else "of type"
        raise TensorOptError(
            f"config '{config}' is no causal or masked language model: {what} "
            f"'{settings.model_type}'; give file.py:function, which may return any model"
        )
    chosen: type[nn.Module] = (found or kinds)[0]
    return chosen


def _is_base(named: Any) -> bool:
    """Whether the config is of a model without a head, such as ``LlamaModel``."""
    return all(name.endswith("Model") for name in named)
