"""States of random generators in checkpoints: a run that goes on draws what it would have
drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule, programs_of
from tensoropt_torch.runtime.agreement import gather, is_distributed
from tensoropt_torch.runtime.lost_ranks import doing

_States = dict[str, torch.Tensor]  # of the default generators of one rank, by kind of device


class RandomState:
    """The random generators of a job, for ``torch.distributed.checkpoint``.

    ::

        dcp.save({"random": RandomState(parallel), ...}, checkpoint_id=folder)
        dcp.load({"random": RandomState(parallel), ...}, checkpoint_id=folder)

    Holds the stream from which ``parallel`` draws the seeds of its steps (dropout), which is
    the same on all ranks, and the default generators of each rank, of the CPU and of
    its GPU. With another number of ranks the stream of the module goes on; ranks that
    the checkpoint has go on with their own generators, and further ones with
    those of rank 0 if they were the same on all ranks, else as they are.
    """

    def __init__(self, parallel: ParallelModule) -> None:
        self._parallel = parallel

    @doing("RandomState.state_dict")
    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks, the same on each. Collective.

        Tuples are one value to a checkpoint, so that it may be loaded on another number
        of ranks.
        """
        seeds = programs_of(self._parallel).seeds
        state = None if seeds is None else seeds.get_state()
        return {"module": (state,), "ranks": tuple(gather(_own_states()))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Not collective.

        Raises:
            TensorOptError: the states are not those of ``state_dict()``.
        """
        try:
            (state,), ranks = state_dict["module"], state_dict["ranks"]
        except (KeyError, TypeError, ValueError) as error:
            raise TensorOptError(
                f"these are no random states ({error!r}); give what RandomState.state_dict() or "
                "torch.distributed.checkpoint.load has given"
            ) from error
        seeds = programs_of(self._parallel).seeds
        if seeds is not None and state is not None:
            seeds.set_state(state)
        rank = dist.get_rank() if is_distributed() else 0
        if rank < len(ranks):
            _set_own(ranks[rank])
        elif all(_equal(states, ranks[0]) for states in ranks):
            _set_own(ranks[0])


def _own_states() -> _States:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_own(states: _States) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _equal(a: _States, b: _States) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[kind], b[kind]) for kind in a)
