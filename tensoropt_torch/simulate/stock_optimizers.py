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


# What the memory of an update depends on: of the parameter and of its gradient.
_Kind = tuple[torch.Size, torch.dtype, tuple[int, ...], torch.dtype, tuple[int, ...]]


def _kind_of(parameter: torch.Tensor, gradient: torch.Tensor) -> _Kind:
    strides = parameter.stride(), gradient.stride()
    return parameter.shape, parameter.dtype, strides[0], gradient.dtype, strides[1]


def _memory_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Another state of equal sizes."""
    return {
        name: torch.empty_like(value) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


class _CastOptimizer(torch.optim.Optimizer):
    """Updates parameters in the dtype of the states: parameter after parameter becomes a
    copy of that dtype, which stays where there are master weights. Of those that are alike one is
    updated in a step: what the others need is alive after it, and meanwhile no more than then."""

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
        updated: dict[_Kind, nn.Parameter] = {}
        parameters = (p for group in self.param_groups for p in group["params"])
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is None:
                    continue
                alike = updated.setdefault(_kind_of(parameter, parameter.grad), parameter)
                if alike is parameter:
                    self._update(parameter, parameter.grad)
                elif not self.state[parameter]:
                    self.state[parameter] = _memory_of(self.state[alike])

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
