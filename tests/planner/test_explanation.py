"""What is left out of a strategy space is named, with its cost; against rules, sizes
and costs that are known by hand."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import PlanningOptions, cli, load_cluster
from tensoropt_torch.planner.explanation import Explanation, NodeExplanation

VOCABULARY = 50257  # prime


class Model(nn.Module):
    """A table whose rows do not divide, heavy and light operators, one without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 64)
        self.fc = nn.Linear(64, 64)
        self.head = nn.Linear(64, VOCABULARY)
        self.register_buffer("mask", torch.ones(64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.fc(self.table(x))) * (self.mask * 2)
        return nn.functional.cross_entropy(self.head(hidden.renorm(2, 0, 1.0)), y)


def explain(num_devices: int = 4, rows: int = 24, **changes: object) -> Explanation:
    with torch.device("meta"):
        model, x = Model(), torch.empty(rows, dtype=torch.int64)
    planning = PlanningOptions(cluster="h100-8")
    with pytest.warns(UserWarning, match="aten.renorm.default"):
        return tensoropt_torch.explain(
            model, (x, x), num_devices=num_devices, planning=planning, **changes
        )


def node_of(explanation: Explanation, name: str) -> NodeExplanation:
    (node,) = [n for n in explanation.nodes if name in (n.name, n.target)]
    return node


def texts(node: NodeExplanation) -> list[str]:
    return [item.text for item in node.left_out]


def reasons(node: NodeExplanation) -> list[str]:
    return [item.reason for item in node.left_out]


def test_rules_are_written_as_users_write_them() -> None:
    explanation = explain()
    assert node_of(explanation, "fc.linear").rule == "b0 k, n k, n -> b0 n"
    assert node_of(explanation, "aten.relu.default").rule == "d0 d1 -> d0 d1"
    assert node_of(explanation, "aten.renorm.default").rule == "_ _ -> _ _"


def test_sizes_with_too_few_entries_are_named() -> None:
    batch = node_of(explain(16, rows=9, cluster="h100-2x8"), "fc.linear").left_out[0].text
    assert batch == "'b0' of size 9 cannot be cut into 16 parts of which none is empty"


class Causal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return seen.sum()


def test_sizes_that_do_not_divide_are_named() -> None:
    with torch.device("meta"):
        x = torch.empty(2, 2, 6, 8)
    explanation = tensoropt_torch.explain(Causal(), (x,), cluster="h100-8", num_devices=4)
    (attention,) = [n for n in explanation.nodes if "attention" in n.target]
    assert "'l' of size 6 cannot be cut into 4 equal parts" in texts(attention)


def test_a_vocabulary_is_split_into_parts_that_differ() -> None:
    for name in ("head.linear_1", "table.weight"):
        node = node_of(explain(), name)
        assert node.parts == 4
        assert "uneven" not in reasons(node)


def test_configs_are_those_that_are_counted_by_hand() -> None:
    # Each of two axes: b0, n, k or nothing. Axes are alike, so that (a, b) and (b, a) are
    # one config.
    uses = ["b0", "n", "k", "-"]
    ordered = list(itertools.combinations_with_replacement(uses, 2))
    head = node_of(explain(), "head.linear_1")
    assert head.num_configs == len(ordered)
    more = len(uses) ** 2 - len(ordered)
    assert head.left_out[-1].reason == "order"
    assert head.left_out[-1].what == f"{more} configs"
    assert head.num_in_any_order == len(uses) ** 2
    full = node_of(explain(space="full"), "head.linear_1")
    assert full.num_configs == len(uses) ** 2
    assert "order" not in reasons(full)


def test_the_budget_of_configs_is_named() -> None:
    whole = node_of(explain(8), "fc.linear")
    assert "max_configs" not in reasons(whole)
    limited = node_of(explain(8, max_configs=12), "fc.linear")
    assert limited.num_configs < whole.num_configs
    missing = whole.num_configs - limited.num_configs
    assert texts(limited)[0] == (
        f"{missing} configs with more than 2 runs of mesh axes: with them there would be more "
        "than max_configs=12 allows"
    )


def test_idle_dims_and_constants_are_named() -> None:
    explanation = explain()
    (constant,) = [n for n in explanation.operators if n.name == "mul"]
    assert texts(constant) == [
        "'d0' is not split: every device computes what depends on constants only"
    ]

    class Light(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.empty(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            images = torch.nn.functional.linear(x, self.w).reshape(4, 4, 2, 4)
            return images.neg().reshape(16, 8).sum()

    with torch.device("meta"):
        args = (torch.empty(16, 8),)
        light = tensoropt_torch.explain(Light(), args, cluster="h100-8", num_devices=2)
    negation = node_of(light, "aten.neg.default")
    idle = [item.what for item in negation.left_out if item.reason == "idle dim"]
    assert "d1" in idle
    assert "d0" not in idle


def test_what_falls_back_to_replication_is_charged() -> None:
    explanation = explain()
    renorm = node_of(explanation, "aten.renorm.default")
    assert not renorm.has_rule
    assert renorm.parts == 1
    assert reasons(renorm) == ["no rule"]
    # It may keep its operand, 24 x 64 floats; an even split keeps a quarter.
    assert renorm.memory_bytes == 24 * 64 * 4
    assert renorm.extra_memory_bytes == 24 * 64 * 4 * 3 / 4
    # Forward and backward move operand and output; backward twice as much, and two
    # launches are not split.
    device = load_cluster("h100-8").device
    bandwidth = device.memory_bandwidth_bytes_per_s * device.efficiency.memory
    moved_s = 3 * 2 * 24 * 64 * 4 / bandwidth
    assert renorm.time_s == pytest.approx(moved_s + 2 * device.launch_overhead_s)
    assert renorm.extra_time_s == pytest.approx(moved_s * 3 / 4)
    assert renorm in explanation.fallbacks
    assert all(node.parts < 4 for node in explanation.fallbacks)
    whole = node_of(explain(16, cluster="h100-2x8"), "fc.linear")
    assert whole.parts == 16  # by batch and by n


def test_flops_are_shares_of_the_whole() -> None:
    explanation = explain()
    # Forward, and backward for both operands.
    assert node_of(explanation, "head.linear_1").flops == 3 * 2 * 24 * 64 * VOCABULARY
    assert sum(map(explanation.flops_share, explanation.operators)) == pytest.approx(1)


def test_one_device_leaves_nothing_to_split() -> None:
    explanation = explain(1)
    assert explanation.fallbacks == []
    assert all(node.num_configs == 1 for node in explanation.nodes)


MODEL_FILE = """
import torch
def build():
    with torch.device("meta"):
        return torch.nn.Linear(64, 3), (torch.zeros(16, 64),)
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "model.py", tmp_path / "out.json"
    file.write_text(MODEL_FILE)
    where = ["--cluster", "h100-8", "--devices", "4"]
    assert cli.main(["explain", f"{file}:build", *where, "--json", str(output)]) == 0
    text = capsys.readouterr().out
    assert "b0 k, n k, n" in " ".join(text.split())
    record = json.loads(output.read_text())
    names = [node["name"] for node in record["nodes"]]
    assert names == ["weight", "bias", "linear"]
    assert "'n' of size 3" in record["nodes"][2]["left_out"][0]["text"]
    bias = record["nodes"][1]
    assert bias["parts"] == 2  # of 2 and 1; four would leave a device with nothing
    assert bias["extra_memory_bytes"] == (2 - 3 / 4) * 4 * 4  # with Adam's state
    assert "bias" in text
