"""``load_state_dict`` of a module whose parameters are cut.

A hook before PyTorch's own loading puts the part of this rank of every given tensor where
it belongs, whole tensors and ``DTensor``s of other layouts alike. PyTorch then compares
names and shapes, as for any module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.emit.parts import redistributed, take_part
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import from_first_rank, gather, on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing

_Kinds = Mapping[str, str]  # shape and layout of the given tensors, by name


@doing("load_state_dict")
def load_parts(
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    local_metadata: Mapping[str, Any],
    *reports: Any,
) -> None:
    """Copies this rank's part of every tensor of ``state_dict`` that has the shape of the
    parameter or buffer of that name, for ``register_load_state_dict_pre_hook``. Collective.

    Raises:
        TensorOptError: on every rank; with ``assign=True``, or if what is given differs
            between ranks. Names that only some ranks are given become unexpected on all.
    """
    _, _, unexpected, _ = reports
    if local_metadata.get("assign_to_params_buffers", False):
        raise TensorOptError(
            "load_state_dict(assign=True) would replace parameters whose layout, dtype and "
            "device the plan fixes; call it without assign, which copies the values"
        )
    own = {prefix + name: t for name, t in module.state_dict(keep_vars=True).items()}
    _agree(own, state_dict, prefix, unexpected)
    for name, tensor in own.items():
        given = state_dict.get(name)
        if isinstance(given, torch.Tensor) and given.shape == tensor.shape:
            with torch.no_grad():
                _copy_part(tensor.detach(), given.detach())
            state_dict[name] = tensor.detach()


def _agree(
    own: Mapping[str, Any], state_dict: Mapping[str, Any], prefix: str, unexpected: list[str]
) -> None:
    """All ranks go on with the same names, shapes and layouts, or none does."""
    kinds = {name: _kind(state_dict[name]) for name in own if name in state_dict}
    first = from_first_rank(lambda: kinds)
    on_all_ranks(lambda: _check_alike(first, kinds))
    extra = {name for name in state_dict if name.startswith(prefix) and name not in own}
    everywhere = set().union(*gather(extra))
    unexpected.extend(sorted(everywhere - extra))


def _kind(given: Any) -> str:
    if isinstance(given, DTensor):
        return f"{tuple(given.shape)} as {given.placements} on {tuple(given.device_mesh.shape)}"
    return str(tuple(given.shape)) if isinstance(given, torch.Tensor) else type(given).__name__


def _check_alike(first: _Kinds, own: _Kinds) -> None:
    for name in sorted(first.keys() | own.keys()):
        if first.get(name) != own.get(name):
            raise TensorOptError(
                f"'{name}' is {own.get(name, 'missing')} in this state dict, "
                f"{first.get(name, 'missing')} in that of rank 0; give the same on every rank, or "
                "torch.distributed.checkpoint.state_dict.set_model_state_dict with "
                "full_state_dict=True and broadcast_from_rank0=True what rank 0 has"
            )


def _copy_part(own: torch.Tensor, given: torch.Tensor) -> None:
    if not isinstance(own, DTensor):
        own.copy_(given.full_tensor() if isinstance(given, DTensor) else given)
        return
    mesh, placements = own.device_mesh, own.placements
    if isinstance(given, DTensor) and given.device_mesh == mesh:
        part = redistributed(given, placements).to_local()
    else:
        whole = given.full_tensor() if isinstance(given, DTensor) else given
        part = take_part(whole, mesh, placements)
    own.to_local().copy_(part)
