"""Calls of Python in a captured graph: one process, against the module itself."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function

from tensoropt_torch import TensorOptError
from tensoropt_torch.frontend import CallContext, CapturedModel, capture
from tensoropt_torch.frontend.python_calls import is_python_call, remember_hooks, run_by


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Scaled(Function):
    """Its backward is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return ctx.scale * g, None


class Applied(nn.Module):
    """A linear layer, and what a function makes of its result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.other = nn.Parameter(torch.rand(8))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(self, self.layer(x))
        return result.sum()


def calls(captured: CapturedModel) -> list[str]:
    return [str(n.target) for n in captured.graph_module.graph.nodes if is_python_call(n)]


def gradients_of_graph(model: nn.Module, captured: CapturedModel, x: torch.Tensor) -> Any:
    """Loss and gradients of the captured graph, whose hooks find the model's own modules."""
    own = dict(model.named_parameters())
    values = []
    for source in captured.sources:
        name = source.names[0]
        values.append(source.as_seen(own[name]) if name in own else captured.constants.get(name, x))
    remember_hooks(model, model)
    with run_by(model):
        (loss,) = captured.graph_module(*values)
    return loss, torch.autograd.grad(loss, list(own.values()), allow_unused=True)


def gradients_of_module(model: nn.Module, x: torch.Tensor) -> Any:
    loss = model(x)
    return loss, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def check_equal(model: nn.Module) -> CapturedModel:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    captured = capture(model, (x,))
    got = gradients_of_graph(copy.deepcopy(model), captured, x)
    torch.testing.assert_close(got, gradients_of_module(model, x))
    return captured


def refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(TensorOptError, match=words):
        capture(Applied(function), (torch.randn(4, 8),))


# --- Functions -------------------------------------------------------------------------------


def test_a_function_is_one_node() -> None:
    captured = check_equal(Applied(lambda m, h: Scaled.apply(h, 3.0)))
    (name,) = calls(captured)
    assert name.startswith("tensoropt_python.Scaled_")


def test_it_is_one_node_in_evaluation() -> None:
    captured = capture(
        Applied(lambda m, h: Scaled.apply(h, 3.0)).eval(),
        (torch.randn(4, 8),),
        context=CallContext(gradients=False),
    )
    assert len(calls(captured)) == 1


