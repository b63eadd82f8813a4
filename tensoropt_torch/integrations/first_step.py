"""How the first step calls the module, for the batch of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.integrations.plan_source import PlanSource
from tensoropt_torch.integrations.row_dims import (
    MORE,
    Dims,
    batch_with_more,
    first_batch,
    modes_of,
    rows_of_trials,
)
from tensoropt_torch.integrations.shares import CallArguments, first_call, kept_random_states
from tensoropt_torch.runtime.agreement import agree_or_raise, on_all_ranks
from tensoropt_torch.tasks.options import Inputs, input_modes

Step = Callable[[Any], object]


def call_of_all_ranks(
    module: nn.Module, step: Step, drawn: Any, source: PlanSource
) -> tuple[CallArguments, Inputs]:
    """How the step calls the module with the first batch, times the number of ranks, and which
    inputs have the rows where. Collective.

    Args:
        step: of a batch as the loader gives it.
        drawn: the first batch, with the samples that it is made of where the loader tells them.

    Raises:
        TensorOptError: on every rank; the step does not call the module, or it cannot be seen
            where inputs have their rows.
    """
    call = on_all_ranks(lambda: first_call(module, lambda: step(first_batch(drawn))))
    names = call.names(module)
    given = on_all_ranks(lambda: _given(source, names, call))
    if given is None:
        dims = on_all_ranks(lambda: _found(module, step, drawn, call))
        agree_or_raise(
            "dims of inputs that have the rows of the batch",
            str(dims),
            "name them: inputs={'x': 0, 'hidden': 1, 'table': 'replicated'}",
        )
    else:
        dims = given
    whole = call.of_all_ranks([dims.get(name) for name in names])
    return whole, _inputs_of(dims)


def _given(source: PlanSource, names: list[str], call: CallArguments) -> Dims | None:
    """What the plan or the user says; None: nothing."""
    tensors = [
        name for name, leaf in zip(names, call.leaves, strict=True) if hasattr(leaf, "shape")
    ]
    plan = source.given_plan
    if plan is not None:
        return {name: plan.shares.rows_dim(name) for name in tensors}
    named = source.given_inputs
    if named is None:
        return dict.fromkeys(tensors, 0) if dist.get_world_size() == 1 else None
    mode, whole, others = input_modes(named, tensors)
    if mode == "replicated":
        raise TensorOptError(
            "inputs= says that every rank gets all inputs whole, but this loop gives each its own "
            "share of the batch; name the dim of an input that has the rows: inputs={'x': 0}"
        )
    return {name: None if name in whole else dict(others).get(name, 0) for name in tensors}


def _found(module: nn.Module, step: Step, drawn: Any, call: CallArguments) -> Dims:
    names, trials, counts = call.names(module), [], []
    for more in MORE:
        with kept_random_states():
            batch, count = batch_with_more(drawn, more)
            trials.append(_tried(module, step, batch, more).leaves)
        counts.append(count)
    return rows_of_trials(names, trials, counts)


def _tried(module: nn.Module, step: Step, batch: Any, more: int) -> CallArguments:
    try:
        return first_call(module, lambda: step(batch))
    except Exception as error:
        raise TensorOptError(
            f"the step cannot be run with {more} samples more than the first batch has ("
            f"{type(error).__name__}: {error}), by which it is seen where inputs have the rows of "
            "the batch; name them: inputs={'x': 0, 'hidden': 1, 'table': 'replicated'}"
        ) from error


def _inputs_of(dims: Dims) -> Inputs:
    return "sharded" if all(dim == 0 for dim in dims.values()) else modes_of(dims)
