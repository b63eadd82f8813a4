"""The optimizers that planning knows, as a step makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from tensoropt_torch.planner.optimizer_model import OptimizerModel

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# What is alive does not depend on the figures.
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, **options: torch.optim.SGD(p, momentum=0.9, **options),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make_optimizer(
    optimizer: str | OptimizerModel, parameters: Iterable[nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """The optimizer of these parameters; ``options`` are those of ``torch.optim``.

    Raises:
        TensorOptError: the optimizer is not known.
    """
    model = OptimizerModel.of(optimizer)
    make = OPTIMIZERS[model.name]
    if model.state_dtype is None:
        return make(parameters, **options)
    return _CastOptimizer(parameters, model, lambda p: make(p, **options))


class _CastOptimizer(torch.optim.Optimizer):
    """Updates parameters in the dtype of the states: parameter after parameter becomes a
    copy of that dtype, which stays where there are master weights."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], model: OptimizerModel, make: MakeOptimizer
    ) -> None:
        super().__init__(parameters, {})
        self._dtype: torch.dtype = getattr(torch, str(model.state_dtype))
        self._keeps_copies = model.master_weights
        self._make = make
        self._inner: dict[nn.Parameter, tuple[nn.Parameter, torch.optim.Optimizer]] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of each parameter that has a gradient; without a closure."""
        assert closure is None
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad)

    def _update(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        dtype = self._dtype.to_complex() if parameter.is_complex() else self._dtype
        if parameter not in self._inner:
            copy = nn.Parameter(parameter.detach().to(dtype))
            self._inner[parameter] = copy, self._make([copy])
        copy, inner = self._inner[parameter]
        if not self._keeps_copies:
            copy.data = parameter.detach().to(dtype)
        copy.grad = gradient.to(dtype)
        inner.step()
        copy.grad = None
        self.state[parameter] = dict(inner.state[copy])
        if dtype == parameter.dtype:  # then it is no copy
            return
        parameter.copy_(copy)
        if self._keeps_copies:
            self.state[parameter]["master"] = copy
        else:
            copy.data = copy.data.new_empty(0)
