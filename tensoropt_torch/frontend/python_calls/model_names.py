"""Which modules and tensors are those of a model, by name."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Self
from weakref import ref

import torch
from torch import nn

_OTHERS = (nn.Module, torch.Tensor, type, FunctionType)
_NAMES = "_names_of_model"  # attribute of a copy


class ModelNames:
    """Names of a model's modules, parameters and buffers, and of those of which it is a copy."""

    def __init__(self) -> None:
        self._modules: dict[int, tuple[ref[nn.Module], str]] = {}
        self._tensors: dict[int, tuple[ref[torch.Tensor], str]] = {}

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Of the model, and of the one that it is a copy of."""
        names = cls()
        original = vars(model).get(_NAMES)
        if isinstance(original, ModelNames):
            names._modules |= original._modules
            names._tensors |= original._tensors
        for path, module in model.named_modules():
            names._modules[id(module)] = ref(module), path
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            names._tensors[id(tensor)] = ref(tensor), name
        return names

    def module(self, value: Any) -> str | None:
        """The path of a module; None: it is none of the model."""
        found, path = self._modules.get(id(value), (None, ""))
        return path if found is not None and found() is value else None

    def tensor(self, value: Any) -> str | None:
        """The name of a parameter or buffer; None: it is none of the model."""
        found, name = self._tensors.get(id(value), (None, ""))
        return name if found is not None and found() is value else None

    def attribute(self, value: Any) -> tuple[str, str] | None:
        """The path of a module that has an object in an attribute, and its name; None: it is no
        object that holds values, or nowhere."""
        if type(getattr(value, "__dict__", None)) is not dict or isinstance(value, _OTHERS):
            return None
        for reference, path in self._modules.values():
            for name, own in vars(reference() or object).items():
                if own is value:
                    return path, name
        return None

    def knows(self, value: Any) -> bool:
        """Whether it is of the model."""
        return self.module(value) is not None or self.tensor(value) is not None


def name_copy(copy: nn.Module, model: nn.Module) -> None:
    """``copy`` has the modules and tensors of ``model``, under the same names."""
    if copy is not model:
        vars(copy)[_NAMES] = ModelNames.of(model)
