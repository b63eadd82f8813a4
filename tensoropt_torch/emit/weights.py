"""Where the parameters and buffers of a parallel module get their values.

Each rank keeps its part of every parameter, and every buffer whole. A model with
real tensors is copied from rank 0. A model on the meta device gets its values
from a checkpoint, of which a rank reads its parts only, or from the modules'
own initialisation, one module at a time. So no process holds more than its parts
and the largest module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.progress import Step, progress, silent
from tensoropt_torch.runtime.agreement import on_all_ranks

Initialiser = Callable[[nn.Module], None]
Checkpoint = Mapping[str, torch.Tensor] | str | Path


@dataclass(frozen=True)
class WeightSource:
    """What gives values to a model on the meta device.

    Attributes:
        checkpoint: tensors by name (those that are mapped from a file are read in
            part only), a file of ``torch.save``, or a folder of
            ``torch.distributed.checkpoint``.
        initialise: sets the parameters and buffers that a module itself owns; by
            default its ``reset_parameters``.
    """

    checkpoint: Checkpoint | None = None
    initialise: Initialiser | None = None


@dataclass(frozen=True)
class Weights:
    """Parameters by their first name, buffers and constants by name."""

    parameters: dict[str, nn.Parameter]
    constants: dict[str, torch.Tensor]


class WeightLoader:
    """Makes the tensors of one rank. Its methods are collective.

    Args:
        model: whose values are taken; it is not changed.
        placements: of every parameter, by first name, on the mesh.
        names: all names of a parameter, by first name.
    """

    def __init__(
        self,
        model: nn.Module,
        placements: Mapping[str, Sequence[Placement]],
        names: Mapping[str, Sequence[str]],
        mesh: DeviceMesh,
        device: torch.device,
    ) -> None:
        self._model = model
        self._placements = placements
        self._names = names
        self._mesh = mesh
        self._device = device
        self._own = dict(model.named_parameters(remove_duplicate=False))
        self._buffers = dict(model.named_buffers(remove_duplicate=False))
        self._step: Step = silent

    def load(self, source: WeightSource, constants: Mapping[str, torch.Tensor]) -> Weights:
        """The values of all parameters, and of ``constants``: the buffers of the
        model, and tensors that are in its graph only."""
        originals = {name: self._buffers.get(name, c) for name, c in constants.items()}
        with progress("setting parameters", len(self._placements)) as self._step:
            if source.checkpoint is not None:
                return self._from_checkpoint(source.checkpoint, originals)
            return self._from_model(source, originals)

    def _from_model(self, source: WeightSource, originals: Mapping[str, torch.Tensor]) -> Weights:
        made = Weights({}, {})
        if any(t.is_meta for t in (*self._own.values(), *self._buffers.values())):
            made = self._from_modules(source.initialise or _reset_parameters)
        parameters = {
            name: made.parameters[name] if name in made.parameters else self._copy(name)
            for name in self._placements
        }
        return Weights(parameters, self._whole(originals, made.constants))

    # Real tensors

    def _copy(self, name: str) -> nn.Parameter:
        whole = self._of_first_rank(name, self._own[name])
        return self._parameter(name, self._part(name, whole))

    def _whole(
        self, originals: Mapping[str, torch.Tensor], made: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Names of one tensor stay names of one tensor."""
        tensors = {id(originals[name]): made[name] for name in originals if name in made}
        for name, original in originals.items():
            if id(original) not in tensors:
                tensors[id(original)] = self._of_first_rank(name, original)
        return {name: tensors[id(original)] for name, original in originals.items()}

    def _of_first_rank(self, name: str, original: torch.Tensor) -> torch.Tensor:
        if original.is_meta:
            raise TensorOptError(
                f"'{name}' is on the meta device and no module owns it, so nothing gives it a "
                "value; register it as a buffer, or give a checkpoint that has it"
            )
        tensor = original.detach().to(self._device, copy=True).contiguous()
        if dist.get_world_size() > 1:
            dist.broadcast(tensor, 0)
        return tensor

    # Parts

    def _part(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """The part of this rank, a view."""
        coordinate = self._mesh.get_coordinate()
        assert coordinate is not None
        part = whole
        for axis, placement in enumerate(self._placements[name]):
            if isinstance(placement, Shard):
                part = part.chunk(self._mesh.size(axis), placement.dim)[coordinate[axis]]
        return part

    def _parameter(self, name: str, part: torch.Tensor) -> nn.Parameter:
        original = self._own[name]
        local = part.to(self._device, original.dtype, copy=True).contiguous()
        self._step()
        return parameter_of(local, self._mesh, self._placements[name], original)

    # Checkpoints

    def _from_checkpoint(
        self, checkpoint: Checkpoint, originals: Mapping[str, torch.Tensor]
    ) -> Weights:
        if isinstance(checkpoint, str | Path) and Path(checkpoint).is_dir():
            return self._from_folder(Path(checkpoint), originals)
        tensors = on_all_ranks(lambda: _tensors_of(checkpoint))

        def read() -> Weights:
            parameters = {}
            for name in self._placements:
                tensor = _named(tensors, self._names[name], self._own[name].shape)
                parameters[name] = self._parameter(name, self._part(name, tensor))
            saved = {
                name: _named(tensors, [name], original.shape).to(self._device, copy=True)
                for name, original in originals.items()
                if name in tensors
            }
            return Weights(parameters, saved)

        weights = on_all_ranks(read)
        return Weights(weights.parameters, self._whole(originals, weights.constants))

    def _from_folder(self, folder: Path, originals: Mapping[str, torch.Tensor]) -> Weights:
        # Importing these takes long, and few jobs need them.
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        empty = Weights({}, {})
        state: dict[str, Any] = {}

        def prepare() -> None:
            saved = FileSystemReader(folder).read_metadata().state_dict_metadata
            for name in self._placements:
                given = _given(self._names[name], saved)
                part = self._part(name, torch.empty(self._own[name].shape, device="meta"))
                empty.parameters[name] = self._parameter(
                    name, torch.empty(part.shape, device=self._device)
                )
                state[given] = empty.parameters[name].detach()
            for name in set(originals) & set(saved):
                empty.constants[name] = torch.empty_like(originals[name], device=self._device)
                state[name] = empty.constants[name]

        on_all_ranks(prepare)
        load(state, checkpoint_id=folder)
        return Weights(empty.parameters, self._whole(originals, empty.constants))

    # Initialisation

    def _from_modules(self, initialise: Initialiser) -> Weights:
        """Each module that owns a tensor on the meta device is made real, alone, and
        initialised with the same random numbers on all ranks."""
        first = {n: name for name, names in self._names.items() for n in names}
        parameters: dict[str, nn.Parameter] = {}
        constants: dict[str, torch.Tensor] = {}
        with _same_random_numbers(self._device):
            for path, module in self._model.named_modules():
                prefix = f"{path}." if path else ""
                if not _on_meta(module):
                    continue
                with _made_real(module, self._device):
                    made = on_all_ranks(partial(_initialised, module, path, initialise))
                for leaf, tensor in made.items():
                    name = first.get(prefix + leaf)
                    if name is None:
                        constants[prefix + leaf] = tensor
                    else:
                        parameters[name] = self._parameter(name, self._part(name, tensor))
        return Weights(parameters, constants)


def parameter_of(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], whole: torch.Tensor
) -> nn.Parameter:
    """The parameter that has ``local`` as this rank's part and the shape of ``whole``."""
    shard = DTensor.from_local(
        local,
        mesh,
        placements,
        run_check=False,
        shape=whole.shape,
        stride=torch.empty(whole.shape, device="meta").stride(),
    )
    return nn.Parameter(shard, requires_grad=whole.requires_grad)


