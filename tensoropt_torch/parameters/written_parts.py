"""What is written to ``DTensor``s between a forward and its backward is seen by autograd.

It saves the part that a rank has of them, and looks at the version of that. What a ``DTensor``
does in place (``p.mul_(0.9)``) changes the part, but the version of the ``DTensor`` alone; what
several do together (``torch._foreach_mul_``) neither version.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version
from torch.distributed.tensor import DTensor

from tensoropt_torch.parameters.local_parts import local_tensor
from tensoropt_torch.runtime.remade import count_write_without_version

_VERSION = attrgetter("_version")
_ZERO = torch.ops.aten._foreach_zero_.default


class WrittenParts:
    """Of one forward.

    ::

        written = WrittenParts(parameters)
        outputs = graph(*parts)
        written.watch(outputs)
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        watched = torch.is_grad_enabled()
        self._tensors = [t for t in tensors if watched and isinstance(t, DTensor)]
        self._versions = [*map(_VERSION, self._tensors)]

    def watch(self, outputs: Sequence[Any]) -> None:
        """Looks when backward comes to one of these."""
        if not self._tensors:
            return
        nodes = {
            output.grad_fn
            for output in outputs
            if isinstance(output, torch.Tensor) and output.grad_fn is not None
        }
        for node in nodes:
            node.register_prehook(lambda _: self.look())

    def look(self) -> None:
        """What has been written to since the last time is seen from now on."""
        before, self._versions = self._versions, [*map(_VERSION, self._tensors)]
        if before != self._versions:
            pairs = zip(self._tensors, before, self._versions, strict=True)
            see_writes(tensor for tensor, old, new in pairs if old != new)


def see_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Of these tensors, which were written to, the rank's parts have been changed."""
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            increment_version(tensor._local_tensor)


@functools.cache
def know_writes_of_several() -> None:
    """From now on, in this process."""
    tensors: Any = DTensor
    handlers = tensors._op_dispatcher._custom_op_handlers
    for op in _of_several():
        handlers.setdefault(op, functools.partial(_with_versions, handlers))


def _of_several() -> Iterator[OpOverload]:
    """The operators that change lists of tensors, the first one of their arguments."""
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if name.startswith(("_foreach_", "_fused_")) and name.endswith("_"):
            yield getattr(getattr(torch.ops.aten, name), overload or "default")


def _with_versions(
    handlers: dict[Any, Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What ``DTensor`` does for an operator, with new versions of what is changed."""
    handler = handlers.pop(op)
    try:
        # DTensor has no way to zero what is yet to be summed, as gradients are that no_sync keeps.
        operands = (list(map(local_tensor, args[0])),) if op is _ZERO else args
        result = op(*operands, **kwargs)
    finally:
        handlers[op] = handler
    for tensor in args[0]:
        if isinstance(tensor, DTensor):
            increment_version(tensor._local_tensor)
            count_write_without_version(tensor._local_tensor)
    return result
