"""Random generators that a forward pass makes itself: ``torch.Generator().manual_seed(3)``.

Such a generator draws the same numbers in every call, as it is made and seeded in every call. So
they are constants: they are drawn once, while the model is captured, from the generator itself,
and are in the graph as other constants are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import source_line


class _Kind(type(torch._C.Generator)):  # type: ignore[misc]
    """Generators that were made before are generators, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Own(torch._C.Generator, metaclass=_Kind):
    """A generator that was made while the model is captured."""

    def seed(self) -> NoReturn:
        """Refused: another seed each time."""
        raise TensorOptError(
            "the forward pass seeds a torch.Generator that it makes with Generator.seed(), another "
            "seed in every call, which would stay that of the capture; draw without a generator, "
            "or seed it with a number (manual_seed)"
        )


class DrawnOnce(TorchFunctionMode):
    """Calls with a generator that was made in the forward pass give constants."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not any(type(value) is _Own for value in (*args, *kwargs.values())):
            if func is torch.Tensor.random_ and len(args) == 3 and args[2] is not None:
                return _between(*args, **kwargs)
            return func(*args, **kwargs)
        _check_operands(func, args, kwargs)
        result = _drawn(func, args, kwargs)
        if args and isinstance(args[0], torch.Tensor) and getattr(func, "__name__", "")[-1:] == "_":
            return args[0].copy_(result)  # x.normal_(generator=own)
        return result


@contextmanager
def own_generators_drawn() -> Iterator[None]:
    """As long as it lasts, generators that are made are known to be the forward pass's own."""
    before = torch.Generator
    torch.Generator = _Own  # type: ignore[misc]
    try:
        with DrawnOnce():
            yield
    finally:
        torch.Generator = before  # type: ignore[misc]


def refuse_objects(exported: torch.export.ExportedProgram) -> None:
    """What a graph cannot take: generators that live longer than a call, and other objects.

    Raises:
        TensorOptError: there is one, and where it is used.
    """
    specs = exported.graph_signature.input_specs
    placeholders = exported.graph_module.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind is not InputKind.CUSTOM_OBJ:
            continue
        user = next(iter(node.users), node)
        kind = getattr(node.meta.get("val"), "class_fqn", "object")
        if kind == "torch._C.Generator":
            raise TensorOptError(
                f"operator '{user.name}' ({user.target}) draws from a torch.Generator that the "
                "forward pass does not make itself; its state goes on from call to call, which a "
                "captured graph does not keep: draw from the default generator, or give the "
                f"numbers as an input{source_line(user)}"
            )
        raise TensorOptError(
            f"operator '{user.name}' ({user.target}) takes an object of {kind}, and captured "
            f"graphs take tensors and numbers only: give its tensors instead{source_line(user)}"
        )


def _check_operands(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Numbers must depend on shapes only."""
    name = getattr(func, "__name__", str(func))
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    fills = name.endswith("_") and len(tensors) == 1 and tensors[0] is args[0]
    if tensors and not fills:
        raise TensorOptError(
            f"the forward pass calls '{name}' on tensors with a torch.Generator of its own, of "
            "which the numbers depend on values; draw numbers of a shape (torch.rand, x.normal_) "
            "with the generator, or draw without one"
        )


def _between(memory: torch.Tensor, low: int, high: int, **kwargs: Any) -> torch.Tensor:
    """``random_(low, high)``, of which a graph cannot name the argument ``from``."""
    return memory.random_(high - low, **kwargs).add_(low)


def _drawn(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The numbers, as a constant of the graph that is made."""
    with _disable_current_modes():
        real = pytree.tree_map_only(torch.Tensor, _memory, (tuple(args), dict(kwargs)))
        numbers = func(*real[0], **real[1])
    constant: torch.Tensor = torch.ops.aten.lift_fresh_copy.default(numbers)
    return constant


def _memory(fake: torch.Tensor) -> torch.Tensor:
    """Real memory of the same shape and strides."""
    device = "cpu" if fake.is_meta else fake.device
    strides = tuple(int(stride) for stride in fake.stride())
    shape = tuple(int(size) for size in fake.shape)
    return torch.empty_strided(shape, strides, dtype=fake.dtype, device=device)