def _tensors_of(checkpoint: Checkpoint) -> Mapping[str, torch.Tensor]:
    if isinstance(checkpoint, Mapping):
        return checkpoint
    if not Path(checkpoint).is_file():
        raise TensorOptError(
            f"checkpoint '{checkpoint}' is neither a file nor a folder; give a file of torch.save, "
            "a folder of torch.distributed.checkpoint, or a mapping from names to tensors"
        )
    loaded = torch.load(checkpoint, map_location="cpu", mmap=True, weights_only=True)
    if not isinstance(loaded, Mapping):
        raise TensorOptError(
            f"checkpoint '{checkpoint}' holds a {type(loaded).__name__}, not a state_dict; save "
            "model.state_dict()"
        )
    return loaded


def _named(
    tensors: Mapping[str, torch.Tensor], names: Sequence[str], shape: torch.Size
) -> torch.Tensor:
    name = _given(names, tensors)
    if tensors[name].shape != shape:
        raise TensorOptError(
            f"'{name}' has shape {tuple(tensors[name].shape)} in the checkpoint, "
            f"{tuple(shape)} in the model; give the checkpoint of this model"
        )
    return tensors[name]


def _given(names: Sequence[str], saved: Mapping[str, Any]) -> str:
    """Which of the names of a tensor the checkpoint knows."""
    name = next((n for n in names if n in saved), None)
    if name is None:
        raise TensorOptError(
            f"the checkpoint has no '{names[0]}'; it has {', '.join(sorted(saved)[:5])}"
            f"{', ...' if len(saved) > 5 else ''}; give the state_dict of the model itself"
        )
    return name


