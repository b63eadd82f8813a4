"""Where the parameters and buffers of a parallel module get their values.

Each rank keeps its part of every parameter, and every buffer whole. A model with
real tensors is copied from rank 0. A model on the meta device gets its values
from a checkpoint, of which a rank reads its parts only, or from the modules'
own initialisation, one module at a time. So no process holds more than its parts
and the largest module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger
from tensoropt_torch.progress import Step, progress, silent
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.values.checkpoints import (
    Checkpoint,
    Saved,
    check_given,
    check_shape,
    given_name,
    is_distributed,
    open_checkpoint,
)
from tensoropt_torch.values.hugging_face import Initialiser, initialiser_of, under_names_of
from tensoropt_torch.values.parts import SavedTensor, take_part
from tensoropt_torch.values.placements import dtensor_of, is_strided
from tensoropt_torch.values.strided_parts import know_strided_parts

log = get_logger(__name__)


@dataclass(frozen=True)
class WeightSource:
    """What gives values to a model on the meta device.

    Attributes:
        checkpoint: tensors by name (those that are mapped from a file are read in
            part only), a file of ``torch.save`` or of safetensors, a folder that
            ``save_pretrained`` has written, or one of ``torch.distributed.checkpoint``.
            What a model of Hugging Face reads from it is named and converted as
            ``from_pretrained`` does. Has to have all parameters and saved buffers, unless
            ``initialise`` is given for those that it lacks.
        initialise: sets the parameters and buffers that a module itself owns; by
            default the ``_init_weights`` of models of Hugging Face, and the
            ``reset_parameters`` of other modules.
    """

    checkpoint: Checkpoint | None = None
    initialise: Initialiser | None = None


@dataclass(frozen=True)
class Weights:
    """Parameters by their first name, buffers and constants by name."""

    parameters: dict[str, nn.Parameter]
    constants: dict[str, torch.Tensor]

    def __or__(self, other: Weights) -> Weights:
        return Weights(self.parameters | other.parameters, self.constants | other.constants)


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
            return self._made(source, originals)

    def _made(self, source: WeightSource, originals: Mapping[str, torch.Tensor]) -> Weights:
        found = Weights({}, {})
        if source.checkpoint is not None:
            found = self._from_checkpoint(source, originals)
        known = self._same_tensors(found.parameters.keys() | found.constants)
        wanted = self._on_meta(originals) - known
        if wanted:
            initialise = source.initialise or initialiser_of(self._model, _reset_parameters)
            found |= self._from_modules(initialise, wanted)
        parameters = {
            name: found.parameters[name] if name in found.parameters else self._copy(name)
            for name in self._placements
        }
        return Weights(parameters, self._whole(originals, found.constants))

    def _on_meta(self, originals: Mapping[str, torch.Tensor]) -> set[str]:
        """What needs a value: parameters by their first names, and other tensors."""
        own = {**{name: self._own[name] for name in self._placements}, **originals}
        return {name for name, tensor in own.items() if tensor.is_meta}

    def _same_tensors(self, names: Collection[str]) -> set[str]:
        """These names and the other names of the same buffers."""
        ids = {id(self._buffers[name]) for name in names if name in self._buffers}
        return {*names, *(name for name, buffer in self._buffers.items() if id(buffer) in ids)}

    # Real tensors

    def _copy(self, name: str) -> nn.Parameter:
        whole = of_first_rank(name, self._own[name], self._device)
        return self._parameter(name, self._part(name, whole))

    def _whole(
        self, originals: Mapping[str, torch.Tensor], made: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Names of one tensor stay names of one tensor."""
        tensors = {id(originals[name]): made[name] for name in originals if name in made}
        for name, original in originals.items():
            if id(original) not in tensors:
                tensors[id(original)] = of_first_rank(name, original, self._device)
        return {name: tensors[id(original)] for name, original in originals.items()}

    # Checkpoints

    def _from_checkpoint(
        self, source: WeightSource, originals: Mapping[str, torch.Tensor]
    ) -> Weights:
        """What the checkpoint has of parameters and buffers."""
        checkpoint = source.checkpoint
        assert checkpoint is not None
        if is_distributed(checkpoint):
            assert isinstance(checkpoint, str | Path)
            return self._from_folder(Path(checkpoint), source, originals)
        return on_all_ranks(
            lambda: self._read(
                under_names_of(self._model, open_checkpoint(checkpoint)), source, originals
            )
        )

    def _read(
        self, saved: Saved, source: WeightSource, originals: Mapping[str, torch.Tensor]
    ) -> Weights:
        found = Weights({}, {})
        for name, given in self._given(saved, source, originals).items():
            tensor, shape = saved[given], self._shape(name, originals)
            check_shape(given, tensor.shape, shape)
            if name in self._placements:
                found.parameters[name] = self._parameter(name, self._part(name, tensor))
            else:
                whole = tensor[tuple(slice(0, size) for size in shape)]
                found.constants[name] = self._local(whole, originals[name])
        return found

    def _from_folder(
        self, folder: Path, source: WeightSource, originals: Mapping[str, torch.Tensor]
    ) -> Weights:
        # Importing these takes long, and few jobs need them.
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        empty = Weights({}, {})
        state: dict[str, torch.Tensor] = {}

        def prepare() -> None:
            saved = FileSystemReader(folder).read_metadata().state_dict_metadata
            for name, given in self._given(saved, source, originals).items():
                if name in self._placements:
                    whole = torch.empty(self._shape(name, originals), device="meta")
                    local = torch.empty(self._part(name, whole).shape, device=self._device)
                    empty.parameters[name] = self._parameter(name, local)
                    state[given] = empty.parameters[name].detach()
                else:
                    empty.constants[name] = torch.empty_like(originals[name], device=self._device)
                    state[given] = empty.constants[name]

        on_all_ranks(prepare)
        load(state, checkpoint_id=folder)
        return empty

    def _given(
        self, saved: Collection[str], source: WeightSource, originals: Mapping[str, torch.Tensor]
    ) -> dict[str, str]:
        """Parameters and buffers that the checkpoint has -> their names there."""
        given = {name: name for name in originals if name in saved}
        for name in self._placements:
            known = given_name(self._names[name], saved)
            if known is not None:
                given[name] = known
        kept = self._model.state_dict().keys()
        needed = self._placements.keys() | (self._on_meta(originals) & kept)
        absent = sorted(needed - self._same_tensors(given.keys()))
        if absent and source.initialise is None:
            check_given(absent[0], saved)
        if absent:
            log.warning("initialised, since the checkpoint lacks them: %s", ", ".join(absent))
        return given

    # Initialisation

    def _from_modules(self, initialise: Initialiser, wanted: Collection[str]) -> Weights:
        """Each module that owns a wanted tensor is made real, alone, and initialised with
        the same random numbers on all ranks."""
        first = {n: name for name, names in self._names.items() for n in names}
        parameters: dict[str, nn.Parameter] = {}
        constants: dict[str, torch.Tensor] = {}
        with _same_random_numbers(self._device):
            for path, module in self._model.named_modules():
                prefix = f"{path}." if path else ""
                names = {leaf: first.get(prefix + leaf, prefix + leaf) for leaf in _own(module)}
                leaves = {leaf: name for leaf, name in names.items() if name in wanted}
                if not leaves:
                    continue
                with _made_real(module, self._device):
                    made = on_all_ranks(partial(_initialised, module, path, leaves, initialise))
                for leaf, name in leaves.items():
                    if name in self._placements:
                        part = self._part(name, made[leaf])
                        parameters[name] = self._parameter(name, part)
                    else:
                        constants[name] = made[leaf]
        return Weights(parameters, constants)

    # Tensors of this rank

    def _shape(self, name: str, originals: Mapping[str, torch.Tensor]) -> torch.Size:
        return (self._own if name in self._placements else originals)[name].shape

    def _part(self, name: str, whole: SavedTensor) -> torch.Tensor:
        return take_part(whole, self._mesh, self._placements[name])

    def _parameter(self, name: str, part: torch.Tensor) -> nn.Parameter:
        original = self._own[name]
        local = self._local(part, original)
        self._step()
        return parameter_of(local, self._mesh, self._placements[name], original)

    def _local(self, tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, original.dtype, copy=True).contiguous()


