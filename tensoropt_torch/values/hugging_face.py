"""What Hugging Face's models say of themselves: how tensors of a checkpoint become those
of the model, and how modules are initialised. Does nothing for other models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tensoropt_torch.values.checkpoints import Saved
from tensoropt_torch.values.parts import SavedTensor

Initialiser = Callable[[nn.Module], None]


def is_pretrained(module: nn.Module) -> bool:
    """Whether it is a ``PreTrainedModel``, without importing transformers."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def under_names_of(model: nn.Module, saved: Saved) -> Saved:
    """The tensors under the names that they have in the model, as ``from_pretrained``
    renames and converts them: with or without the prefix of the base model, names of
    earlier versions, experts that are saved one by one.

    What is converted is read whole, one tensor of the model at a time.
    """
    return _Renamed(model, saved) if is_pretrained(model) else saved


def initialiser_of(model: nn.Module, otherwise: Initialiser) -> Initialiser:
    """What sets the tensors of one module of the model: the ``_init_weights`` of the
    innermost ``PreTrainedModel`` that it belongs to, or ``otherwise``."""
    owners: dict[nn.Module, Any] = {}
    for outer in model.modules():
        if is_pretrained(outer):
            owners |= dict.fromkeys(outer.modules(), outer)

    def initialise(module: nn.Module) -> None:
        if module in owners:
            owners[module]._init_weights(module)
        else:
            otherwise(module)

    return initialise


@dataclass
class _Conversion:
    """The tensors of a checkpoint that one converter makes tensors of the model from."""

    target: str  # the first of them
    converter: Any
    sources: list[tuple[str, str]] = field(default_factory=list)  # name, pattern that it matches

    def names(self) -> Iterator[str]:
        first, *others = self.converter.target_patterns
        yield self.target
        for other in others:
            yield self.target.replace(first, other)


class _Renamed(Mapping[str, SavedTensor]):
    """The tensors of ``saved`` under other names; some are made when they are asked for."""

    def __init__(self, model: Any, saved: Saved) -> None:
        self._model, self._saved = model, saved
        self._plain: dict[str, str] = {}  # names in the model -> in the checkpoint
        self._converted: dict[str, _Conversion] = {}
        self._match()

    def __getitem__(self, name: str) -> SavedTensor:
        if name in self._plain:
            return self._saved[self._plain[name]]
        return self._convert(self._converted[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._plain, **self._converted})

    def __len__(self) -> int:
        return len({**self._plain, **self._converted})

    def _match(self) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )

        transforms = get_model_conversion_mapping(self._model)
        renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
        converters = [t for t in transforms if isinstance(t, WeightConverter)]
        by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
        prefix, own = self._model.base_model_prefix, self._model.state_dict()
        for source in sorted(self._saved, key=dot_natural_key):
            name, pattern = rename_source_key(source, renamings, converters, prefix, own)
            if name not in own and source in own:
                name, pattern = rename_source_key(source, [], [], prefix, own)
            if pattern is None:
                self._plain[name] = source
            else:
                self._add(name, source, pattern, by_pattern[pattern])

    def _add(self, target: str, source: str, pattern: str, converter: Any) -> None:
        conversion = self._converted.get(target)
        if conversion is None:
            conversion = _Conversion(target, converter)
            self._converted |= dict.fromkeys(conversion.names(), conversion)
        conversion.sources.append((source, pattern))

    def _convert(self, conversion: _Conversion) -> dict[str, torch.Tensor]:
        converter = deepcopy(conversion.converter)
        for source, pattern in conversion.sources:
            saved = self._saved[source]
            whole = saved[tuple(slice(0, size) for size in saved.shape)]
            converter.add_tensor(conversion.target, source, pattern, whole)
        made = converter.convert(conversion.target, model=self._model, config=self._model.config)
        return {name: t[0] if isinstance(t, list) else t for name, t in made.items()}
