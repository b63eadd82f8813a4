"""Training loops that add up gradients, for a module on several ranks as for one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import nn
from torch.distributed.tensor import DTensor

Batch = tuple[torch.Tensor, ...]


@dataclass
class Run:
    """A model, on one process or on several.

    Attributes:
        loss_of: the loss of a batch.
        no_sync: keeps gradients of forwards inside as they are.
        figures: what a loop computes besides.
    """

    module: nn.Module
    loss_of: Callable[[Batch], torch.Tensor]
    batch: Batch
    no_sync: Callable[[], AbstractContextManager[None]] = nullcontext
    figures: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = count()
        # SGD does not divide by gradients that are zero but for rounding.
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05, momentum=0.9)

    def loss(self) -> torch.Tensor:
        """Of the next micro-batch."""
        first, *others = self.batch
        return self.loss_of((first.roll(next(self._numbers), 0), *others))

    def kept_loss(self) -> torch.Tensor:
        with self.no_sync():
            return self.loss()

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)


def accumulated(run: Run) -> None:
    for _ in range(3):
        run.loss().backward()
    run.step()


def kept(run: Run) -> None:
    for _ in range(2):
        for _ in range(2):
            run.kept_loss().backward()
        run.loss().backward()
        run.step()
        run.zero_grad()


def kept_and_set_to_zero(run: Run) -> None:
    for _ in range(2):
        run.kept_loss().backward()
        run.loss().backward()
        run.step()
        run.zero_grad(set_to_none=False)
    run.kept_loss().backward()


def reduced_before(run: Run) -> None:
    """``.grad`` is there when gradients are kept."""
    run.loss().backward()
    run.kept_loss().backward()
    run.kept_loss().backward()
    run.loss().backward()


def dropped(run: Run) -> None:
    """As after a gradient that is no number: what was kept is not wanted."""
    run.kept_loss().backward()
    run.zero_grad(set_to_none=True)
    run.loss().backward()
    run.zero_grad()
    run.kept_loss().backward()
    run.zero_grad(set_to_none=True)
    run.kept_loss().backward()
    run.loss().backward()


def dropped_by_zeros(run: Run) -> None:
    run.kept_loss().backward()
    run.zero_grad(set_to_none=False)
    run.kept_loss().backward()
    run.loss().backward()


def dropped_by_zeros_at_once(run: Run) -> None:
    run.optimizer = torch.optim.SGD(run.module.parameters(), lr=0.05, foreach=True)
    dropped_by_zeros(run)


def scaled(run: Run) -> None:
    run.kept_loss().backward()
    for parameter in run.module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)
    run.loss().backward()


def clipped_and_never_reduced(run: Run) -> None:
    run.kept_loss().backward()
    run.kept_loss().backward()
    nn.utils.clip_grad_norm_(run.module.parameters(), 0.1)
    run.step()


def one_backward_of_both(run: Run) -> None:
    (run.kept_loss() + run.loss()).backward()
    (run.loss() + run.kept_loss()).backward()


def forward_before_others_are_kept(run: Run) -> None:
    early = run.loss()
    run.kept_loss().backward()
    early.backward()


def twice_through_one_graph(run: Run) -> None:
    loss = run.kept_loss()
    loss.backward(retain_graph=True)
    loss.backward()
    loss = run.loss()
    loss.backward(retain_graph=True)
    loss.backward()


def forward_without_backward(run: Run) -> None:
    """Also without gradients, between passes that count."""
    run.kept_loss().backward()
    run.loss()
    with torch.no_grad():
        run.loss()
        run.kept_loss()
    run.kept_loss()
    run.loss().backward()


def asked_for(run: Run) -> None:
    """``torch.autograd.grad`` gives the gradient of its loss alone, and keeps nothing."""
    parameters = list(run.module.parameters())
    run.kept_loss().backward()
    for loss_of_next in (run.kept_loss, run.loss):
        gradients = torch.autograd.grad(loss_of_next(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.01 * gradient
    run.loss().backward(inputs=parameters)


def seen_by_hooks(run: Run) -> None:
    parameters = list(run.module.parameters())[::2]
    handles = [p.register_hook(lambda gradient: 2 * gradient) for p in parameters]
    run.kept_loss().backward()
    run.loss().backward()
    for handle in handles:
        handle.remove()


def with_a_penalty(run: Run) -> None:
    """Gradients that come to parameters from elsewhere as well."""

    def penalty() -> torch.Tensor:
        terms = [p.square().sum() for p in run.module.parameters()]
        return torch.stack([t.full_tensor() if isinstance(t, DTensor) else t for t in terms]).sum()

    (run.kept_loss() + 0.1 * penalty()).backward()
    (run.kept_loss() + 0.1 * penalty()).backward()
    (run.loss() + 0.1 * penalty()).backward()


def some_frozen(run: Run) -> None:
    """Frozen for some passes, in the middle of a sum."""
    parameters = list(run.module.parameters())[::2]
    run.kept_loss().backward()
    for parameter in parameters:
        parameter.requires_grad_(False)
    run.kept_loss().backward()
    run.loss().backward()
    for parameter in parameters:
        parameter.requires_grad_(True)


LOOPS = (
    accumulated,
    kept,
    kept_and_set_to_zero,
    reduced_before,
    dropped,
    dropped_by_zeros,
    dropped_by_zeros_at_once,
    scaled,
    clipped_and_never_reduced,
    one_backward_of_both,
    forward_before_others_are_kept,
    twice_through_one_graph,
    forward_without_backward,
    asked_for,
    seen_by_hooks,
    with_a_penalty,
    some_frozen,
)
