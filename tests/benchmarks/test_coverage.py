"""The study of a model and its row in the page."""

from pathlib import Path

import pytest
import torch

from benchmarks.coverage import page
from benchmarks.coverage.study import study, whole_operators, without_rule
from benchmarks.coverage.zoo import MODELS, make
from tensoropt_torch.frontend import capture

ROOT = Path(__file__).parents[2]


def test_a_study_without_processes_says_what_was_found() -> None:
    record = study("mlp", strategies=4, processes=())
    assert record["captures"]
    assert record["operators"] == 5
    assert record["differing_bits"] == []
    assert record["without_rule"] == {}
    assert list(record["searches"]) == ["2", "4", "8"]
    assert record["runs"] == {}


class Unruled(torch.nn.Module):
    """Half of its parameters are in an operator that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
        self.scale = torch.nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sum() + torch.renorm(self.scale, 2, 0, 1.0).sum()


@pytest.mark.filterwarnings("ignore")
def test_shares_of_operators_without_a_rule() -> None:
    found = without_rule(capture(Unruled(), (torch.ones(2, 4),)))
    assert found["aten.renorm.default"]["parameter_share"] == 0.5
    assert found["aten.renorm.default"]["flops_share"] == 0


@pytest.mark.filterwarnings("ignore")
def test_an_operator_that_needs_all_of_a_parameter_is_found() -> None:
    (found,) = whole_operators(capture(Unruled(), (torch.ones(2, 4),)), 2)
    assert found.startswith("renorm (")


EXPERTS_AND_TABLES = ("moe_dense", "moe_scatter", "moe_index_add", "dlrm", "mixtral", "qwen3_moe")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in EXPERTS_AND_TABLES else pytest.mark.slow)
        for name in MODELS
    ],
)
def test_no_operator_of_weight_runs_whole(name: str) -> None:
    example = make(name)
    captured = capture(example.model, example.args, **example.keywords)
    assert whole_operators(captured, 2) == []


def record_of(**changes: object) -> dict[str, object]:
    model = {
        "captures": True,
        "operators": 7,
        "differing_bits": [],
        "without_rule": {
            "aten.topk.default": {"flops_share": 0.25, "parameter_share": 0.0},
        },
        "searches": {"2": {"points": 3}, "4": {"points": 5}},
        "runs": {"2": {"strategies": 4, "wrong": ["one"]}, "4": {"strategies": 0, "wrong": ["x"]}},
    }
    return {"models": {"net": {**model, **changes}}}


def test_a_row_says_what_holds() -> None:
    row = page.models_table(record_of()).splitlines()[-1]
    expected = "| net | 7 | yes | 3, 5 | on 2: 3 of 4, on 4: failed | `topk` (25 % of FLOPs) |"
    assert row == expected


def test_a_model_that_is_not_captured_has_a_row() -> None:
    row = page.models_table(record_of(captures=False, error="no")).splitlines()[-1]
    assert "not captured: no" in row


def test_the_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    file = tmp_path / "models.md"
    file.write_text("before\n<!-- table: models -->\nold\n<!-- end -->\nafter\n")
    page.fill_page(record_of(), file)
    text = file.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| net |" in text


def test_models_are_the_same_on_every_call() -> None:
    first, second = (make("mlp") for _ in range(2))
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "llama" in MODELS