def test_autocast_is_on_inside_as_it_was_around_the_call() -> None:
    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            ctx.casts = torch.is_autocast_enabled("cpu")
            return x @ w.t()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            assert ctx.casts
            x, w = ctx.saved_tensors
            return (g.float() @ w) * 2, g.float().t() @ x

    def under_autocast(m: Applied, h: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            made = Product.apply(h, m.layer.weight)
        assert made.dtype == torch.bfloat16
        return made.float()

    check_equal(Applied(under_autocast))


def test_gradients_are_off_inside_as_they_were_around_the_call() -> None:
    def without(m: Applied, h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made = Scaled.apply(h, 2.0)
        return h * made

    check_equal(Applied(without))


def test_keyword_defaults_and_containers_are_arguments() -> None:
    class Sum(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, others: dict[str, Any]) -> torch.Tensor:
            ctx.save_for_backward(others["list"][0])
            return x + others["list"][0] * others["factor"]

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return g * ctx.saved_tensors[0], None

    def call(m: Applied, h: torch.Tensor) -> torch.Tensor:
        return Sum.apply(h, {"list": [h.detach().cos()], "factor": 3})

    check_equal(Applied(call))


def test_names_are_the_same_in_every_process() -> None:
    """Also of what is made in a function, and of a set of strings."""
    code = (
        "import torch, warnings; warnings.simplefilter('ignore')\n"
        "from tests.frontend.test_python_calls import *\n"
        "from tests.distributed.python_functions import scaling\n"
        "model = Applied(lambda m, h: scaling(2.0).apply(h) + Scaled.apply(h, 2.0))\n"
        "c = capture(model, (torch.randn(4, 8),))\n"
        "print(calls(c), c.fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(found) == 1 and "Scale_" in found.pop()


def test_other_plain_arguments_are_another_operator() -> None:
    one, other = (
        capture(Applied(lambda m, h, s=s: Scaled.apply(h, s)), (torch.randn(4, 8),))
        for s in (1.0, 2.0)
    )
    assert calls(one) != calls(other) and one.fingerprint != other.fingerprint


def test_two_objects_that_look_alike_are_told_apart() -> None:
    class Factor:
        def __init__(self, value: float) -> None:
            self.value = value

    class Times(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: Factor) -> torch.Tensor:
            ctx.factor = factor.value
            return x * factor.value

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return g * ctx.factor * 5, None

    two, three = Factor(2.0), Factor(3.0)
    captured = check_equal(Applied(lambda m, h: Times.apply(h, two) + Times.apply(h.sin(), three)))
    assert len(set(calls(captured))) == 1


def test_a_parameter_that_is_no_argument_is_refused() -> None:
    class Layer(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, module: Applied) -> torch.Tensor:
            return x * module.other

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return g, None

    refused(lambda m, h: Layer.apply(h, m), "'.*Layer'.*no argument of apply.*pass it")


def test_a_parameter_that_only_backward_uses_is_refused() -> None:
    class Late(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, module: Applied) -> torch.Tensor:
            ctx.module = module
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return g * ctx.module.other, None

    refused(lambda m, h: Late.apply(h, m), "its backward uses a tensor.*no argument of apply")


def test_changing_an_operand_is_refused() -> None:
    class Add(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.add_(1)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g

    refused(lambda m, h: Add.apply(h * 1), "changes its tensor argument 0 in place")


def test_a_backward_that_draws_is_refused() -> None:
    class Noise(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g + torch.randn_like(g)

    refused(lambda m, h: Noise.apply(h), "draws random numbers in its backward")


def test_what_is_no_tensor_among_the_outputs_is_refused() -> None:
    class Nested(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            return x * 1, [x * 2]

        @staticmethod
        def backward(ctx: Any, *g: Any) -> Any:
            return g[0]

    refused(lambda m, h: Nested.apply(h)[0], "returns a list among its outputs")


def test_writing_to_what_may_be_an_operand_under_another_name_is_refused() -> None:
    def later(m: Applied, h: torch.Tensor) -> torch.Tensor:
        h = h * 1
        y: torch.Tensor = Scaled.apply(h, 2.0)
        h += 1
        return y

    model, without = Applied(later), CallContext(gradients=False)
    with pytest.raises(TensorOptError, match=r"what '.*' gave may be another name of"):
        capture(model, (torch.randn(4, 8),), context=without)


def test_pytorchs_own_functions_are_left_alone() -> None:
    def checkpointed(m: Applied, h: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = torch.utils.checkpoint.checkpoint(torch.sin, h, use_reentrant=True)
        return made + torch.utils.checkpoint.checkpoint(torch.cos, h, use_reentrant=False)

    captured = capture(Applied(checkpointed), (torch.randn(4, 8),))
    assert calls(captured) == [] and captured.checkpoints == 2


# --- Hooks -----------------------------------------------------------------------------------


def test_a_hook_sees_every_use_of_its_tensor() -> None:
    def hooked(m: Applied, h: torch.Tensor) -> torch.Tensor:
        earlier = h.sin()
        h.register_hook(lambda g: g.clamp(max=0.5))
        return earlier + h.exp()

    assert len(calls(check_equal(Applied(hooked)))) == 1


def test_hooks_run_in_the_order_in_which_they_are_set() -> None:
    def hooked(m: Applied, h: torch.Tensor) -> torch.Tensor:
        h.register_hook(lambda g: g.clamp(max=0.5))
        h.register_hook(lambda g: g * 3)
        return h.exp()

    check_equal(Applied(hooked))


def test_a_hook_of_an_output_of_several() -> None:
    def hooked(m: Applied, h: torch.Tensor) -> torch.Tensor:
        a, b = h.chunk(2, -1)
        b.register_hook(functools.partial(torch.mul, torch.tensor(3.0)))
        return a.exp() * b

    check_equal(Applied(hooked))


def test_a_hook_under_autocast_and_in_a_region_without_gradient() -> None:
    def hooked(m: Applied, h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            h.register_hook(lambda g: g * 3)
        return h.exp()

    check_equal(Applied(hooked))


def test_hooks_of_modules_share_what_they_see() -> None:
    model = Applied(lambda m, h: h.exp())
    model.layer.register_full_backward_pre_hook(lambda module, gout: (gout[0].clamp(max=1),))
    model.layer.register_full_backward_hook(
        lambda module, gin, gout: tuple(g if g is None else g * gout[0].sum() for g in gin)
    )
    captured = check_equal(nn.Sequential(nn.Linear(8, 8), model))
    assert len(calls(captured)) == 2


def _forward_hook(m: Applied, h: torch.Tensor, set_it: Callable[..., Any]) -> torch.Tensor:
    set_it(m, h)
    return h.exp()


@pytest.mark.parametrize(
    ("set_it", "words"),
    [
        (lambda m, h: h.retain_grad(), "retain_grad"),
        (lambda m, h: h.grad_fn.register_hook(lambda a, b: None), "grad_fn.register_hook"),
        (lambda m, h: h.grad_fn.register_prehook(lambda a: None), "grad_fn.register_prehook"),
        (
            lambda m, h: torch.autograd.graph.register_multi_grad_hook([h], lambda g: None),
            "register_multi_grad_hook",
        ),
        (
            lambda m, h: torch.autograd.graph.register_multi_grad_hook(
                [h], lambda g: None, mode="any"
            ),
            "register_multi_grad_hook",
        ),
        (lambda m, h: m.other.register_hook(lambda g: g), "'.*other'.*one more after every call"),
        (
            lambda m, h: m.other.register_post_accumulate_grad_hook(lambda p: None),
            "post-accumulate-grad",
        ),
        (lambda m, h: h.register_hook(lambda g: g).remove(), "cannot\\s+be removed"),
        (lambda m, h: h.register_hook(lambda g, held=[h]: g * held[0]), "inside of a list"),
    ],
)
def test_what_cannot_be_a_part_of_the_graph_is_refused(
    set_it: Callable[..., Any], words: str
) -> None:
    refused(lambda m, h: _forward_hook(m, h, set_it), words)


def test_legacy_hooks_are_refused() -> None:
    model = Applied(lambda m, h: h)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.layer.register_backward_hook(lambda module, gin, gout: None)
    with pytest.raises(TensorOptError, match=r"'layer'.*register_full_backward_hook"):
        capture(model, (torch.randn(4, 8),))


def test_nothing_of_pytorch_stays_replaced() -> None:
    before = torch.Tensor.register_hook, torch.Tensor.retain_grad, Scaled.apply.__func__
    with pytest.raises(TensorOptError):
        capture(
            Applied(lambda m, h: _forward_hook(m, h, lambda m, h: h.retain_grad())),
            (torch.randn(4, 8),),
        )
    after = torch.Tensor.register_hook, torch.Tensor.retain_grad, Scaled.apply.__func__
    assert before == after
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
    x = torch.ones(2, requires_grad=True)
    (x * 2).register_hook(lambda g: None).remove()
