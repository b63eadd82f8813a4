"""Symbolic tensors of a graph under construction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import fx

from tensoropt_torch.tf_style.initializers import Initializer


class Calls(Protocol):
    """The graph of a tensor, as far as tensors know it: calls are added to it."""

    train_op: Any  # what trains, once there is an optimizer

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The tensor, or tuple of tensors, that a PyTorch function returns."""

    def elementwise(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """What a function of equal shapes returns."""

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        """``x + y``."""

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of the last two dims."""


class Tensor:
    """A value of the graph; its shape is that of the whole tensor.

    ``stored`` is the node that computes it. Images ``[batch, height, width, channels]``
    may be stored with their channels first, as PyTorch's kernels take them.
    """

    def __init__(self, graph: Calls, stored: fx.Node, channels_first: bool = False) -> None:
        self.graph = graph
        self.stored = stored
        self.channels_first = channels_first

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        shape = tuple(self._meta.shape)
        if self.channels_first:
            return (shape[0], *shape[2:], shape[1])
        return shape

    @property
    def dtype(self) -> torch.dtype:
        return self._meta.dtype

    @property
    def _meta(self) -> torch.Tensor:
        value = self.stored.meta["val"]
        assert isinstance(value, torch.Tensor)
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} '{self.name}' {list(self.shape)} {self.dtype}>"

    def __add__(self, other: Tensor | float) -> Tensor:
        return self.graph.add(self, other)

    def __radd__(self, other: float) -> Tensor:
        return self.graph.add(self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self.graph.elementwise(torch.sub, self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self.graph.elementwise(torch.rsub, self, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self.graph.elementwise(torch.mul, self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self.graph.elementwise(torch.mul, self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self.graph.elementwise(torch.div, self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self.graph.elementwise(torch.mul, self.graph.call(torch.reciprocal, self), other)

    def __neg__(self) -> Tensor:
        return self.graph.elementwise(torch.neg, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.matmul(self, other)


class Placeholder(Tensor):
    """A value that ``run`` is fed with."""


class Variable(Tensor):
    """A parameter with the shape that the user gave it."""

    def __init__(
        self,
        graph: Calls,
        stored: fx.Node,
        name: str,
        initializer: Initializer,
    ) -> None:
        super().__init__(graph, stored)
        self._name = name
        self.initializer = initializer

    @property
    def name(self) -> str:
        return self._name
