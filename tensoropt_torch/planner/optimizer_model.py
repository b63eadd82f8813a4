"""What optimizers keep for the parameters that they train, as far as memory and the
time of updates depend on it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import StateDType

# Tensors of a parameter's size that optimizers of torch.optim keep for it.
OPTIMIZER_STATES: Mapping[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
}

# Bytes of an element; those of parameters that may be trained.
_ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True)
class OptimizerModel:
    """An optimizer whose states have a dtype of their own.

    Attributes:
        name: ``sgd``, ``momentum``, ``adagrad``, ``rmsprop``, ``adam`` or ``adamw``: the
            number of states that each parameter has.
        state_dtype: of the states: ``"float32"``, ``"bfloat16"``, ... None: that of the
            parameter, as all optimizers of ``torch.optim`` have them.
        master_weights: parameters of another dtype have a copy in ``state_dtype`` that is
            updated in their place, as in mixed-precision training.
    """

    name: str = "adamw"
    state_dtype: StateDType | None = None
    master_weights: bool = False

    @staticmethod
    def of(optimizer: str | OptimizerModel) -> OptimizerModel:
        """The model of an optimizer that is given by its name, or as it is.

        Raises:
            TensorOptError: the name or the dtype is not known, or master weights have no
                dtype.
        """
        model = OptimizerModel(optimizer) if isinstance(optimizer, str) else optimizer
        if not isinstance(model, OptimizerModel) or model.name not in OPTIMIZER_STATES:
            name = model.name if isinstance(model, OptimizerModel) else model
            raise TensorOptError(
                f"optimizer '{name}' is not known; {_nearest(str(name))}choose the one with the "
                "same number of state tensors per parameter, by its name or as an "
                f"OptimizerModel: {', '.join(OPTIMIZER_STATES)}"
            )
        if model.state_dtype is not None and model.state_dtype not in get_args(StateDType):
            raise TensorOptError(
                f"state_dtype '{model.state_dtype}' is not one of "
                f"{', '.join(get_args(StateDType))}, or None for that of the parameter"
            )
        if model.master_weights and model.state_dtype is None:
            raise TensorOptError(
                "master_weights are copies in state_dtype, which is None; give "
                "state_dtype='float32'"
            )
        return model

    def state_bytes(self) -> dict[str, float]:
        """Bytes of state for each element of a parameter, by the parameter's dtype."""
        return {dtype: self._state_bytes(dtype) for dtype in _ITEM_BYTES}

    def _state_bytes(self, parameter: str) -> float:
        dtype = self.state_dtype or parameter
        if parameter.startswith("complex"):  # its states are complex as well
            dtype = {"float32": "complex64", "float64": "complex128"}.get(dtype, dtype)
        copies = int(self.master_weights and dtype != parameter)
        return float(_ITEM_BYTES[dtype] * (OPTIMIZER_STATES[self.name] + copies))

    def __str__(self) -> str:
        text = self.name
        if self.state_dtype is not None:
            text += f" with {self.state_dtype} states"
        return f"{text} and master weights" if self.master_weights else text


def _nearest(name: str) -> str:
    matches = difflib.get_close_matches(name, list(OPTIMIZER_STATES), n=1)
    return f"did you mean '{matches[0]}'? " if matches else ""
