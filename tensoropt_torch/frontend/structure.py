"""A model without its values, to be captured again: in another mode, for other shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.call_context import CallContext, CallForm
from tensoropt_torch.frontend.capture import (
    Arguments,
    CapturedModel,
    capture,
    capture_with_numbers,
)
from tensoropt_torch.frontend.input_names import input_names
from tensoropt_torch.frontend.passes import Blocks
from tensoropt_torch.frontend.python_calls import name_copy, rebind_forward_hooks
from tensoropt_torch.frontend.watching import Lifted
from tensoropt_torch.frontend.watching.filled_buffers import refuse_in_other_calls
from tensoropt_torch.logs import get_logger

log = get_logger(__name__)


class ModelStructure:
    """The modules of a model, with parameters and buffers that hold no values.

    Where a model cannot be copied it is kept itself, with its values. Given ``blocks``, its
    parameters are seen so in all graphs (``capture``); ``fills`` is what the example's forward pass
    has filled (``Attributes``).
    """

    def __init__(
        self,
        model: nn.Module,
        form: CallForm,
        blocks: Mapping[str, Blocks] | None = None,
        fills: Sequence[str] = (),
    ) -> None:
        self._form = form
        self._fills = fills
        self._blocks = blocks
        self._devices: dict[int, torch.device] = {}
        twins = self._twins(model)
        try:
            self.module: nn.Module = copy.deepcopy(model, dict(twins))
        except Exception as error:  # whatever the user's classes raise
            log.info("%s cannot be copied (%s): it is kept", type(model).__name__, error)
            self.module = model
            self._devices.clear()
        name_copy(self.module, model)
        rebind_forward_hooks(self.module, model)

    @property
    def _device(self) -> torch.device:
        """Where the model's tensors are."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        devices = (self._devices.get(id(tensor), tensor.device) for tensor in tensors)
        return next(devices, torch.device("cpu"))

    @property
    def modes(self) -> tuple[bool, ...]:
        """Which of the modules are in training mode, in the order of ``modules()``."""
        return tuple(module.training for module in self.module.modules())

    @property
    def trained(self) -> tuple[bool, ...]:
        """Which parameters require a gradient, in the order of ``parameters()``."""
        return tuple(parameter.requires_grad for parameter in self.module.parameters())

    def input_names(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """What the inputs of a call are called."""
        count, loss_fn = self._split(args)
        return input_names(self.module, args[:count], loss_fn, args, kwargs)

    def capture(
        self,
        arguments: Arguments,
        modes: Sequence[bool],
        trained: Sequence[bool],
        context: CallContext,
    ) -> CapturedModel:
        """The graph of a call with ``arguments`` (tensors, of which only shapes and dtypes
        matter), with ``modes`` and ``trained`` as the properties of these names.

        Raises:
            TensorOptError: the module cannot be captured so.
        """
        with self._prepared(modes, trained) as mode:
            args, kwargs, targets, loss_fn = self._without_values(arguments, mode)
            found = capture(
                self.module,
                args,
                kwargs,
                loss_fn=loss_fn,
                targets=targets,
                context=context,
                blocks=self._blocks,
            )
        refuse_in_other_calls(type(self.module).__name__, self._fills, found.attributes.fills)
        return found

    def capture_with_numbers(
        self,
        arguments: Arguments,
        modes: Sequence[bool],
        trained: Sequence[bool],
        plain: CapturedModel,
        keys: Sequence[Lifted],
    ) -> CapturedModel:
        """As ``capture``, which gave ``plain``, with numbers as inputs: ``capture_with_numbers``
        of ``frontend/capture.py``.

        Raises:
            UnfollowableError: they cannot be.
        """
        with self._prepared(modes, trained) as mode:
            args, kwargs, targets, _ = self._without_values(arguments, mode)
            blocks = self._blocks
            return capture_with_numbers(
                self.module, args, kwargs, plain, keys, targets=targets, blocks=blocks
            )

    def _without_values(self, arguments: Arguments, mode: FakeTensorMode | None) -> Any:
        """Arguments of the model, keywords, targets, and what takes them."""
        values, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: _without_value(t, mode, self._device), arguments
        )
        count, loss_fn = self._split(values)
        return values[:count], kwargs, values[count:], loss_fn

    def _split(self, args: Sequence[Any]) -> tuple[int, Callable[..., torch.Tensor] | None]:
        """How many arguments are the model's, and what takes the others: nothing where there
        are none, for then the output itself is asked for."""
        form = self._form
        if form.loss_fn is None or (form.num_targets > 0 and len(args) <= form.num_inputs):
            return len(args), None
        return form.num_inputs, form.loss_fn

    def _twins(self, model: nn.Module) -> dict[int, Any]:
        """For each tensor of the model, by its id, one on the meta device."""
        twins: dict[int, Any] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            twin: torch.Tensor = tensor.detach().to("meta")
            if isinstance(tensor, nn.Parameter):
                twin = nn.Parameter(twin, tensor.requires_grad)
            twins[id(tensor)] = twin
            self._devices[id(twin)] = tensor.device
        return twins

    @contextmanager
    def _prepared(
        self, modes: Sequence[bool], trained: Sequence[bool]
    ) -> Iterator[FakeTensorMode | None]:
        """The module in these modes, its tensors on the device of the model's, as long as
        this lasts. A model that is on the meta device stays there: then there is no mode."""
        modules = list(self.module.modules())
        before = self.modes, self.trained
        _set_modes(modules, modes)
        _set_trained(self.module, trained)
        devices = self._devices.values()
        try:
            if any(device.type == "meta" for device in devices):
                yield None
            else:
                with self._faked(FakeTensorMode(allow_non_fake_inputs=True)) as mode:
                    yield mode
        finally:
            _set_modes(modules, before[0])
            _set_trained(self.module, before[1])

    @contextmanager
    def _faked(self, mode: FakeTensorMode) -> Iterator[FakeTensorMode]:
        fakes: dict[int, torch.Tensor] = {}
        with ExitStack() as stack:
            for module in self.module.modules():
                for own in (module._parameters, module._buffers):
                    stack.callback(partial(own.update, dict(own)))
                    for name, tensor in own.items():
                        if tensor is not None:
                            if id(tensor) not in fakes:
                                fakes[id(tensor)] = self._fake(tensor, mode)
                            own[name] = fakes[id(tensor)]  # type: ignore[assignment]
            yield mode

    def _fake(self, tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
        device = self._devices.get(id(tensor), tensor.device)
        with mode:
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, tensor.requires_grad)
        return fake


def _without_value(
    tensor: torch.Tensor, mode: FakeTensorMode | None, device: torch.device
) -> torch.Tensor:
    if mode is None:
        return tensor.to("meta")
    with mode:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return fake.requires_grad_(tensor.requires_grad)


def _set_modes(modules: Sequence[nn.Module], modes: Sequence[bool]) -> None:
    for module, mode in zip(modules, modes, strict=True):
        if module.training != mode:
            module.training = mode


def _set_trained(module: nn.Module, trained: Sequence[bool]) -> None:
    for parameter, wanted in zip(module.parameters(), trained, strict=True):
        if parameter.requires_grad != wanted:
            parameter.requires_grad_(wanted)