def of_first_rank(name: str, original: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the tensor of rank 0 on this rank's device. Collective.

    Raises:
        TensorOptError: it is on the meta device.
    """
    if original.is_meta:
        raise TensorOptError(
            f"'{name}' is on the meta device and no module owns it, so nothing gives it a "
            "value; register it as a buffer, or give a checkpoint that has it"
        )
    tensor = original.detach().to(device, copy=True).contiguous()
    if dist.get_world_size() > 1:
        dist.broadcast(tensor, 0)
    return tensor


def parameter_of(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], whole: torch.Tensor
) -> nn.Parameter:
    """The parameter that has ``local`` as this rank's part and the shape of ``whole``."""
    shard = dtensor_of(local, mesh, placements, whole)
    if is_strided(placements):
        know_strided_parts()
    return nn.Parameter(shard, requires_grad=whole.requires_grad)


def _reset_parameters(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        raise TensorOptError(
            f"{type(module).__name__} has tensors on the meta device and no reset_parameters(); "
            "give initialise=, a function that sets the tensors of one module, or a checkpoint"
        )
    reset()


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers that the module itself owns."""
    own = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in own.items() if tensor is not None}


@contextmanager
def _made_real(module: nn.Module, device: torch.device) -> Iterator[None]:
    """The tensors that the module itself owns are real copies as long as this lasts."""
    parameters, buffers = module._parameters, module._buffers
    before = dict(parameters), dict(buffers)
    for name, tensor in _own(module).items():
        real = _unset(tensor, device) if tensor.is_meta else tensor.detach().clone()
        if name in parameters:
            parameters[name] = nn.Parameter(real, tensor.requires_grad)
        else:
            buffers[name] = real
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


def _initialised(
    module: nn.Module, path: str, leaves: Collection[str], initialise: Initialiser
) -> dict[str, torch.Tensor]:
    """These tensors of the module, set."""
    with torch.no_grad():
        initialise(module)
    made = {leaf: _own(module)[leaf].detach() for leaf in leaves}
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
