"""Values of the parameters of one stage, of which every rank has to hear of all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate

from tensoropt_torch.values.weights import WeightLoader


class StageWeightLoader(WeightLoader):
    """Makes the tensors of one rank of a stage. All ranks go through all parameters in the same
    order, and keep those of their own stage.

    Args:
        own: first names of the parameters that this stage has.
        others: as ``WeightLoader`` takes them, of all parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        placements: Mapping[str, Sequence[Placement]],
        names: Mapping[str, Sequence[str]],
        mesh: DeviceMesh,
        device: torch.device,
        own: Collection[str],
    ) -> None:
        whole = [Replicate()] * mesh.ndim
        every = {name: placements.get(name, whole) for name in names}
        super().__init__(model, every, names, mesh, device)
        self._own_names = frozenset(own)

    def _parameter(self, name: str, part: torch.Tensor) -> nn.Parameter:
        if name in self._own_names:
            return super()._parameter(name, part)
        self._step()
        return nn.Parameter(torch.empty(0), requires_grad=False)
