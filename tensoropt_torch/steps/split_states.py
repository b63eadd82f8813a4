"""States of optimizers of which ranks have parts, for those that give them another layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.steps.local_step import OF_ALL_ELEMENTS
from tensoropt_torch.steps.whole_step import is_parameter_wise
from tensoropt_torch.values.placements import dtensor_of


@dataclass(frozen=True)
class SplitState:
    """A state of a parameter: a ``DTensor``, or a rank's part in the layout of the parameter.

    Attributes:
        shape: of the whole.
        mesh, placements: where ranks have it.
    """

    parameter: DTensor
    shape: tuple[int, ...]
    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    _states: dict[str, Any]
    _name: str

    @property
    def local(self) -> torch.Tensor:
        """The rank's part."""
        value = self._states[self._name]
        return value._local_tensor if isinstance(value, DTensor) else value

    @property
    def is_as_parameter(self) -> bool:
        """Whether it has the shape of its parameter, and so its layout."""
        return self.shape == tuple(self.parameter.shape)

    def put(
        self, local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement] | None
    ) -> None:
        """The rank has this part, in a layout on a mesh; None: it is whole there."""
        value = self._states[self._name]
        if isinstance(value, DTensor):
            layout = placements or [Replicate()] * mesh.ndim
            self._states[self._name] = dtensor_of(local, mesh, layout, value)
        else:
            self._states[self._name] = local


def split_states(optimizer: torch.optim.Optimizer) -> Iterator[SplitState]:
    """Those of parameters that are ``DTensor``s.

    Raises:
        TensorOptError: one has a pending sum, whose place nothing tells.
    """
    for parameter, states in optimizer.state.items():
        if not isinstance(parameter, DTensor):
            continue
        for name, value in states.items():
            if isinstance(value, DTensor):
                if any(p.is_partial() for p in value.placements):
                    raise TensorOptError(
                        f"the state '{name}' of {type(optimizer).__name__} has a pending sum "
                        f"(placements {value.placements}) and can be given no other layout; "
                        "redistribute it before"
                    )
                layout = tuple(value.shape), value.device_mesh, tuple(value.placements)
                yield SplitState(parameter, *layout, states, name)
            elif _is_part(value, parameter, name) and not is_parameter_wise(optimizer):
                layout = tuple(parameter.shape), parameter.device_mesh, tuple(parameter.placements)
                yield SplitState(parameter, *layout, states, name)


def _is_part(value: Any, parameter: DTensor, name: str) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and name not in OF_ALL_ELEMENTS
        and value.shape == parameter._local_tensor.shape
    )
