"""What is written of the parameters of a parallel module.

PyTorch pickles what a rank has of a ``DTensor``: a file of ``torch.save(parallel.state_dict())``
has the parts of one rank, as if it had all, and no program but this job, with this plan, can read
it. ``know_pickles`` has that refused for tensors on the mesh of the job.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.stage_groups import is_mesh_of_module


@functools.cache
def know_pickles() -> None:
    """From now on, in this process."""
    tensors: Any = DTensor
    inherited: Any = DTensor.__reduce_ex__

    @functools.wraps(inherited)
    def reduce_ex(self: DTensor, protocol: Any) -> Any:
        if is_mesh_of_module(self.device_mesh):
            raise TensorOptError(
                f"a tensor {tuple(self.shape)} of a parallel module was given to torch.save, "
                "pickle or copy.copy, which see this rank's part of it only. Whole ones, on every "
                "rank: tensoropt_torch.save(state, path) writes a file as torch.save does in one "
                "process, full_state_dict(parallel) gives a state dict for it, p.full_tensor() "
                "one tensor; torch.distributed.checkpoint writes parts"
            )
        return inherited(self, protocol)

    tensors.__reduce_ex__ = reduce_ex
