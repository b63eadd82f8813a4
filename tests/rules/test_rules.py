"""Every operator with a rule, in every config, computes what it computes whole:
outputs and gradients, rank by rank in one process, against one device."""

from collections.abc import Iterator

import pytest
import torch

from tensoropt_torch import _C
from tensoropt_torch.rules.layouts import combine, placements, split
from tests.rules.case import Case, Checks, positive, real
from tests.rules.convolution_cases import convolution_cases, write_cases
from tests.rules.creation_cases import constant_cases, creation_cases
from tests.rules.empty_cases import empty_cases
from tests.rules.indexing_cases import indexing_cases
from tests.rules.layer_cases import layer_cases
from tests.rules.loss_cases import loss_cases
from tests.rules.odd_cases import odd_cases
from tests.rules.oracle import Bench, PortLayouts, RuleError
from tests.rules.pointwise_cases import pointwise_cases
from tests.rules.product_cases import product_cases
from tests.rules.sampling_cases import sampling_cases
from tests.rules.shape_cases import shape_cases
from tests.rules.spectral_cases import spectral_cases
from tests.rules.uneven_cases import uneven_cases

EVEN = [
    *(*pointwise_cases(), *creation_cases(), *shape_cases(), *indexing_cases()),
    *(*layer_cases(), *product_cases(), *loss_cases(), *spectral_cases()),
    *(*convolution_cases(), *sampling_cases(), *empty_cases()),
]
UNEVEN = list(uneven_cases())
ODD = list(odd_cases(EVEN))
CASES = [*EVEN, *UNEVEN, *ODD]
BY_NAME = {str(case): case for case in CASES}
# Of all elements together: no part has the result, no sum of parts either.
SELECT_FROM_ALL = {
    *(f"aten.{name}.default" for name in ("all", "any", "max", "min", "median", "prod")),
    *("aten.var.default", "aten.std.default", "aten.norm.Scalar"),
}
MESHES = [(2,), (2, 2), (3,), pytest.param((2, 3), marks=pytest.mark.slow)]
# Parts of these are equal: rows go to the experts of other ranks.
EVEN_ONLY = {"tensoropt.routed_experts.default"}


# PyTorch says so of losses whose operands broadcast.
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_config_computes_the_operator(case: Case, sizes: tuple[int, ...]) -> None:
    bench = Bench(case, sizes)
    assert len(set(bench.labels)) == bench.num_configs  # plans are saved by labels
    for config in range(bench.num_configs):
        bench.check(config)


# --- The cases cover what they should ----------------------------------------


def test_every_operator_with_a_rule_has_a_case() -> None:
    missing = set(_C.current_rules().targets()) - {case.target for case in CASES}
    assert not missing, "add cases to tests/rules/*_cases.py"


def test_case_names_are_unique() -> None:
    assert len(BY_NAME) == len(CASES)


def test_every_operator_can_be_split_in_some_case() -> None:
    """Else its cases would show nothing."""
    whole = {case.target for case in [*constant_cases(), *write_cases()]} | SELECT_FROM_ALL
    for target in sorted({case.target for case in CASES} - whole):
        benches = (Bench(case, (2,)) for case in CASES if case.target == target)
        assert any(bench.num_configs > 1 for bench in benches), target


def test_no_config_is_missing() -> None:
    """The planner leaves out what cannot pay; around a case, all can."""
    uses = ["d0", "d1", "+0", "-"]
    labels = Bench(BY_NAME["aten.neg.default"], (2, 2)).labels
    assert sorted(labels) == sorted(f"{a},{b}" for a in uses for b in uses)
    uses = ["b0", "n", "k", "-"]
    all_of_them = {f"{a},{b}" for a in uses for b in uses}
    labels = Bench(BY_NAME["aten.linear.default: 2-D, bias"], (2, 2)).labels
    assert set(labels) == all_of_them  # n is 6: parts of 2 and 1


def has_uneven_config(case: Case, sizes: tuple[int, ...]) -> bool:
    bench = Bench(case, sizes)
    tensors = [*bench.operands, *bench.outputs]
    random = torch.Generator()

    def is_uneven(config: int) -> bool:
        inputs, outputs = bench.ports(config)
        layouts = [value.replace("P", "R") for value, _ in [*inputs, *outputs]]
        parts = (
            split(t.detach(), layout, sizes, random, units)
            for t, layout, units in zip(tensors, layouts, bench.units, strict=True)
        )
        return any(len({part.shape for part in of_tensor}) > 1 for of_tensor in parts)

    return any(is_uneven(config) for config in range(bench.num_configs))


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("case", UNEVEN, ids=str)
def test_some_config_has_parts_that_differ(case: Case, sizes: tuple[int, ...]) -> None:
    assert has_uneven_config(case, sizes)


