"""The rank's part of a parameter in the graph, and the way of its gradient back."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

import torch
from torch.autograd.graph import get_gradient_edge, increment_version
from torch.distributed.tensor import DTensor, Placement

from tensoropt_torch.operators import OPS
from tensoropt_torch.parameters.kept_gradients import is_executed, reduce_found
from tensoropt_torch.parameters.second_derivatives import differentiable_whole
from tensoropt_torch.values.placements import dtensor_of

_NEW = DTensor.__new__


def as_whole(
    part: torch.Tensor, parameter: DTensor, placements: Sequence[Placement] | None = None
) -> DTensor:
    """The tensor of a parameter's shape of which the rank has this part, in the parameter's
    layout or in another one. No gradient flows through it."""
    if placements is None and part.dtype == parameter.dtype:
        # A step has one for each gradient. What from_local makes takes ten times as long, and
        # the constructor, which does nothing besides, twice.
        return DTensor.__new__(DTensor, part, parameter._spec, requires_grad=False)
    layout = parameter.placements if placements is None else placements
    return dtensor_of(part, parameter.device_mesh, layout, parameter)


def local_tensor(value: Any) -> Any:
    """What the rank has of a ``DTensor``, without any gradient; all else as it is."""
    return value._local_tensor if isinstance(value, DTensor) else value


def local_parts(
    tensors: Sequence[torch.Tensor], shapes: Sequence[Sequence[int] | None]
) -> list[torch.Tensor]:
    """What the rank has of parameters, as ``DTensor.to_local``, seen in these shapes; other
    tensors as they are.

    The gradient that comes back is no other parameter's as well: autograd sees to that for
    tensors, but not for what is inside of a ``DTensor``. Two parameters that are added up have
    one gradient, and what is done to it in place, such as clipping, would be done twice. It
    lies in memory as the parameter does, which fused optimizers take for granted.
    """
    is_trained = torch.is_grad_enabled()
    parts, trained = [], []
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, DTensor):
            parts.append(tensor)
            continue
        local, shape = tensor._local_tensor, shapes[i]
        parts.append(local.detach() if shape is None else local.view(shape))
        if is_trained and tensor.requires_grad:
            trained.append(i)
    if not trained:
        return parts
    # Gradients that are added to others, or that somebody waits for, leave one by one: not all
    # of them are in memory besides, and no hook is called where there is none.
    together = all(is_plain(tensors[i]) for i in trained)
    for members in [trained] if together else [[i] for i in trained]:
        own, wholes = [parts[i] for i in members], [tensors[i] for i in members]
        beside = torch.empty(0, device=own[0].device, requires_grad=True)
        found = _LocalParts.apply(own, beside, *wholes)  # type: ignore[no-untyped-call]
        for i, part in zip(members, found, strict=True):
            parts[i] = part
    return parts


def parts_as_they_are(
    tensors: Sequence[torch.Tensor], shapes: Sequence[Sequence[int] | None]
) -> list[torch.Tensor]:
    """The same, that no gradient comes back to."""
    return [
        tensor
        if not isinstance(tensor, DTensor)
        else tensor._local_tensor
        if shape is None
        else tensor._local_tensor.view(shape)
        for tensor, shape in zip(tensors, shapes, strict=True)
    ]


class GivenGradients:
    """Gradients of tensors behind a gate, in one backward of a node that takes it
    (``csrc/runtime/leaf_gate_op.cc``): those of parameters, which are of the rank's parts in
    ``views``, become ``.grad``, or are added to it.

    ::

        given = GivenGradients(gate, beside, tensors, views)
        given.take(number, gradient)       # memory of its own, that lies as the part does
        return given.rest(gradients)       # what the node returns, of all others
    """

    def __init__(
        self,
        gate: torch.Tensor,
        beside: Any,
        tensors: Sequence[torch.Tensor],
        views: Sequence[Sequence[int] | None],
    ) -> None:
        self._gate = gate
        self._tensors = tensors
        self._views = views
        self._left: list[torch.Tensor | None] = [None] * len(tensors)
        self._is_for_all = is_executed(beside)

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """One of a parameter, of which it is known that its memory is nobody else's, and that it
        lies as the part does."""
        parameter = self._tensors[number]
        if self._is_for_all and isinstance(parameter, DTensor) and is_unwatched(parameter):
            if self._views[number] is not None:
                gradient = gradient.view(parameter._local_tensor.shape)
            kept = parameter.grad
            if kept is None:
                own = DTensor.__new__(DTensor, gradient, parameter._spec, requires_grad=False)
                parameter.grad = own
                return
            if _lies_as(kept, parameter, gradient):
                kept._local_tensor.add_(gradient)
                increment_version(kept._local_tensor)
                increment_version(kept)
                return
        self._left[number] = gradient

    def take_those(self, numbers: Sequence[int], gradients: list[torch.Tensor | None]) -> None:
        """These of a list, which loses them."""
        if not self._is_for_all:
            return
        taken = [
            (number, gradient) for number in numbers if (gradient := gradients[number]) is not None
        ]
        if not self._give(taken):
            for number, gradient in taken:
                self.take(number, gradient)
        for number in numbers:
            gradients[number] = None

    def _give(self, taken: Sequence[tuple[int, torch.Tensor]]) -> bool:
        """Whether all have become the first gradients of their parameters, else none has."""
        if not taken or self._tensors[taken[0][0]].grad is not None:
            return False
        wholes: list[torch.Tensor | None] = [None] * len(self._tensors)
        for number, gradient in taken:
            parameter = self._tensors[number]
            if not isinstance(parameter, DTensor):
                return False
            view = self._views[number]
            own = gradient if view is None else gradient.view(parameter._local_tensor.shape)
            wholes[number] = _NEW(DTensor, own, parameter._spec, requires_grad=False)
        given: bool = OPS.give_leaves.default(self._gate, wholes)
        return given

    def rest(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What the node returns, where these come besides."""
        tensors, left = self._tensors, list(gradients)
        for number, gradient in enumerate(self._left):
            if gradient is not None:
                left[number] = gradient
        rest = [i for i, t in enumerate(tensors) if left[i] is not None and isinstance(t, DTensor)]
        if not rest:
            return left
        made: list[torch.Tensor | None] = [None] * len(left)
        for i in rest:
            parameter, gradient = tensors[i], left[i]
            assert isinstance(parameter, DTensor) and gradient is not None
            strides = parameter._local_tensor.view(gradient.shape).stride()
            made[i], left[i] = _gradient_of(parameter, gradient, strides), None
        found = accumulated(self._gate.grad_fn, tensors, made)
        return [found[i] if left[i] is None else left[i] for i in range(len(left))]


