"""Captured under casts or without gradients, a model computes the bits that it does there."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch.frontend import CallContext, CallForm, ModelStructure, capture
from tests.frontend.training import assert_bit_equal, train_captured, train_module


class Regions(nn.Module):
    """Casts of its own, and some that it lets nobody make."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4) -> a number."""
        y = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = y.float().softmax(-1)
        with torch.autocast("cpu", torch.float16):
            y = self.second(y)
        return self.third(y).float().square().mean()


CASTS = (("cpu", torch.bfloat16),)


class Under(nn.Module):
    """A module under casts."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(x)


@pytest.mark.parametrize("ambient", [False, True])
def test_casts_around_a_call_are_in_its_graph(ambient: bool) -> None:
    torch.manual_seed(0)
    model, x = Regions(), torch.randn(6, 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        captured = capture(model, (x,), context=CallContext(autocast=CASTS))
    got = train_captured(model, captured, (x,))
    expected = train_module(Under(model), (x,))
    assert_bit_equal(got, _without_prefix(expected))


def _without_prefix(result: Any) -> Any:
    """What ``Under`` gives, with the names of the module in it."""
    return tuple(
        {name.removeprefix("module."): value for name, value in part.items()}
        if isinstance(part, dict)
        else part
        for part in result
    )


@pytest.mark.parametrize("on_meta", [False, True])
def test_a_structure_gives_the_graph_of_its_model(on_meta: bool) -> None:
    model, x = Regions(), torch.randn(6, 4)
    if on_meta:
        model, x = model.to("meta"), x.to("meta")
    contexts = [CallContext(), CallContext(autocast=CASTS), CallContext(gradients=False)]
    structure = ModelStructure(copy.deepcopy(model), CallForm(1))
    seen = set()
    for context in contexts:
        expected = capture(model, (x,), context=context).fingerprint
        found = structure.capture(((x,), {}), structure.modes, structure.trained, context)
        assert found.fingerprint == expected
        seen.add(expected)
    assert len(seen) == len(contexts)
    assert all(p.is_meta for p in structure.module.parameters())


def test_without_gradients_nothing_requires_one() -> None:
    model, x = Regions(), torch.randn(6, 4)
    captured = capture(model, (x,), context=CallContext(gradients=False))
    values = [source.placeholder.meta["val"] for source in captured.sources]
    assert not any(value.requires_grad for value in values)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
