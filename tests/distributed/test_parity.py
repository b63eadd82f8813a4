"""Points of the frontier and random strategies give what one process gives."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.harness import run_ranks
from tests.distributed.parity import Job

CHECK = "tests.distributed.parity:check"


def assert_equal_to_one_process(world_size: int, job: Job, timeout_s: float = 500) -> None:
    results = run_ranks(world_size, CHECK, job, timeout_s)
    for count, wrong in results:
        assert count > 1
        assert not wrong, f"{len(wrong)} of {count} strategies differ:\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gpt_equals_one_process(world_size: int, dtype: torch.dtype) -> None:
    assert_equal_to_one_process(world_size, Job("gpt", dtype))


@pytest.mark.parametrize(
    ("world_size", "model"),
    [(4, "gpt_tied"), (4, "llama"), (4, "transformer"), (3, "mlp"), (4, "mlp")],
)
def test_other_models_equal_one_process(world_size: int, model: str) -> None:
    job = Job(model, torch.float64, points=8, randoms=8)
    assert_equal_to_one_process(world_size, job)


@pytest.mark.parametrize(
    ("world_size", "model"), [(2, "vgg"), (4, "vgg"), (2, "resnet"), (4, "resnet"), (4, "mixture")]
)
def test_convolutional_networks_equal_one_process(world_size: int, model: str) -> None:
    job = Job(model, torch.float64, points=12, randoms=12)
    assert_equal_to_one_process(world_size, job)


@pytest.mark.parametrize(("world_size", "model"), [(2, "resnet"), (4, "resnet"), (4, "vgg")])
def test_split_images_equal_one_process(world_size: int, model: str) -> None:
    job = Job(model, torch.float64, points=4, randoms=12, split_spatial=True)
    assert_equal_to_one_process(world_size, job)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("model", ["recommender", "experts", "sorted_experts", "routed_experts"])
def test_models_of_look_ups_equal_one_process(world_size: int, model: str) -> None:
    job = Job(model, torch.float64, points=8, randoms=16)
    assert_equal_to_one_process(world_size, job)


@pytest.mark.parametrize("model", ["vgg", "resnet"])
def test_sharded_images_equal_one_process(model: str) -> None:
    job = Job(model, torch.float64, points=4, randoms=4, inputs="sharded")
    assert_equal_to_one_process(4, job)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("model", ["lstm", "gru"])
def test_recurrent_models_equal_one_process(world_size: int, model: str) -> None:
    job = Job(model, torch.float64, points=8, randoms=12)
    assert_equal_to_one_process(world_size, job)


def test_known_strategies_equal_one_process() -> None:
    job = Job("llama", torch.float64, points=2, randoms=0, known=True)
    assert_equal_to_one_process(4, job)


@pytest.mark.parametrize(
    ("world_size", "model"), [(2, "gpt_tied"), (4, "llama"), (2, "resnet"), (2, "lstm")]
)
def test_baselines_equal_one_process(world_size: int, model: str) -> None:
    job = Job(model, torch.float64, points=2, randoms=0, baselines=True)
    assert_equal_to_one_process(world_size, job)


def test_sharded_inputs_equal_one_process() -> None:
    job = Job("gpt", torch.float64, points=6, randoms=6, inputs="sharded")
    assert_equal_to_one_process(4, job)


def test_the_full_space_equals_one_process() -> None:
    job = Job("mlp", torch.float64, points=6, randoms=12, space="full")
    assert_equal_to_one_process(4, job)
