"""The sweep over families of transformers: small models, verdicts, and their page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.families import page
from benchmarks.families.configs import small_config
from benchmarks.families.heads import families
from benchmarks.families.processes import studied
from benchmarks.families.study import NotBuiltError, build, compare
from tests.distributed.harness import PRELOADED

ROOT = Path(__file__).parents[2]


def test_families_are_found_with_the_class_that_is_trained() -> None:
    assert len(families()) > 80
    assert families()["llama"][0] == ("CAUSAL_LM", "LlamaForCausalLM")
    assert families()["bert"][0] == ("CAUSAL_LM", "BertLMHeadModel")
    assert families()["vit"][0] == ("IMAGE_CLASSIFICATION", "ViTForImageClassification")


def test_configurations_are_small_with_their_parts() -> None:
    config = small_config("llava")
    assert config.text_config.hidden_size == 32
    assert config.vision_config.num_hidden_layers == 2
    assert config.image_token_id < config.text_config.vocab_size


def test_each_family_has_a_process_and_a_verdict() -> None:
    found = dict(studied(["llama", "vit"], jobs=1, limit_s=240, preloaded=PRELOADED))
    assert found.keys() == {"llama", "vit"}
    for record in found.values():
        assert record["verdict"] == "equal"
        assert record["loss"] == "own"
        assert record["wrong"] == []


def test_a_family_that_takes_too_long_is_ended() -> None:
    ((family, record),) = studied(["t5"], jobs=1, limit_s=0.0, preloaded=PRELOADED)
    assert (family, record["verdict"]) == ("t5", "too slow")


class Scaled(torch.autograd.Function):
    """Gives its operand, with half of the gradient."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


def test_a_graph_with_another_gradient_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module whose hook halves a small gradient, which its graph does not have."""
    _, _, example = build("gpt2")
    capture = compare.__globals__["capture"]

    def captured_before_it_is_changed(*args: object, **keywords: object) -> object:
        result = capture(*args, **keywords)
        layer = example.model.get_submodule("transformer.h.0.ln_1")
        layer.register_forward_hook(lambda _, __, output: Scaled.apply(output))
        return result

    monkeypatch.setitem(compare.__globals__, "capture", captured_before_it_is_changed)
    record = compare(replace(example))
    assert record["verdict"] == "different"
    assert any("transformer.h.0.ln_1.weight" in text for text in record["wrong"])


def test_a_family_without_a_model_says_why() -> None:
    with pytest.raises(NotBuiltError, match="timm"):
        build("timm_wrapper")


def test_the_page_has_a_row_for_each_family_that_is_built(tmp_path: Path) -> None:
    file = tmp_path / "families.md"
    marks = "<!-- table: {} -->\nold\n<!-- end -->\n"
    file.write_text(marks.format("verdicts") + marks.format("families"))
    record = {
        "a": {"verdict": "equal", "head": "A", "loss": "own", "operators": 3, "same_bits": True},
        "b": {"verdict": "refused", "head": "B", "loss": "outputs", "why": "a | b"},
        "c": {"verdict": "not built", "why": "timm"},
    }
    page.fill_page({"families": record}, file)
    text = file.read_text()
    assert "| a | A | 3 | equal, same bits |" in text
    assert "| b | B, squares of its outputs | - | refused: a / b |" in text
    assert "| not built | 1 |" in text
    assert "| c |" not in text
