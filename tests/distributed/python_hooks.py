"""Modules with hooks, each set in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tests.distributed.kinds import Kind
from tests.distributed.python_functions import Classifier, batches


class TensorHook(Classifier):
    """Clips a gradient, as for recurrent networks; uses of the tensor before and after."""

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        earlier = h.sin()
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
        return h * 2 + earlier


class TwoHooks(Classifier):
    """In the order in which they are set; the second only looks."""

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        h.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
        h.register_hook(lambda g: None)
        h.register_hook(lambda g: g * 7)
        return h.cos()


class HoldingHook(Classifier):
    """A hook that uses tensors of forward, a parameter and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.5
        self.scale = nn.Parameter(torch.rand(32) + 0.5)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        mask = (h > 0) * 1.0
        scale = self.scale
        h.register_hook(lambda g: g * mask * scale * self.factor)
        return h.exp() * mask * self.scale


class NormHook(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        h.register_hook(_by_norm)
        return h.exp()


def _by_norm(g: torch.Tensor) -> torch.Tensor:
    return g * (1e-2 / g.norm()).clamp(max=1)


class Blocks(Classifier):
    """A submodule that gets two tensors and something else, and gives two."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        a, b = self.block(h, 2, h.sin())
        return a + b


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, times: int, y: torch.Tensor) -> Any:
        return self.inner(x * times).tanh(), x * y


def _scaled_inputs(module: nn.Module, gin: Any, gout: Any) -> Any:
    assert type(module).__name__ in ("Block", "Linear", "Blocks"), module
    assert all(g is None or not isinstance(g, DTensor) for g in (*gin, *gout))
    return tuple(None if g is None else g * (1 + gout[0].norm()) for g in gin)


def _scaled_outputs(module: nn.Module, gout: Any) -> Any:
    return tuple(g / (1 + g.norm()) for g in gout)


def full_backward(model: nn.Module) -> None:
    block = model.get_submodule("block")
    block.register_full_backward_hook(_scaled_inputs)
    block.register_full_backward_hook(lambda module, gin, gout: None)
    block.get_submodule("inner").register_full_backward_hook(_scaled_inputs)


def backward_pre(model: nn.Module) -> None:
    model.get_submodule("block").register_full_backward_pre_hook(_scaled_outputs)


def both_of_modules(model: nn.Module) -> None:
    full_backward(model)
    backward_pre(model)
    model.get_submodule("first").register_full_backward_hook(  # nothing of its inputs is trained
        lambda module, gin, gout: None
    )
    model.register_full_backward_pre_hook(lambda module, gout: (gout[0] * 3,))


def removed(model: nn.Module) -> None:
    handle = model.get_submodule("block").register_full_backward_hook(_scaled_inputs)
    handle.remove()


def masked_weight(model: nn.Module) -> None:
    mask = torch.zeros(32, 1)
    mask[::2] = 1
    weight = model.get_parameter("first.weight")
    weight.register_hook(lambda g: None)
    weight.register_hook(lambda g: g * mask)
    weight.register_hook(_by_norm)


def decayed(model: nn.Module) -> None:
    """A hook that uses the parameter, and another one."""
    for name in ("first.weight", "second.weight"):
        p, bias = model.get_parameter(name), model.get_parameter("first.bias")
        p.register_hook(lambda g, p=p, bias=bias: g + 0.1 * p + bias.sum())


def in_place(model: nn.Module) -> None:
    model.get_parameter("first.weight").register_hook(lambda g: (g.mul_(0.5), None)[1])


def accumulated(model: nn.Module) -> None:
    def hook(p: torch.Tensor) -> None:
        assert p.grad is not None and p.grad.shape == p.shape and not isinstance(p, DTensor)
        p.grad.mul_(1 / (1 + p.grad.norm() + p.norm()))

    model.get_parameter("first.weight").register_post_accumulate_grad_hook(hook)
    model.get_parameter("second.bias").register_post_accumulate_grad_hook(
        lambda p: setattr(p, "grad", p.grad * 2)
    )


def stepped(model: nn.Module) -> None:
    """An optimizer's step in backward."""

    def hook(p: torch.Tensor) -> None:
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    model.get_parameter("first.weight").register_post_accumulate_grad_hook(hook)


def doubled(model: nn.Module) -> None:
    """Right for whole tensors and for parts."""
    model.get_parameter("first.weight").register_hook(lambda g: g * 2)
    model.get_parameter("second.weight").register_post_accumulate_grad_hook(
        lambda p: (p.grad.mul_(3), None)[1]
    )


def _kind(make: Callable[[], nn.Module], **options: Any) -> Callable[[], Kind]:
    return lambda: Kind(make, batches(), **options)


KINDS = {
    "tensor": _kind(TensorHook),
    "tensor, sharded inputs": _kind(TensorHook, inputs="sharded"),
    "two": _kind(TwoHooks),
    "holding": _kind(HoldingHook),
    "norm": _kind(NormHook, inputs="sharded"),
    "full backward": _kind(Blocks, before=full_backward),
    "backward pre": _kind(Blocks, before=backward_pre, inputs="sharded"),
    "both of modules": _kind(Blocks, before=both_of_modules),
    "removed": _kind(Blocks, before=removed),
    "masked weight": _kind(Classifier, before=masked_weight),
    "decayed": _kind(Classifier, before=decayed),
    "in place": _kind(Classifier, before=in_place),
    "accumulated": _kind(Classifier, before=accumulated),
    "stepped": _kind(Classifier, before=stepped),
    "doubled before": _kind(Classifier, before=doubled),
    "doubled after": _kind(Classifier, after=doubled),
}
