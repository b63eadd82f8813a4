"""Rules that users register: what they say is checked by running the operator."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensoropt_torch
from tensoropt_torch import _C, TensorOptError, check_rule, cli, register_rule, unregister_rule
from tensoropt_torch.frontend import capture
from tests.rules.custom_ops import (
    HEAD_MEAN,
    LIBRARY,
    SCALED_ADD,
    affine,
    extremes,
    head_mean,
    noise,
    overwrite,
    real,
    scaled_add,
    scaled_add_example,
    tile_rows,
)

NAMES = ("scaled_add", "head_mean", "tile_rows", "noise", "affine", "extremes")


@pytest.fixture(autouse=True)
def _no_rules() -> Iterator[None]:
    yield
    known = _C.current_rules().targets()
    for name in NAMES:
        if f"{LIBRARY}.{name}.default" in known:
            unregister_rule(f"{LIBRARY}::{name}")


def head_mean_example() -> tuple[Any, ...]:
    return real(12, 48), real(12, seed=1), 12


# --- The check ---------------------------------------------------------------


def test_a_right_rule_is_checked_in_every_config() -> None:
    register_rule(f"{LIBRARY}::scaled_add", **SCALED_ADD, example=scaled_add_example())
    report = check_rule(scaled_add, scaled_add_example())
    assert report.operator == f"{LIBRARY}.scaled_add.default"
    assert report.rule == "...0 n, ...0 n, n -> ...0 n"
    assert report.splits == ("...0", "n", "+0.1", "+2")
    uses = 5  # the splits and none
    assert report.num_configs == uses + uses + uses**2
    assert report.gradients


def test_means_and_sizes_in_arguments() -> None:
    register_rule(head_mean, **HEAD_MEAN, example=head_mean_example())
    assert check_rule(head_mean, head_mean_example()).splits == ("b", "h", "+0", "+1")


def test_sets_that_are_named_twice_count_once() -> None:
    twice = [*SCALED_ADD["linear_in"], ["y", "x"], ["scale"]]
    register_rule(scaled_add, **{**SCALED_ADD, "linear_in": twice}, example=scaled_add_example())
    assert check_rule(scaled_add, scaled_add_example()).splits == ("...0", "n", "+0.1", "+2")


def test_literals_of_a_rank() -> None:
    local = {"local": lambda call: {"rows": call.arguments["rows"] // call.parts["r"]}}
    register_rule(tile_rows, "n -> r n", **local, example=(real(12), 24))
    report = check_rule(tile_rows, (real(12), 24))
    assert report.splits == ("n", "r")
    assert not report.gradients


def test_a_bias_is_added_to_a_sum_once() -> None:
    rule = "b k, n k, n -> b n"
    biased = (real(12, 24), real(24, 24, seed=1), real(24, seed=2))
    register_rule(affine, rule, additive=["bias"], example=biased)
    assert check_rule(affine, biased).splits == ("b", "k", "n")
    # Without the optional tensor there is no operand for its term.
    assert check_rule(affine, biased[:2]).rule == "b k, n k -> b n"
    with pytest.raises(TensorOptError, match=r"factor 'k' is split.*output 0 in layout 'P'"):
        register_rule(affine, rule, example=biased)


def test_lists_of_tensors_and_several_outputs() -> None:
    example = ([real(12, 24), real(12, 24, seed=1)], real(24, seed=2))
    register_rule(extremes, "b n, n -> b n, b n", example=example)
    report = check_rule(extremes, example)
    assert report.rule == "b n, b n, n -> b n, b n"
    assert report.splits == ("b", "n")
    with pytest.raises(TensorOptError, match=r"has 1 outputs, the operator gives 2"):
        register_rule(extremes, "b n, n -> b n", example=example)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "... n, ... n, _ -> ... n"}, "factor 'n' is split.*config 'n'.*call"),
        ({"rule": "... n, ... _, n -> ... n"}, "factor 'n' is split"),
        ({"linear_in": [["x"]]}, r"pending sums pass from x:.*output 0 in layout 'P'"),
        ({"linear_in": [["x", "y", "scale"]]}, "pending sums pass from x, y, scale:.*output 0"),
    ],
    ids=str,
)
def test_a_wrong_rule_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorOptError, match=message) as caught:
        register_rule(scaled_add, **{**SCALED_ADD, **changes}, example=scaled_add_example())
    assert "does not compute tensoropt_test.scaled_add.default" in str(caught.value)
    assert f"{LIBRARY}.scaled_add.default" not in _C.current_rules().targets()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": []}, "factor 'b' is split.*output 0 in layout 'P'"),
        ({"sizes": {}}, "has factor 'h' of size 48 in a dim of weight of size 12"),
        ({"rule": "b h, h -> h", "mean": [], "saves": []}, "factor 'b' is split"),
    ],
)
def test_a_wrong_mean_or_size_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorOptError, match=message):
        register_rule(head_mean, **{**HEAD_MEAN, **changes}, example=head_mean_example())


def test_a_wrong_gradient_is_named() -> None:
    """Forward agrees: the rule says that rows are independent, which the gradient of
    this operator contradicts."""

    @torch.library.custom_op(f"{LIBRARY}::crossed", mutates_args=())
    def crossed(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    crossed.register_autograd(lambda ctx, gradient: gradient.flip(0))
    with pytest.raises(TensorOptError, match=r"factor 'b'.*gradient of operand 0 \('x'\)"):
        register_rule(crossed, "b -> b", example=(real(12),))


def test_a_factor_that_the_example_cannot_split_is_named() -> None:
    example = (real(7, 24), real(7, 24), real(24))
    with pytest.raises(TensorOptError, match=r"factor '\.\.\.0'.*multiple of 12"):
        register_rule(scaled_add, **SCALED_ADD, example=example)


def test_random_operators_are_compared_between_replicas() -> None:
    register_rule(noise, "n -> n", random=True, example=(real(12),))
    with pytest.raises(TensorOptError, match="replicas differ"):
        register_rule(noise, "n -> n", example=(real(12),))


def test_built_in_rules_can_be_checked() -> None:
    report = check_rule("aten::linear", (real(12, 24), real(24, 24), real(24)))
    assert report.rule == "b0 k, n k, n -> b0 n"
    with pytest.raises(TensorOptError, match=r"aten.trace.default has no rule"):
        check_rule("aten::trace", (real(12, 12),))


# --- What cannot be registered -----------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "b n, b n -> b n"}, r"2 operands.*3 tensor arguments \(x, y, scale\)"),
        ({"rule": "b n, b n, n"}, "one '->'"),
        ({"rule": "b n, b n, n -> b n!"}, "'n!' is no dim"),
        ({"rule": "b b, b b, b -> b b"}, "'b' stands twice"),
        ({"saves": ["z"]}, "saves names 'z'.*x, y, scale"),
        ({"saves": [3]}, "no tensor argument 3"),
        ({"mean": ["k"]}, "mean names factor 'k'"),
        ({"mean": ["n"]}, "mean names factor 'n'"),
        ({"sizes": {"n": "count"}}, "argument 'count' is the size of factor 'n'"),
        ({"saves_outputs": [1]}, "saves_outputs names output 1"),
    ],
    ids=str,
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorOptError, match=message):
        register_rule(scaled_add, **{**SCALED_ADD, **changes})


def test_other_operators_are_refused() -> None:
    with pytest.raises(TensorOptError, match="no operator 'nowhere::op'"):
        register_rule("nowhere::op", "n -> n")
    with pytest.raises(TensorOptError, match="comes with a rule"):
        register_rule("aten::relu", "n -> n")
    with pytest.raises(TensorOptError, match="'x' in place"):
        register_rule(overwrite, "n -> n")
    with pytest.raises(TensorOptError, match="no rule was registered"):
        unregister_rule(scaled_add)


def test_a_shape_that_the_rule_does_not_fit_is_refused() -> None:
    register_rule(scaled_add, "b n, b n, n -> b n")
    with pytest.raises(TensorOptError, match=r"'b n' for x, which has shape \[2, 12, 24\]"):
        check_rule(scaled_add, (real(2, 12, 24), real(2, 12, 24), real(24)))


# --- The table ---------------------------------------------------------------


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(24, 24)
        self.scale = torch.nn.Parameter(torch.ones(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.tensoropt_test.scaled_add(self.fc(x), x, self.scale).square().mean()


def fingerprint() -> str:
    return capture(Scaled(), (torch.zeros(12, 24),)).fingerprint


@pytest.mark.filterwarnings("ignore:operator 'tensoropt_test.scaled_add.default' has no rule")
def test_the_fingerprint_tells_rules_apart() -> None:
    found = [fingerprint()]
    for changes in ({}, {"flops": 3.0}, {"flops": lambda x, y, z: 3.0 * x[0]}, {"saves": []}):
        register_rule(scaled_add, **{**SCALED_ADD, **changes})
        found.append(fingerprint())
    register_rule(scaled_add, **{**SCALED_ADD, "flops": lambda x, y, z: 4.0 * x[0]})
    found.append(fingerprint())
    assert len(set(found)) == len(found)
    register_rule(scaled_add, **SCALED_ADD)
    assert fingerprint() == found[1]


def test_a_captured_model_keeps_the_rule_that_it_was_captured_with() -> None:
    register_rule(scaled_add, **SCALED_ADD)
    arguments: dict[str, Any] = {"cluster": "h100-8", "num_devices": 2}
    plan = tensoropt_torch.find_strategy(Scaled(), (torch.zeros(12, 24),), **arguments)
    before = [
        node.rule
        for node in tensoropt_torch.explain(Scaled(), (torch.zeros(12, 24),), **arguments).operators
    ]
    assert "...0 n, ...0 n, n -> ...0 n" in before
    unregister_rule(scaled_add)
    assert plan.captured is not None
    assert f"{LIBRARY}.scaled_add.default" in plan.captured.lowering.rules.targets()


def test_flops_are_those_that_the_rule_says() -> None:
    register_rule(scaled_add, **{**SCALED_ADD, "flops": lambda x, y, scale: 5.0 * x[0] * scale[0]})
    explanation = tensoropt_torch.explain(Scaled(), (torch.zeros(12, 24),), cluster="h100-8")
    (node,) = [n for n in explanation.operators if "scaled_add" in n.target]
    assert node.flops == 5 * 12 * 24 * 3  # backward takes twice as many


# --- The command -------------------------------------------------------------

EXAMPLE = """
import torch
from tests.rules.custom_ops import SCALED_ADD, scaled_add, scaled_add_example
from tensoropt_torch import register_rule
def right():
    register_rule(scaled_add, **SCALED_ADD)
    return scaled_add, scaled_add_example()
def wrong():
    register_rule(scaled_add, **{**SCALED_ADD, "linear_in": [["x"]]})
    return "tensoropt_test::scaled_add", scaled_add_example()
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "op.py"
    file.write_text(EXAMPLE)
    assert cli.main(["check-rule", f"{file}:right"]) == 0
    assert "35 configs" in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert cli.main(["check-rule", f"{file}:wrong"]) == 2
    assert "pending sums pass from x" in capsys.readouterr().err
    assert cli.main(["check-rule", f"{file}:missing"]) == 2
