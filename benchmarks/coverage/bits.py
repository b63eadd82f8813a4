"""Whether a captured graph computes the very bits of the module."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from benchmarks.coverage.zoo import Example
from tensoropt_torch.frontend import CapturedModel, capture


def loss_of(output: Any) -> torch.Tensor:
    """The loss, or the loss in an output that holds one."""
    loss = output if isinstance(output, torch.Tensor) else output["loss"]
    assert isinstance(loss, torch.Tensor)
    return loss


def run_captured(captured: CapturedModel, example: Example) -> Any:
    """The output of the captured graph, with the parameters and buffers of the module."""
    keywords = dict(sorted(example.kwargs.items()))  # in the order of the graph
    inputs = iter(pytree.tree_leaves(((*example.args, *example.targets), keywords)))
    own: dict[str, torch.Tensor] = {
        **captured.constants,
        **dict(example.model.named_parameters(remove_duplicate=False)),
        **dict(example.model.named_buffers(remove_duplicate=False)),
    }
    values = [
        next(inputs)
        if source.kind in ("input", "literal")
        else source.as_seen(own[source.names[0]])
        for source in captured.sources
    ]
    outputs = fx.Interpreter(captured.graph_module).run(*values, enable_io_processing=False)
    return pytree.tree_unflatten(list(outputs), captured.out_spec)


def differing_bits(
    example: Example, captured: CapturedModel | None = None, rounding: float = 0.0
) -> list[str]:
    """What differs after one training step: loss, gradients, buffers by name.

    The example is captured if it was not. Its own parameters and buffers are used. Gradients
    may differ by ``rounding``, of their largest element.
    """
    module = copy.deepcopy(example)
    captured = captured or capture(example.model, example.args, **example.keywords)
    expected, got = loss_of(_seeded(module)), loss_of(_seeded(example, captured))
    expected.backward()
    got.backward()
    return list(_differences(module, example, torch.equal(expected, got), rounding))


def _seeded(example: Example, captured: CapturedModel | None = None) -> Any:
    torch.manual_seed(0)
    return example.output() if captured is None else run_captured(captured, example)


def _differences(
    expected: Example, got: Example, same_loss: bool, rounding: float
) -> Iterator[str]:
    if not same_loss:
        yield "loss"
    ours = dict(got.model.named_parameters())
    for name, parameter in expected.model.named_parameters():
        if not _same(parameter.grad, ours[name].grad, rounding):
            yield f"gradient of {name}"
    buffers = dict(got.model.named_buffers())
    for name, buffer in expected.model.named_buffers():
        if not _same(buffer, buffers[name]):
            yield f"buffer {name}"


def _same(one: torch.Tensor | None, other: torch.Tensor | None, rounding: float = 0.0) -> bool:
    if one is None or other is None:
        return one is other
    if rounding == 0:
        return torch.equal(one, other)
    return bool((one - other).abs().max() <= rounding * one.abs().max())
