"""What loops that were written for data parallelism expect of a model.

Such a loop gives each rank its share of the global batch, and takes for the loss the mean of
what the ranks compute. A parallel module that was planned with ``inputs="sharded"`` fits: of
what it returns, tensors with rows are the rank's share, and others those of the global batch on
every rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.input_names import input_names
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.runtime.agreement import agree_or_raise

T = TypeVar("T")


@dataclass(frozen=True)
class CallArguments:
    """The arguments of one call of a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def leaves(self) -> list[Any]:
        """All arguments without their containers."""
        return pytree.tree_leaves((self.args, self.kwargs))

    def names(self, module: nn.Module) -> list[str]:
        """What the leaves are called."""
        return input_names(module, self.args, None, self.args, self.kwargs)

    def of_all_ranks(self, dims: Sequence[int | None]) -> CallArguments:
        """The same for the global batch: zeros, as many as all ranks have in the dims of the
        leaves that have rows. Collective.

        Raises:
            TensorOptError: on every rank; the shapes differ between ranks.
        """
        shapes = [tuple(leaf.shape) for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        agree_or_raise(
            "shape of the first batch",
            str(shapes),
            "give all ranks batches of the same shapes: pad to a fixed length",
        )
        ranks = dist.get_world_size()

        def whole(leaf: Any, dim: int | None) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if dim is None or dim >= leaf.dim():
                return leaf
            shape = [*leaf.shape]
            shape[dim] *= ranks
            return leaf.new_zeros(shape)

        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        wholes = [whole(*item) for item in zip(leaves, dims, strict=True)]
        args, kwargs = pytree.tree_unflatten(wholes, spec)
        return CallArguments(args, kwargs)


class _CalledError(Exception):
    def __init__(self, call: CallArguments) -> None:
        super().__init__()
        self.call = call


def first_call(module: nn.Module, run: Callable[[], object]) -> CallArguments:
    """How ``run()`` calls ``module`` first. It is stopped there: nothing is computed.

    Raises:
        TensorOptError: it does not call the module.
    """

    def forward(*args: Any, **kwargs: Any) -> None:
        raise _CalledError(CallArguments(args, kwargs))

    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        run()
    except _CalledError as called:
        return called.call
    finally:
        del module.forward
        if before is not None:
            module.forward = before
    raise TensorOptError(
        f"the step does not call {type(module).__name__}; name the module that it calls"
    )


def first_of(batches: Iterable[T]) -> T:
    """The first batch. Random numbers that drawing it takes are drawn again later.

    Raises:
        TensorOptError: there is none.
    """
    with kept_random_states():
        for batch in batches:
            return batch
    raise TensorOptError("there is no batch to plan for; give a data set that has some")


def average_gradients_of_shares(parallel: ParallelModule) -> None:
    """From now on what a rank computes of its share counts as one of the ranks' losses, whose
    mean is trained on, as under data parallelism. A loss that the module itself returns is that
    of the global batch, alike on all ranks, and counts once."""
    parallel.averages_losses = True


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Afterwards the generators of Python, NumPy and PyTorch are as before."""
    states = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
