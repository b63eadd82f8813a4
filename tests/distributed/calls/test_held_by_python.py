"""Functions, hooks and objects that hold something of the model: it is that of the parallel
module, whatever has changed since the capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tensoropt_torch import TensorOptError, auto_parallel
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind

HERE = "tests.distributed.calls.test_held_by_python"


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    draw = torch.randn
    return [
        (draw(8, 8, generator=generator), draw(8, 8, generator=generator)) for _ in range(count)
    ]


class Net(nn.Module):
    """With something in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(8, 16), nn.Linear(16, 8), 1.0

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h.tanh()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.b(self.middle(self.a(x))), y)


class Reversed(torch.autograd.Function):
    """What it is given says by how much."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, holder: Any) -> torch.Tensor:
        ctx.holder = holder
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return -ctx.holder.scale * gradient, None


class Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
        ctx.function = function
        made: torch.Tensor = function(x)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.function(gradient), None


class Holder:
    scale = 1.0

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        return h * self.scale


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float = 1.0


class GivenSelf(Net):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Reversed.apply(h, self)
        return made.tanh()


class GivenObject(Net):
    def __init__(self) -> None:
        super().__init__()
        self.holder = Holder()

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Reversed.apply(h, self.holder)
        return made.tanh()


class GivenMethod(Net):
    def scaled(self, h: torch.Tensor) -> torch.Tensor:
        return h * self.scale

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Called.apply(h, self.scaled)
        return made.tanh()


class GivenClosure(Net):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = Called.apply(h, lambda t: t * self.scale)
        return made.tanh()


class CallsObject(GivenObject):
    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return self.holder(h).tanh()


class ReadsSlots(Net):
    def __init__(self) -> None:
        super().__init__()
        self.holder = Slots()

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h.tanh() * self.holder.scale


class Inner(nn.Module):
    def __init__(self, table: dict[str, float]) -> None:
        super().__init__()
        self.table = table

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.tanh() * self.table["scale"]


class Shared(Net):
    """Two modules have one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = {"scale": 1.0}
        self.inner = Inner(self.table)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return self.inner(h)


class Masked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(16)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h.tanh() * self.mask


def set_scale(module: Any, number: int) -> None:
    module.scale = 1.0 + 0.3 * number


def set_scale_of_holder(module: Any, number: int) -> None:
    module.holder.scale = 1.0 + 0.3 * number


def set_entry(module: Any, number: int) -> None:
    module.table["scale"] = 1.0 + 0.3 * number


def set_data(module: Any, number: int) -> None:
    module.mask.data = torch.full((16,), 1.0 + 0.3 * number)


def hook_with_model(module: nn.Module) -> None:
    module.get_submodule("a").register_forward_hook(lambda _, __, out: out * module.scale)


def write_data_after(module: nn.Module) -> None:
    def shrink(parameter: torch.Tensor) -> None:
        parameter.data.mul_(0.99)

    module.get_parameter("a.weight").register_post_accumulate_grad_hook(shrink)


def given_self() -> Kind:
    return Kind(GivenSelf, batches(3), between=set_scale)


def given_object() -> Kind:
    return Kind(GivenObject, batches(3), between=set_scale_of_holder)


def given_method() -> Kind:
    return Kind(GivenMethod, batches(3), between=set_scale)


def given_closure() -> Kind:
    return Kind(GivenClosure, batches(3), between=set_scale)


def calls_object() -> Kind:
    return Kind(CallsObject, batches(3), between=set_scale_of_holder)


def reads_slots() -> Kind:
    return Kind(ReadsSlots, batches(3), between=set_scale_of_holder)


def shared_container() -> Kind:
    return Kind(Shared, batches(3), between=set_entry)


def set_by_data() -> Kind:
    return Kind(Masked, batches(3), between=set_data)


def hook_that_holds_the_model() -> Kind:
    return Kind(Net, batches(3), before=hook_with_model, between=set_scale)


def hook_that_writes_data() -> Kind:
    return Kind(Net, batches(3), before=write_data_after)


KINDS = (
    given_self,
    given_object,
    given_method,
    given_closure,
    calls_object,
    reads_slots,
    shared_container,
    set_by_data,
    hook_that_holds_the_model,
    hook_that_writes_data,
)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_kinds_give_what_one_process_gives(kind: str, world: int) -> None:
    assert run_ranks(world, "tests.distributed.kinds:check", f"{HERE}:{kind}") == [[]] * world


def removed_hook(_: None) -> str:
    x, y = batches(1)[0]
    model = Net()
    handle = model.a.register_forward_hook(lambda _, __, out: out * 2)
    parallel = auto_parallel(model, (x, y), measure=False)
    parallel(x, y)
    handle.remove()
    with pytest.raises(TensorOptError) as caught:
        parallel(x, y)
    return str(caught.value)


def test_a_forward_hook_that_is_removed_later_is_told() -> None:
    for text in run_ranks(2, f"{HERE}:removed_hook"):
        assert "module 'a' of the model has other forward hooks" in text
