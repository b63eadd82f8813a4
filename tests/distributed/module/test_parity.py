"""Points of the frontier and random strategies give what one process gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tensoropt_torch.units import dtype_name
from tests.distributed.harness import run_ranks
from tests.distributed.parity import Job

CHECK = "tests.distributed.parity:check"


def assert_equal_to_one_process(world_size: int, job: Job, timeout_s: float = 500) -> None:
    results = run_ranks(world_size, CHECK, job, timeout_s)
    for count, wrong in results:
        assert count > 1
        assert not wrong, f"{len(wrong)} of {count} strategies differ:\n" + "\n".join(wrong[:5])


# (processes, what is checked). Those that are not slow stand for the others.
GPT = [
    (2, Job("gpt", torch.float64)),
    (4, Job("gpt", torch.float64)),
    (2, Job("gpt", torch.float32)),
    (4, Job("gpt", torch.float32)),
]
MODELS = [
    (count, Job(model, torch.float64, points=8, randoms=8))
    for count, model in [
        (4, "gpt_tied"),
        (4, "llama"),
        (4, "transformer"),
        (3, "mlp"),
        (4, "mlp"),
    ]
]
IMAGES = [
    (count, Job(model, torch.float64, points=12, randoms=12))
    for count, model in [(2, "resnet"), (4, "resnet"), (2, "vgg"), (4, "vgg"), (4, "mixture")]
]
SPLIT_IMAGES = [
    (count, Job(model, torch.float64, points=4, randoms=12, split_spatial=True))
    for count, model in [(2, "resnet"), (4, "resnet"), (4, "vgg")]
]
LOOK_UPS = [
    (count, Job(model, torch.float64, points=8, randoms=16))
    for model in ("routed_experts", "recommender", "experts", "sorted_experts")
    for count in (4, 2)
]
FUSED = [
    (count, Job(model, torch.float64, points=8, randoms=16))
    for model in ("fused", "fused_otherwise", "grouped")
    for count in (4, 2, 3)
]
RECURRENT = [
    (count, Job(model, torch.float64, points=8, randoms=12))
    for model, count in [("lstm", 4), ("gru", 2), ("lstm", 2), ("gru", 4), ("texts", 2)]
]
ODD_SIZES = [
    (count, Job(model, torch.float64, points=8, randoms=16))
    for model in ("odd_257", "odd_257_tied", "odd_1009_tied", "odd_1009", "odd_channels")
    for count in (2, 3, 4)
] + [
    (count, Job("odd_fused", torch.float64, points=8, randoms=16, tolerance=1e-4))
    for count in (3, 4, 2)
]
ODD_BATCHES = [
    (count, Job(model, torch.float64, points=8, randoms=12, rows=7))
    for count, models in [
        (4, ("gpt", "resnet", "lstm", "transformer", "mixture", "routed_experts", "recommender")),
        (3, ("gpt_tied", "vgg", "gru", "odd_257_tied", "fused", "mlp", "resnet", "experts")),
        (2, ("llama", "resnet", "lstm", "fused_otherwise", "sorted_experts", "recommender")),
    ]
    for model in models
] + [
    (4, Job("gpt", torch.float64, points=8, randoms=12, rows=30)),
    (4, Job("resnet", torch.float64, points=8, randoms=12, rows=30)),
    (4, Job("transformer", torch.float64, points=8, randoms=12, rows=7, recompute=True)),
    (2, Job("gpt", torch.float64, points=8, randoms=12, rows=14, micro_batches=2)),
    (3, Job("vgg", torch.float64, points=4, randoms=12, rows=7, split_spatial=True)),
]
GROUPED = [
    (count, Job(model, torch.float64, points=8, randoms=12, batch_norm_groups=groups, **other))
    for count, model, groups, other in [
        (4, "resnet", 4, {}),
        (3, "odd_channels", 3, {"rows": 9}),
        (2, "mixture", 4, {}),
        (4, "resnet", 2, {}),
        (4, "resnet", 4, {"rows": 7}),  # parts that differ: on every device
        (4, "resnet", 4, {"inputs": "sharded"}),
        (2, "resnet", 2, {"recompute": True}),
        (3, "resnet", 6, {"rows": 12, "split_spatial": True}),
    ]
]
TABLES = [
    (2, Job("tables", torch.float64, points=4, randoms=12)),
    (4, Job("tables", torch.float64, points=4, randoms=12)),
    (3, Job("tables", torch.float64, points=4, randoms=12, recompute=True)),
]
SHARDED_INPUTS = [
    (4, Job(model, torch.float64, points=4, randoms=4, inputs="sharded"))
    for model in ("gpt", "resnet", "vgg")
]
MIXED = [
    (count, Job("mixed", torch.float64, points=8, randoms=16, reduce_dtype=dtype, tolerance=1e-4))
    for count, dtype in [(4, "parameter"), (2, "compute"), (2, "parameter"), (4, "compute")]
]
RECOMPUTATION = [
    (count, Job(model, torch.float64, points=8, randoms=12, recompute=True))
    for count in (2, 4)
    for model in (
        "gpt",
        "routed_experts",
        "gpt_tied",
        "llama",
        "transformer",
        "mlp",
        "resnet",
        "vgg",
        "mixture",
        "lstm",
        "gru",
        "recommender",
    )
] + [(2, Job("mixed", torch.float64, points=8, randoms=12, recompute=True, tolerance=1e-4))]
MICRO_BATCHES = [
    (count, Job(model, torch.float64, points=8, randoms=12, micro_batches=micro, recompute=again))
    for count, micro, again in [(2, 4, False), (4, 2, True), (2, 2, True), (4, 4, False)]
    for model in (
        "gpt",
        "gpt_tied",
        "llama",
        "transformer",
        "mlp",
        "lstm",
        "gru",
        "vgg",
        "routed_experts",
    )
] + [
    (2, Job("gpt", torch.float64, points=8, randoms=12, micro_batches=2, inputs="sharded")),
    (4, Job("gpt", torch.float64, points=8, randoms=12, micro_batches=2, inputs="sharded")),
    (2, Job("texts", torch.float64, points=8, randoms=12, micro_batches=2)),
    (2, Job("texts", torch.float64, points=8, randoms=12, micro_batches=4, inputs="sharded")),
    (2, Job("mixed", torch.float64, points=8, randoms=12, micro_batches=2, tolerance=1e-4)),
    (4, Job("odd_257_tied", torch.float64, points=8, randoms=16, micro_batches=2)),
    (3, Job("odd_1009", torch.float64, points=8, randoms=16, micro_batches=4, recompute=True)),
    (4, Job("odd_fused", torch.float64, points=8, randoms=16, micro_batches=2, tolerance=1e-4)),
    (2, Job("odd_fused", torch.float64, points=8, randoms=16, micro_batches=2, tolerance=1e-4)),
]
FULL_SPACE = [(4, Job("mlp", torch.float64, points=6, randoms=12, space="full"))]
KNOWN = [(4, Job("llama", torch.float64, points=2, randoms=0, known=True))]
BASELINES = [
    (count, Job(model, torch.float64, points=2, randoms=0, baselines=True))
    for count, model in [(2, "lstm"), (2, "gpt_tied"), (4, "llama"), (2, "resnet")]
]
ALL = [
    *GPT,
    *MODELS,
    *IMAGES,
    *SPLIT_IMAGES,
    *LOOK_UPS,
    *FUSED,
    *RECURRENT,
    *ODD_SIZES,
    *ODD_BATCHES,
    *GROUPED,
    *TABLES,
    *SHARDED_INPUTS,
    *MIXED,
    *RECOMPUTATION,
    *MICRO_BATCHES,
    *FULL_SPACE,
    *KNOWN,
    *BASELINES,
]
FEW = [
    GPT[0],
    MODELS[2],
    IMAGES[0],
    LOOK_UPS[0],
    FUSED[4],
    RECURRENT[0],
    ODD_SIZES[1],
    ODD_SIZES[5],
    ODD_SIZES[13],
    ODD_BATCHES[0],
    ODD_BATCHES[1],
    ODD_BATCHES[9],
    GROUPED[0],
    GROUPED[1],
    TABLES[1],
    SHARDED_INPUTS[0],
    MIXED[1],
    RECOMPUTATION[0],
    MICRO_BATCHES[0],
    MICRO_BATCHES[-1],
    MICRO_BATCHES[-4],
    MICRO_BATCHES[-6],
    FULL_SPACE[0],
    BASELINES[0],
]


def name_of(value: object) -> str:
    """For the test's name: the model, and what is special."""
    if not isinstance(value, Job):
        return str(value)
    special = {
        f"{value.batch_norm_groups}_groups": value.batch_norm_groups > 1,
        value.inputs: value.inputs != "replicated",
        value.space: value.space != "ordered",
        "split_spatial": value.split_spatial,
        "recompute": value.recompute,
        f"micro{value.micro_batches}": value.micro_batches > 1,
        f"{value.rows}rows": value.rows is not None,
        "known": value.known,
        "baselines": value.baselines,
        "compute": value.reduce_dtype == "compute",
    }
    precision = dtype_name(value.dtype)
    return "-".join([value.model, precision, *(name for name, holds in special.items() if holds)])


@pytest.mark.parametrize(("world_size", "job"), FEW, ids=name_of)
def test_some_strategies_equal_one_process(world_size: int, job: Job) -> None:
    few = replace(job, points=min(3, job.points), randoms=min(5, job.randoms))
    assert_equal_to_one_process(world_size, few)


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "job"), ALL, ids=name_of)
def test_strategies_equal_one_process(world_size: int, job: Job) -> None:
    assert_equal_to_one_process(world_size, job)
