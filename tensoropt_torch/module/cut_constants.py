"""Large buffers, and constants that capture computed, of which each rank keeps a part."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.device_mesh import DeviceMesh

from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.values.parts import take_part
from tensoropt_torch.values.placements import dtensor_of


def cut_constants(
    part: RankPart, whole: Mapping[str, torch.Tensor], mesh: DeviceMesh
) -> dict[str, torch.Tensor]:
    """These constants by name: those that the plan stores in parts as ``DTensor``s of the part
    of this rank, all others as they are."""
    found = dict(whole)
    for source in part.cut_constants:
        if source.names[0] not in whole:
            continue
        tensor, placements = whole[source.names[0]], part.placements(source)
        own = take_part(tensor, mesh, placements).clone(memory_format=torch.contiguous_format)
        found |= dict.fromkeys(source.names, dtensor_of(own, mesh, placements, tensor))
    return found
