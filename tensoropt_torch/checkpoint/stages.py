"""The state of a model in stages, put together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.module.staged import StagedModule, groups_of
from tensoropt_torch.runtime.agreement import gather


def state_of_stages(parallel: StagedModule) -> dict[str, Any]:
    """``full_state_dict`` of a module in stages: every stage puts its tensors together, and its
    first rank sends them to rank 0, one by one. Names are in the order of the stages."""
    groups = groups_of(parallel)
    own = parallel.state_dict(keep_vars=True)
    keeps = groups.rank == 0
    tables = gather([(n, v.dtype, tuple(v.shape)) for n, v in own.items() if _is_tensor(v)])
    others = gather({n: v for n, v in own.items() if not _is_tensor(v)})
    device = torch.device(groups.mesh.device_type)
    state: dict[str, Any] = {}
    sent: set[str] = set()  # by the first stage that has it, as all ranks know
    for stage in range(groups.stages):
        sender = groups.global_rank(stage, 0)
        for name, dtype, shape in tables[sender]:
            mine = whole_tensor(own[name], keeps) if groups.stage == stage else None
            is_known = name in sent
            sent.add(name)
            if not is_known and (is_first() or dist.get_rank() == sender):
                state[name] = _moved(mine, sender, dtype, shape, device)
        state |= {n: v for n, v in others[sender].items() if n not in state}
    return state if is_first() else {}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _moved(
    tensor: torch.Tensor | None,
    sender: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
) -> torch.Tensor | None:
    """The tensor on rank 0, in the memory of the CPU."""
    if sender == 0:
        return tensor
    if dist.get_rank() == sender:
        assert tensor is not None
        dist.send(tensor.to(device).contiguous(), 0)
        return None
    received = torch.empty(shape, dtype=dtype, device=device)
    dist.recv(received, sender)
    return received.cpu()
