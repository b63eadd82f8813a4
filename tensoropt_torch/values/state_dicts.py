"""``load_state_dict`` of modules whose parameters are cut.

Hooks before PyTorch's own loading put the part of this rank of every given tensor where it
belongs, whole tensors and ``DTensor``s of other layouts alike: in each module after its own
hooks, which may rename what is given. PyTorch then compares names and shapes, as for any module.
Before the first of them the ranks agree on what they are given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import from_first_rank, gather, on_all_ranks
from tensoropt_torch.runtime.digests import digest_of
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.runtime.stage_groups import is_mesh_of_stage
from tensoropt_torch.values.parts import redistributed, take_part

_Kinds = Mapping[str, str]  # shape and layout of the given tensors, by name


def load_by_parts(root: nn.Module) -> None:
    """From now on ``root`` and the modules inside load state dicts by parts, together or each by
    itself. Loading is then collective.

    It raises TensorOptError on every rank, before anything has changed, with ``assign=True``, or
    if what is given differs between ranks. Names that only some ranks are given become unexpected
    on all.
    """
    loading = _Loading()
    for module in root.modules():
        own: Any = module
        own._load_state_dict_pre_hooks = _OneLast(own._load_state_dict_pre_hooks)
        begin = own.register_load_state_dict_pre_hook(loading.begin)
        own._load_state_dict_pre_hooks.move_to_end(begin.id, last=False)
        copy = own.register_load_state_dict_pre_hook(_copy_parts)
        own._load_state_dict_pre_hooks.last = copy.id
        own.register_load_state_dict_post_hook(loading.end)


class _OneLast(OrderedDict[int, Any]):
    """Hooks of which one stays the last, whatever is registered later."""

    last: int | None = None

    def __setitem__(self, key: int, value: Any) -> None:
        super().__setitem__(key, value)
        if self.last is not None:
            self.move_to_end(self.last)


class _Loading:
    """Of a module and those inside, of which ``load_state_dict`` may be called."""

    def __init__(self) -> None:
        self._at: int | None = None  # the outermost module that is being loaded
        self._inside: set[int] = set()

    @doing("load_state_dict")
    def begin(
        self,
        module: nn.Module,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        _: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """In the outermost module the ranks agree."""
        if id(module) in self._inside:
            return
        if local_metadata.get("assign_to_params_buffers", False):
            raise TensorOptError(
                "load_state_dict(assign=True) would replace parameters whose layout, dtype and "
                "device the plan fixes; call it without assign, which copies the values"
            )
        own = {prefix + name for name, _ in _saved(module, recurse=True)}
        _agree(own, state_dict, prefix, unexpected)
        self._at = id(module)
        self._inside = {id(inside) for inside in module.modules()} - {id(module)}

    def end(self, module: nn.Module, incompatible: Any) -> None:
        """What is unexpected on another rank is named once."""
        if id(module) == self._at:
            self._at, self._inside = None, set()
            incompatible.unexpected_keys[:] = dict.fromkeys(incompatible.unexpected_keys)


@doing("load_state_dict")
def _copy_parts(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Copies this rank's part of every tensor of ``state_dict`` that has the shape of the
    module's own parameter or buffer of that name."""
    for name, tensor in _saved(module, recurse=False):
        given = state_dict.get(prefix + name)
        if isinstance(given, torch.Tensor) and given.shape == tensor.shape:
            with torch.no_grad():
                _copy_part(tensor.detach(), given.detach())
            state_dict[prefix + name] = tensor.detach()


def _saved(module: nn.Module, recurse: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers that state dicts have, under all of their names."""
    modules = module.named_modules(remove_duplicate=False) if recurse else [("", module)]
    for path, inside in modules:
        start = f"{path}." if path else ""
        for name, tensor in (*inside._parameters.items(), *inside._buffers.items()):
            if tensor is not None and name not in inside._non_persistent_buffers_set:
                yield start + name, tensor


def _agree(
    own: set[str], state_dict: Mapping[str, Any], prefix: str, unexpected: list[str]
) -> None:
    """All ranks go on with the same names, shapes and layouts, or none does; or all with what
    their own stages have."""
    given = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    are_of_stages = gather(any(map(_is_of_stage, given.values())))
    if all(are_of_stages):
        return
    if any(are_of_stages):
        raise TensorOptError(
            f"rank {are_of_stages.index(True)} is given the parts of its stage, and rank "
            f"{are_of_stages.index(False)} is not; give all ranks the whole state, or each its own"
        )
    kinds = {name: _kind(value) for name, value in given.items()}
    values = {name: _value(value) for name, value in given.items()}
    first, first_values = from_first_rank(lambda: (kinds, values))
    on_all_ranks(lambda: _check_alike(first, kinds, own))
    on_all_ranks(lambda: _check_equal(first_values, values))
    extra = kinds.keys() - own
    of_ranks: list[set[str]] = gather(set(extra))
    unexpected.extend(sorted(set().union(*of_ranks) - of_ranks[0].intersection(*of_ranks)))


def _is_of_stage(given: Any) -> bool:
    return isinstance(given, DTensor) and is_mesh_of_stage(given.device_mesh)


def _kind(given: Any) -> str:
    if isinstance(given, DTensor):
        return f"{tuple(given.shape)} as {given.placements} on {tuple(given.device_mesh.shape)}"
    return str(tuple(given.shape)) if isinstance(given, torch.Tensor) else type(given).__name__


def _check_alike(first: _Kinds, given: _Kinds, own: set[str]) -> None:
    """Of names that the module does not have, which hooks may rename, those of both."""
    compared = own | (first.keys() & given.keys())
    for name in sorted(compared):
        if first.get(name) != given.get(name):
            raise TensorOptError(
                f"'{name}' is {given.get(name, 'missing')} in this state dict, "
                f"{first.get(name, 'missing')} in that of rank 0; give the same on every rank, or "
                "torch.distributed.checkpoint.state_dict.set_model_state_dict with "
                "full_state_dict=True and broadcast_from_rank0=True what rank 0 has"
            )


def _value(given: Any) -> int:
    """Equal for whole tensors with equal values; 0 for what else there is."""
    whole = isinstance(given, torch.Tensor) and not isinstance(given, DTensor)
    if not whole or given.is_meta or given.layout != torch.strided or given.is_quantized:
        return 0
    return int(digest_of(given))


def _check_equal(first: Mapping[str, int], given: Mapping[str, int]) -> None:
    """Else each rank would go on with a part of another model."""
    for name in sorted(first.keys() & given.keys()):
        if first[name] != given[name]:
            raise TensorOptError(
                f"'{name}' has other values in this state dict than in that of rank 0; give the "
                "same on every rank (load one file, or seed models alike), or "
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
