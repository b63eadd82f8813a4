"""What a rank has of a model, whatever runs on it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from weakref import WeakKeyDictionary

import torch
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.state_hooks import STATE_HOOKS
from tensoropt_torch.parameters.writes import know_parameters
from tensoropt_torch.values.state_dicts import load_by_parts

_LENT = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", *STATE_HOOKS)


class ModuleStorage:
    """The stand-ins of the modules of a model, with the parameters, buffers and states that this
    rank has, until they end. It knows no plan and no graph.

    Args:
        root: what stands for the model.

    Attributes:
        steps: how many steps optimizers of its parameters have made, as on all ranks.
        optimizers: those that have made steps, as long as they are there, in the order in which
            they made the first.
    """

    def __init__(self, root: nn.Module) -> None:
        load_by_parts(root)
        know_parameters()
        self._root = root
        self._end: str | None = None
        self.steps = 0
        self.optimizers: MutableMapping[torch.optim.Optimizer, None] = WeakKeyDictionary()

    @property
    def root(self) -> nn.Module:
        """What stands for the model.

        Raises:
            TensorOptError: it has ended.
        """
        if self._end is not None:
            raise TensorOptError(self._end)
        return self._root

    @property
    def is_used(self) -> bool:
        """Whether it has not ended."""
        return self._end is None

    def end(self, reason: str) -> None:
        """Ends its use: from here on that raises TensorOptError, with the reason."""
        self._end = reason

    def lend_to(self, module: nn.Module) -> None:
        """The module has the same parameters, buffers, submodules and hooks of state dicts."""
        vars(module).update({name: vars(self._root)[name] for name in _LENT})
        module.training = self._root.training

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As a module has them, whatever the class of the model does."""
        return nn.Module.named_parameters(self.root)

    def parameters(self) -> Iterator[nn.Parameter]:
        """As ``named_parameters``."""
        return (parameter for _, parameter in self.named_parameters())