def test_every_operator_is_split_into_parts_that_differ() -> None:
    never = {case.target for case in [*constant_cases(), *write_cases()]} | SELECT_FROM_ALL
    for target in sorted({case.target for case in CASES} - never - EVEN_ONLY):
        cases = [case for case in (*UNEVEN, *ODD) if case.target == target]
        assert any(has_uneven_config(case, (2,)) for case in cases), target


def test_units_are_not_parted() -> None:
    """Rows of 4 entries in parts of 4 and 3 rows."""
    bench = Bench(BY_NAME["aten.view.default: units, merge"], (2,))
    assert bench.units == [[], [4, 1]]
    assert "d0" in bench.labels
    # With 14 rows the devices divide them: no units are needed.
    even = Bench(Case("aten.view.default", (real(14, 4), [56])), (2,))
    assert even.units == [[], []]
    # With fewer rows than devices some would have none.
    few = Bench(Case("aten.view.default", (real(3, 4), [12])), (4,))
    assert few.units == [[], []]


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("aten.neg.default", 1),
        ("aten.add.Tensor: equal", 1),
        ("aten.add.Tensor: number", 0),
        ("aten.mul.Tensor: equal", 2),
        ("aten.mul.Tensor: mask", 1),
        ("aten.div.Tensor: equal", 1),
        ("aten.where.self", 1),
        ("aten.cat.default: 0", 1),
        ("aten.masked_fill.Scalar: 0", 1),
        ("aten.masked_fill.Scalar: -inf", 0),
        ("aten.constant_pad_nd.default: last", 1),
        ("aten.constant_pad_nd.default: 2.5", 0),
        ("aten.dropout.default: train", 1),
        ("aten.relu.default", 0),
    ],
)
def test_pending_sums_pass_linear_operators_only(name: str, sets: int) -> None:
    labels = Bench(BY_NAME[name], (2,)).labels
    assert sum(label.startswith("+") for label in labels) == sets, labels


# --- The checker sees what is wrong ------------------------------------------

MUTATED = [
    *("aten.linear.default: 2-D, bias", "aten.embedding.default: 2-D"),
    *("aten.sum.dim_IntList: [0]", "aten.mul.Tensor: column"),
    *("aten.cross_entropy_loss.default: 2-D, mean", "aten.layer_norm.default: 6, both"),
    *("aten.scaled_dot_product_attention.default: plain", "aten.conv2d.default: 6 groups"),
    *("aten.conv1d.default: plain", "aten.batch_norm.default: training"),
    *("aten.index.Tensor: around", "aten.index_put.default: middle, added"),
    *("aten.scatter_add.default: 1", "aten.einsum.default: gtec,gtd->gecd"),
    *("aten.embedding_bag.padding_idx: mean", "aten.cdist.default: broadcast"),
]


def other_placements(
    layout: str, tensor: torch.Tensor, axis: int = 0, size: int = 2
) -> Iterator[str]:
    """The layouts that differ from this one on one axis."""
    shards = [f"S{d}" for d, n in enumerate(tensor.shape) if n % size == 0]
    kinds = ["R", *shards] + (["P"] if tensor.is_floating_point() else [])
    for kind in kinds:
        changed = placements(layout)
        if kind != changed[axis]:
            changed[axis] = kind
            yield ",".join(changed)


def mutations(ports: list[PortLayouts], tensors: list[torch.Tensor]) -> Iterator[list[PortLayouts]]:
    """Port lists with one placement of a value or a gradient changed."""
    for i, ((value, gradient), tensor) in enumerate(zip(ports, tensors, strict=True)):
        changed = [(other, gradient) for other in other_placements(value, tensor)]
        if tensor.requires_grad:
            changed += [(value, other) for other in other_placements(gradient, tensor)]
        yield from ([*ports[:i], port, *ports[i + 1 :]] for port in changed)


