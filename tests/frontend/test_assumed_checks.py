"""Checks of values in a forward pass: those that only raise are assumed to pass."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.coverage.bits import run_captured
from benchmarks.coverage.zoo import Example
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes.nodes import argument, target_name

CLASSES = 5
Body = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Checked(nn.Module):
    """A layer whose output passes through a function that looks at the labels."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.linear = nn.Linear(4, CLASSES)
        self.body = body

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.body(self.linear(x), labels).sum()


def raises(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels.max() >= CLASSES:
        raise ValueError(f"labels are below {CLASSES}")
    return y


def raises_unless(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels is not None and not (labels < CLASSES).all():
        raise ValueError("too large")
    return y


def raises_on_either(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if bool((labels >= CLASSES).any()) or (
        labels.min() < 0  # the second line of the condition
    ):
        raise ValueError("out of range")
    return y


def asserts(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    assert (labels < CLASSES).all(), "too large"
    return y


def raises_else(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels.max() >= CLASSES:
        raise ValueError("too large")
    elif y.dim() == 2:  # noqa: RET506
        y = y * 2
    return y


def raises_through(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    try:
        if labels.max() >= CLASSES:
            raise KeyError("too large")
    except KeyError as error:
        raise ValueError("labels") from error
    return y


PASSED = [raises, raises_unless, raises_on_either, asserts, raises_else, raises_through]


@pytest.mark.parametrize("body", PASSED)
def test_a_check_that_only_raises_is_assumed_to_pass(body: Body) -> None:
    model, x, labels = Checked(body), torch.randn(6, 4), torch.arange(6) % CLASSES
    where = re.escape(f"{__file__}:")
    with pytest.warns(UserWarning, match=f"the check at {where}.*assumes that it passes"):
        captured = capture(model, (x, labels))
    got = captured.graph_module(*_values(captured, model), x, labels)[0]
    torch.testing.assert_close(got, model(x, labels))


def _values(captured: Any, model: nn.Module) -> list[torch.Tensor]:
    parameters = dict(model.named_parameters())
    return [parameters[source.names[0]] for source in captured.parameters]


def test_the_warning_names_the_line() -> None:
    lines, first = inspect.getsourcelines(raises)
    with pytest.warns(UserWarning, match="the check at") as warned:
        capture(Checked(raises), (torch.randn(6, 4), torch.zeros(6, dtype=torch.long)))
    assert f"{__file__}:{first + 1} ({lines[1].strip()})" in str(warned[0].message)


def branches(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels.max() >= CLASSES:
        y = y + 1
    return y


def does_more(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    seen = []
    if labels.max() >= CLASSES:
        seen.append(labels)
        raise ValueError("too large")
    return y


def is_caught(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    try:
        if labels.max() >= CLASSES:
            raise KeyError("too large")
    except KeyError:
        y = y + 1
    return y


def is_caught_by_the_caller(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    try:
        return raises(y, labels)
    except ValueError:
        return y + 1


def chooses(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return y + (1 if labels.max() >= CLASSES else 2)


def chooses_in_a_check(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if (labels.min() if labels.max() > 2 else labels.max()) >= CLASSES:
        raise ValueError("too large")
    return y


def loops(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    while labels.max() >= CLASSES:
        raise ValueError("too large")
    return y


def reads(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if labels.max().item() >= CLASSES:
        raise ValueError("too large")
    return y


REFUSED = [
    branches,
    does_more,
    is_caught,
    is_caught_by_the_caller,
    chooses,
    chooses_in_a_check,
    loops,
    reads,
]


@pytest.mark.parametrize("body", REFUSED)
def test_what_else_depends_on_values_is_refused(body: Body) -> None:
    with pytest.raises(TensorOptError, match="needs the value of a tensor"):
        capture(Checked(body), (torch.randn(6, 4), torch.zeros(6, dtype=torch.long)))


def test_the_check_of_wav2vec2_passes() -> None:
    """``Wav2Vec2ForCTC`` of Hugging Face looks at its labels and raises."""
    hf = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": 16}
    convolutions = {"conv_dim": [8], "conv_kernel": [8], "conv_stride": [4]}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    config = hf.Wav2Vec2Config(
        **sizes,
        **convolutions,
        **positions,
        num_attention_heads=2,
        num_feat_extract_layers=1,
        apply_spec_augment=False,
        layerdrop=0.0,
    )
    given = {"input_values": torch.randn(2, 160), "labels": torch.ones(2, 3, dtype=torch.long)}
    with pytest.warns(
        UserWarning, match=r"the check at .*labels.max\(\) >= self.config.vocab_size"
    ):
        capture(hf.Wav2Vec2ForCTC(config), kwargs=given)


def causal(length: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(length)


def hides_the_one_before(length: int) -> torch.Tensor:
    hidden = torch.arange(length)[:, None] == torch.arange(length)[None] + 1
    return torch.zeros(length, length).masked_fill(hidden, -torch.inf)


class Decoder(nn.Module):
    """Layers that look whether their mask is causal."""

    def __init__(self, mask: Callable[[int], torch.Tensor]) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)
        self.mask = mask

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layers(x, memory, tgt_mask=self.mask(x.shape[1]))
        return hidden.square().mean()


@pytest.mark.parametrize(("mask", "masked"), [(causal, 0), (hides_the_one_before, 2)])
def test_layers_that_look_at_their_masks_use_them(
    mask: Callable[[int], torch.Tensor], masked: int
) -> None:
    model, inputs = Decoder(mask), torch.randn(2, 3, 6, 16).unbind()
    captured = capture(model, inputs)
    calls = [
        node
        for node in captured.graph_module.graph.nodes
        if target_name(node) == "aten.scaled_dot_product_attention.default"
    ]
    assert len(calls) == 4
    assert sum(argument(node, "attn_mask") is not None for node in calls) == masked
    loss = run_captured(captured, Example(model, inputs))
    torch.testing.assert_close(loss, model(*inputs))