def _reset_parameters(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise TensorOptError(
            f"{type(module).__name__} has tensors on the meta device and no reset_parameters(); "
            "give initialise=, a function that sets the tensors of one module, or a checkpoint"
        )
    reset()


def _on_meta(module: nn.Module) -> list[str]:
    """The tensors that the module itself owns and that are on the meta device."""
    own = {**module._parameters, **module._buffers}
    return [name for name, tensor in own.items() if tensor is not None and tensor.is_meta]


@contextmanager
def _made_real(module: nn.Module, device: torch.device) -> Iterator[None]:
    """The tensors that the module itself owns are real as long as this lasts."""
    parameters, buffers = module._parameters, module._buffers
    before = dict(parameters), dict(buffers)
    for name in _on_meta(module):
        if (parameter := parameters.get(name)) is not None:
            parameters[name] = nn.Parameter(_unset(parameter, device), parameter.requires_grad)
        elif (buffer := buffers[name]) is not None:
            buffers[name] = _unset(buffer, device)
    try:
        yield
    finally:
        parameters.update(before[0])
        buffers.update(before[1])


def _unset(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Memory that shows whether it has been set; of booleans it cannot be seen."""
    real = torch.empty_like(tensor, device=device, requires_grad=False)
    if real.is_floating_point() or real.is_complex():
        return real.fill_(float("nan"))
    return real.fill_(False if real.dtype == torch.bool else torch.iinfo(real.dtype).min)


def _is_unset(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return False
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return bool((tensor == torch.iinfo(tensor.dtype).min).any())


def _initialised(module: nn.Module, path: str, initialise: Initialiser) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        initialise(module)
    own = {**module._parameters, **module._buffers}
    made = {name: tensor.detach() for name, tensor in own.items() if tensor is not None}
    for name, tensor in made.items():
        if _is_unset(tensor):
            raise TensorOptError(
                f"'{path}.{name}' is on the meta device, and initialising its module "
                f"({type(module).__name__}) does not set it; give initialise=, a function that "
                "sets all tensors of a module, or a checkpoint"
            )
    return made


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """All ranks draw what rank 0 would; its generators go on from there."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        seed = [torch.initial_seed()]
        if dist.get_world_size() > 1:
            dist.broadcast_object_list(seed, 0)
        torch.manual_seed(seed[0])
        yield