def is_caught(
    bench: Bench, config: int, inputs: list[PortLayouts], outputs: list[PortLayouts]
) -> bool:
    try:
        bench.check_with(config, inputs, outputs)
    except RuleError:
        return True
    return False


@pytest.mark.parametrize("name", MUTATED)
def test_every_wrong_placement_is_caught(name: str) -> None:
    bench = Bench(BY_NAME[name], (2,))
    for config in range(bench.num_configs):
        inputs, outputs = bench.ports(config)
        for wrong in mutations(inputs, bench.operands):
            assert is_caught(bench, config, wrong, outputs), (config, wrong)
        for wrong in mutations(outputs, bench.outputs):
            assert is_caught(bench, config, inputs, wrong), (config, wrong)


def test_partial_output_taken_as_replicate_is_named() -> None:
    bench = Bench(BY_NAME["aten.linear.default: 2-D, bias"], (2,))
    config = bench.labels.index("k")
    inputs, outputs = bench.ports(config)
    assert outputs == [("P", "R")]
    message = (
        r"aten.linear.default: 2-D, bias, config 'k' on mesh \(2,\): "
        "output 0 in layout 'R': replicas differ"
    )
    with pytest.raises(RuleError, match=message):
        bench.check_with(config, inputs, [("R", "R")])


def test_split_parts_combine_to_the_tensor() -> None:
    random = torch.Generator().manual_seed(5)
    tensor = torch.randn(12, 6, generator=random, dtype=torch.float64)
    for layout in ("R,R", "S0,S0", "S1,S0", "P,S0", "S1,P", "P,P", "R,P"):
        parts = split(tensor, layout, (2, 3), random)
        assert len(parts) == 6
        torch.testing.assert_close(combine(parts, layout, (2, 3)), tensor)


def test_uneven_parts_are_chunks_of_chunks() -> None:
    parts = split(torch.arange(7), "S0,S0", (2, 2), torch.Generator())
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5], [6]]
    assert torch.equal(combine(parts, "S0,S0", (2, 2)), torch.arange(7))
    with pytest.raises(AssertionError, match="parts of lengths"):
        combine([torch.arange(3), torch.arange(4)], "S0", (2,))


def test_outer_axis_is_the_more_significant_block() -> None:
    parts = split(torch.arange(6), "S0,S0", (2, 3), torch.Generator())
    assert [int(part) for part in parts] == [0, 1, 2, 3, 4, 5]


# --- Random operators --------------------------------------------------------

DROPOUT = Case("aten.dropout.default", (positive(12, 8), 0.5, True), checks=Checks.REPLICAS)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_dropout_scales_or_drops_alike_forward_and_backward(
    sizes: tuple[int, ...],
) -> None:
    """Also where each rank holds a pending sum: the masks must be equal there."""
    bench = Bench(DROPOUT, sizes)
    (x,) = bench.operands
    for config in range(bench.num_configs):
        ((value, gradient),), ((out, back),) = bench.ports(config)
        random = torch.Generator().manual_seed(config)
        run = bench.run(config, [value], random)
        factor = combine([o[0].detach() for o in run.outputs], out, sizes) / x.detach()
        kept = (factor > 1).to(x.dtype)
        torch.testing.assert_close(factor, 2.0 * kept, msg=bench.where(config))
        found = bench.backward(run, [torch.ones_like(x)], [back], random)
        whole = combine([g[0] for g in found], gradient, sizes)
        torch.testing.assert_close(whole, 2.0 * kept, msg=bench.where(config))


def test_shards_drop_different_elements() -> None:
    bench = Bench(DROPOUT, (2,))
    config = bench.labels.index("d0")
    run = bench.run(config, ["S0"], torch.Generator())
    first, second = (outputs[0] == 0 for outputs in run.outputs)
    assert not torch.equal(first, second)


def test_calls_on_replicas_have_one_shard_index() -> None:
    bench = Bench(Case("aten.relu.default", (real(12, 8),)), (2, 2))
    indices = {
        label: [form.shard_index for form in bench.forms(config)]
        for config, label in enumerate(bench.labels)
    }
    assert indices["-,-"] == [0, 0, 0, 0]
    assert indices["-,d0"] == [0, 1, 0, 1]
    assert indices["d1,-"] == [0, 0, 1, 1]
    assert indices["d0,d0"] == indices["d0,d1"] == [0, 1, 2, 3]