def _lies_as(kept: torch.Tensor, parameter: DTensor, gradient: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether a gradient of the rank's part may be added to what is there as it is."""
    if not isinstance(kept, DTensor) or kept.requires_grad or kept.dtype != gradient.dtype:
        return False
    return kept._spec is parameter._spec or kept.placements == parameter.placements


def those_apart(
    gradients: Sequence[torch.Tensor | None],
    tensors: Sequence[torch.Tensor],
    views: Sequence[Sequence[int] | None],
    others: Sequence[torch.Tensor],
) -> tuple[int, ...]:
    """The numbers of gradients of parameters, as ``GivenGradients`` takes them, that share no
    memory with another one or with one of ``others``, and that lie as the parts do."""
    theirs = {other.untyped_storage()._cdata for other in others}
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for number, gradient in enumerate(gradients):
        if gradient is not None:
            own = spans.setdefault(gradient.untyped_storage()._cdata, [])
            own.append((*_span(gradient), number))
    found = []
    for address, members in spans.items():
        members.sort()
        overlap = any(end > begin for (_, end, _), (begin, _, _) in pairwise(members))
        if not overlap and address not in theirs:
            found += [number for _, _, number in members]
    return tuple(n for n in sorted(found) if _lies_as_part(gradients[n], tensors[n], views[n]))


def those_besides(
    numbers: Sequence[int],
    gradients: Sequence[torch.Tensor | None],
    tensors: Sequence[torch.Tensor],
) -> tuple[int, ...]:
    """The numbers of other gradients of parameters that are as these once they are copied."""
    return tuple(
        number
        for number, (gradient, tensor) in enumerate(zip(gradients, tensors, strict=True))
        if gradient is not None
        and number not in numbers
        and isinstance(tensor, DTensor)
        and gradient.dtype == tensor.dtype
    )


def copied_as_parts(
    numbers: Sequence[int],
    gradients: list[torch.Tensor | None],
    tensors: Sequence[torch.Tensor],
    views: Sequence[Sequence[int] | None],
) -> None:
    """Of a list, these gradients of parameters, if they are there, are copied to lie as the parts
    do."""
    for number in numbers:
        gradient, view = gradients[number], views[number]
        if gradient is not None:
            part = local_tensor(tensors[number])
            strides = (part if view is None else part.view(view)).stride()
            own = gradient.new_empty_strided(gradient.shape, strides)
            gradients[number] = own.copy_(gradient)


def _lies_as_part(
    gradient: torch.Tensor | None, parameter: torch.Tensor, view: Sequence[int] | None
) -> bool:
    if gradient is None or not isinstance(parameter, DTensor):
        return False
    part = parameter._local_tensor if view is None else parameter._local_tensor.view(view)
    return (gradient.stride(), gradient.dtype) == (part.stride(), part.dtype)


class _LocalParts(torch.autograd.Function):
    """``beside`` is a leaf of its own: gradients for it are made in a backward that makes those of
    all leaves, and in no other."""

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[torch.Tensor], beside: torch.Tensor, *parameters: DTensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.parameters = parameters
        ctx.strides = [part.stride() for part in parts]
        ctx.beside = get_gradient_edge(beside).node
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True
            return None, None, *_differentiable(ctx.parameters, gradients)
        left = list(gradients)
        if is_executed(ctx.beside):
            _give_first(ctx.parameters, left, ctx.strides)
        if all(gradient is None for gradient in left):
            return None, None, *left
        made = [
            None if gradient is None else _gradient_of(parameter, gradient, strides)
            for parameter, gradient, strides in zip(ctx.parameters, left, ctx.strides, strict=True)
        ]
        return None, None, *accumulated(ctx, ctx.parameters, made)


def _differentiable(
    parameters: Sequence[DTensor], gradients: Sequence[torch.Tensor | None]
) -> Iterator[torch.Tensor | None]:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        yield None if gradient is None else differentiable_whole(gradient, parameter)


def _give_first(
    parameters: Sequence[DTensor],
    gradients: list[torch.Tensor | None],
    strides: Sequence[Sequence[int]],
) -> None:
    """Makes gradients that nobody waits for and that are as they should be the ``.grad`` of their
    parameters, and None in the list. Most are: a step has one for each parameter."""
    given = [id(gradient) for gradient in gradients if gradient is not None]
    if len(set(given)) < len(given):  # one tensor for two of them counts as held once
        return
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if (
            gradient is not None
            and is_plain(parameter)
            and not gradient.requires_grad
            and gradient.stride() == strides[i]
            and gradient.dtype == parameter.dtype
            and (_is_alone(gradient) or _claim(gradient))
        ):
            shape, spec = parameter._local_tensor.shape, parameter._spec
            own = gradient if gradient.shape == shape else gradient.view(shape)
            parameter.grad = DTensor.__new__(DTensor, own, spec, requires_grad=False)
            gradients[i] = None


def _gradient_of(parameter: DTensor, gradient: torch.Tensor, strides: Sequence[int]) -> DTensor:
    own, shape = own_gradient(gradient, strides), parameter._local_tensor.shape
    return as_whole(own if own.shape == shape else own.view(shape), parameter)


def accumulated(
    node: Any, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Makes gradients the ``.grad`` of their parameters, which are the operands of a node of
    autograd, and returns those that autograd has to add up, or that somebody waits for; what
    they are added to gets the layout of the parameter before. What autograd does with a
    ``DTensor`` that is the first gradient takes longer than to make that."""
    left = list(gradients)
    edges = node.next_functions[-len(left) :]
    for i, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if (
            gradient is not None
            and is_plain(parameter)
            and gradient.dtype == parameter.dtype
            and not gradient.requires_grad
            and is_executed(edges[i][0])
        ):
            parameter.grad = gradient
            left[i] = None
        elif gradient is not None:
            reduce_found(parameter, edges[i][0])
    return left


def is_plain(parameter: torch.Tensor) -> bool:
    """Whether a gradient would be the first, no hook waits for it, and the parameter has not been
    frozen since."""
    return parameter.grad is None and is_unwatched(parameter)


def is_unwatched(parameter: torch.Tensor) -> bool:
    """Whether no hook waits for a gradient, and the parameter has not been frozen since."""
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        return False
    return parameter.requires_grad


def is_for_grad(gradient: torch.Tensor, parameter: torch.Tensor, accumulate: Any) -> bool:
    """Whether it only is for ``.grad``: no hook of the parameter, ``torch.autograd.grad`` or
    second derivative waits for it. ``accumulate`` is the node that adds it."""
    if gradient.requires_grad or parameter._backward_hooks or not parameter.requires_grad:
        return False
    if parameter._post_accumulate_grad_hooks:
        return False
    return is_executed(accumulate)


def own_gradient(gradient: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The gradient, or a copy of it, as one that is no other parameter's and has these strides."""
    if gradient.stride() == strides and _claim(gradient):
        return gradient
    own = gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)
    _claim(own)
    return own


def _is_alone(gradient: torch.Tensor) -> bool:
    """Whether nobody else has its memory, or a part of that, as far as is seen at once."""
    if gradient._use_count() > _OWN_COUNT:  # type: ignore[attr-defined]
        return False
    return _holders(gradient) in _OWN_HOLDERS


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    """How many hold the storage, and, of a view, the tensor that it was made of."""
    address, base = tensor.untyped_storage()._cdata, tensor._base
    count: int = torch._C._storage_Use_Count(address)
    return count, 0 if base is None else base._use_count()  # type: ignore[attr-defined]


def _claim(gradient: torch.Tensor) -> bool:
    """Makes its memory that of one parameter's gradient; False if somebody else has it. How
    many have the storage does not tell: gradients that were reduced together share one, which
    therefore keeps what is taken of it."""
    if gradient._use_count() > _OWN_COUNT:  # type: ignore[attr-defined]
        return False
    storage: Any = gradient.untyped_storage()
    start, end = _span(gradient)
    if start == end:
        return True
    try:
        taken: list[tuple[int, int]] = storage.spans_of_gradients  # in order
    except AttributeError:
        storage.spans_of_gradients = [(start, end)]
        return True
    place = bisect(taken, (start, end))
    if place > 0 and taken[place - 1][1] > start:
        return False
    if place < len(taken) and taken[place][0] < end:
        return False
    taken.insert(place, (start, end))
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The elements of its storage between which it lies."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return start, start + tensor.numel()
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in extents)
    return start, start + (reach + 1 if tensor.numel() else 0)


class _Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: list[int], x: torch.Tensor) -> torch.Tensor:
        ctx.found = found
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        ctx.found.append(gradient._use_count())  # type: ignore[attr-defined]
        return None, None


def _own_count() -> int:
    """How often a gradient is held that nobody else has: 1, or 2 before PyTorch 2.13."""
    found: list[int] = []
    with torch.enable_grad():
        x = torch.zeros(2, requires_grad=True)
        torch.autograd.backward((_Count.apply(found, x) * 2).sum())  # type: ignore[no-untyped-call]
    return found[0]


_OWN_COUNT = _own_count()
# Of tensors that nobody else has: one, and a view of one.
_OWN_HOLDERS = _holders(torch.zeros(2)), _holders(torch.zeros(2, 3).t())
