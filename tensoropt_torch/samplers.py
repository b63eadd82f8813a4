"""Which samples a rank's data loader gives."""

from __future__ import annotations

from typing import TypedDict

import torch.distributed as dist

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.plan import Plan, StagedPlan


class SamplerArguments(TypedDict):
    """Keywords of ``torch.utils.data.DistributedSampler`` and its like."""

    num_replicas: int
    rank: int


def sampler_arguments(parallel: ParallelModule | Plan | StagedPlan) -> SamplerArguments:
    """``num_replicas`` and ``rank`` of a sampler that gives this rank what the plan expects.

    With ``inputs="sharded"`` these are its own samples, with ``"replicated"`` all of them::

        share = tensoropt_torch.sampler_arguments(parallel)
        sampler = DistributedSampler(data, shuffle=True, seed=0, **share)
        loader = DataLoader(data, global_batch // share["num_replicas"], sampler=sampler)

    Raises:
        TensorOptError: something else than a parallel module or a plan is given.
    """
    plan: object = parallel.plan if isinstance(parallel, ParallelModule) else parallel
    if not isinstance(plan, Plan | StagedPlan):
        raise TensorOptError(
            f"sampler_arguments takes a parallel module or a plan, not a {type(plan).__name__}"
        )
    if plan.inputs == "replicated":
        return {"num_replicas": 1, "rank": 0}
    return {"num_replicas": plan.num_devices, "rank": dist.get_rank()}
