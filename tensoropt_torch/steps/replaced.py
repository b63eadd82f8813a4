"""What is done instead of an optimizer's own step on split parameters, between hooks of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import torch


class ReplacedParameters(ABC):
    """While an optimizer makes a step, its groups have other parameters than between steps.

    It is an attribute of its optimizer, and lives as long. Optimizers neither copy nor pickle
    attributes and hooks, so that a copy makes its steps as any optimizer.
    """

    _ATTRIBUTE = "_tensoropt_replaced_parameters"

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._given: list[list[Any]] = []  # parameters of the groups, during steps
        self._before = optimizer.register_step_pre_hook(self._before_step)
        self._after = optimizer.register_step_post_hook(
            lambda optimizer, *_: self._leave(optimizer)
        )

    @classmethod
    def attach(cls, optimizer: torch.optim.Optimizer) -> None:
        """From now on, if it was not before."""
        if type(cls._of(optimizer)) is not cls:
            setattr(optimizer, cls._ATTRIBUTE, cls(optimizer))

    @classmethod
    def keep_innermost(cls, optimizer: torch.optim.Optimizer) -> None:
        """Other hooks of a step that is about to be made come before and after."""
        own = cls._of(optimizer)
        if own is not None:
            before: Any = optimizer._optimizer_step_pre_hooks  # ordered
            after: Any = optimizer._optimizer_step_post_hooks
            before.move_to_end(own._before.id)
            after.move_to_end(own._after.id, last=False)

    @classmethod
    def _of(cls, optimizer: torch.optim.Optimizer) -> Self | None:
        found: Self | None = vars(optimizer).get(cls._ATTRIBUTE)
        return found

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of ``step``; the first is the optimizer."""
        own, *given = args
        closure = kwargs.get("closure", given[0] if given else None)
        if closure is None:
            self._enter(optimizer)
            return args, kwargs

        def with_parameters_given() -> Any:
            self._leave(optimizer)
            result = closure()
            self._enter(optimizer)
            return result

        return (own, with_parameters_given), {}

    def _enter(self, optimizer: torch.optim.Optimizer) -> None:
        self._leave(optimizer)  # of a step that failed
        self._given = [group["params"] for group in optimizer.param_groups]
        self._replace(optimizer)

    def _leave(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._given:
            return
        for group, given in zip(optimizer.param_groups, self._given, strict=False):
            group["params"] = given
        self._given = []
        self._put_back(optimizer)

    @classmethod
    def forget_parts(cls, optimizer: torch.optim.Optimizer) -> None:
        """Parameters have other parts than at the last step, whose memory is let go."""
        own = cls._of(optimizer)
        if own is not None:
            own._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Lets go of parts, if it has some."""

    @abstractmethod
    def _replace(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives the groups other parameters."""

    @abstractmethod
    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        """After the groups have theirs again."""
