"""Modules that call ``torch.autograd.Function``, each in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tests.distributed.kinds import Kind

WIDTH, CLASSES, ROWS = 16, 4, 16


class Inject(Function):
    """Gives x on; the gradient of aux is a constant, whatever comes in."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, aux: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale, ctx.shape = scale, aux.shape
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, g.new_full(ctx.shape, ctx.scale), None


class Reverse(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -0.3 * g


class Round(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, steps: int) -> torch.Tensor:
        return (x * steps).round() / steps

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, None


class Nearest(Function):
    """Vector quantisation: an output that has no gradient, and one that is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, book: torch.Tensor) -> Any:
        which = torch.cdist(x, book).argmin(-1)
        ctx.save_for_backward(which)
        ctx.rows = book.shape[0]
        ctx.mark_non_differentiable(which)
        return book[which], which, None, 3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor, *_: Any) -> Any:
        (which,) = ctx.saved_tensors
        into = g.new_zeros(ctx.rows, g.shape[1])
        return g, into.index_add_(0, which, g)


class Blend(Function):
    """``setup_context``, several outputs, gradients only for who needs them, a default."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, weight: float = 0.25) -> Any:
        return x * weight + y, x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.weight = inputs
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None, h: torch.Tensor | None) -> Any:
        assert g is not None and h is None  # the second output is not used
        assert ctx.needs_input_grad == (True, False, False)
        return 2 * g * ctx.weight, None, None


class NormClip(Function):
    """Neither linear in the incoming gradient nor row by row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * (1e-2 / g.norm()).clamp(max=1)


class ByValue(Function):
    """A backward that asks for values."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*others)
        return x + sum(others)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        _, b = ctx.saved_tensors
        return (3 * g if float(g.sum()) > float(b.sum()) else 2 * g), None


class Mask(Function):
    """Draws numbers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float) -> torch.Tensor:
        kept = torch.bernoulli(torch.full_like(x, p))
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        return g * kept, None


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(self.middle(self.first(x).tanh())), y)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h


class Router(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.experts = nn.Parameter(torch.randn(4, 32, 32) / 6)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        p = self.gate(h).softmax(-1)
        top = F.one_hot(p.argmax(-1), 4).to(p)
        p = Inject.apply(p, (p.mean(0) * top.mean(0)).sum() * 4, 0.5)
        h = torch.einsum("bd,edf->bef", h, self.experts)
        return (h * (p * top).unsqueeze(-1)).sum(1)


class Injected(Classifier):
    """A gradient of a parameter that is the same for any number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return Inject.apply(h, self.scale.exp().sum(), 0.5)


class Reversed(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return Reverse.apply(h) * 2 + h


bound = Round.apply  # got before any capture


class Quantised(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        weight = bound(self.second.weight, 8)
        return bound(h, 4) + bound(F.linear(h, weight), 16).sum(-1, keepdim=True)


class Codebook(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.book = nn.Parameter(torch.randn(6, 32))

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        found, which, nothing, three = Nearest.apply(h, self.book)
        assert nothing is None and three == 3
        return found + which.unsqueeze(-1) * 0.1 * h


class Blended(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return Blend.apply(h, h.detach().cos())[0]


class Clipped(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return NormClip.apply(h)


class Valued(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return ByValue.apply(h, [h.detach() * 0.1, h.detach().sin()])


class Masked(Classifier):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return Mask.apply(h, 0.7)


class Local(Classifier):
    """A Function that was made in a function, with a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = [scaling(factor) for factor in (0.5, -2.0)]

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return self.scaled[0].apply(h) + self.scaled[1].apply(h.sin())


def scaling(factor: float) -> Any:
    class Scale(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return factor * g

    return Scale


class Unmoved(Classifier):
    """Under ``no_grad`` in the middle of forward; and a part of its operands without gradient."""

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            seen = Reverse.apply(h) + NormClip.apply(h)
        return h + seen


def batches() -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
            torch.randint(0, CLASSES, (ROWS,), generator=generator),
        )
        for _ in range(2)
    ]


def _drawing(module: nn.Module, *batch: Any) -> torch.Tensor:
    torch.manual_seed(5)
    loss: torch.Tensor = module(*batch)
    return loss


def _kind(make: Callable[[], nn.Module], **options: Any) -> Callable[[], Kind]:
    return lambda: Kind(make, batches(), **options)


KINDS = {
    "router": _kind(Router),
    "router, sharded inputs": _kind(Router, inputs="sharded"),
    "injected": _kind(Injected, inputs="sharded"),
    "reversed": _kind(Reversed),
    "quantised": _kind(Quantised),
    "codebook": _kind(Codebook),
    "blended": _kind(Blended, inputs="sharded"),
    "clipped": _kind(Clipped, inputs="sharded"),
    "valued": _kind(Valued),
    "local": _kind(Local),
    "unmoved": _kind(Unmoved),
    "masked": _kind(Masked, step=_drawing, options={"one_process_random": True}),
}
