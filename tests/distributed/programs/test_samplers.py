"""Data loaders give each rank what the plan expects: its own samples, or all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import tensoropt_torch
from tensoropt_torch import ParallelModule
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.programs.test_samplers"
SAMPLES, BATCH, EPOCHS = 44, 8, 2  # of all ranks; the last batch of an epoch is smaller


@dataclass
class Case:
    """How a plan gets its inputs."""

    inputs: str
    stages: int = 1


def data() -> Dataset[Any]:
    torch.manual_seed(1)
    numbers = torch.arange(SAMPLES)
    return TensorDataset(numbers, torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 2))


def model(case: Case) -> tuple[ParallelModule, nn.Module]:
    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    example = tensoropt_torch.Example(
        original,
        (torch.zeros(BATCH, 6),),
        loss_fn=F.mse_loss,
        targets=(torch.zeros(BATCH, 2),),
    )
    inputs: Any = case.inputs
    if case.stages > 1:
        plan: Any = tensoropt_torch.find_stages(
            example, measure=False, stages=case.stages, inputs=inputs
        )
    else:
        plan = tensoropt_torch.find_strategy(example, inputs=inputs, measure=False)
    return tensoropt_torch.parallelize(example, plan), original


def check_epochs(case: Case) -> list[list[list[int]]]:
    """The numbers of the samples, by epoch and batch; losses are those of the whole batch."""
    parallel, original = model(case)
    share = tensoropt_torch.sampler_arguments(parallel)
    assert share == tensoropt_torch.sampler_arguments(parallel.plan)
    samples = data()
    sampler: Any = DistributedSampler(samples, shuffle=True, seed=3, **share)
    loader = DataLoader(samples, BATCH // share["num_replicas"], sampler=sampler)
    seen = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        batches = []
        for numbers, x, y in loader:
            batches.append(numbers.tolist())
            whole = torch.tensor(sorted(set(of_all(batches[-1]))))
            _, xs, ys = samples[whole]  # type: ignore[index]
            torch.testing.assert_close(parallel(x, y), F.mse_loss(original(xs), ys))
        seen.append(batches)
    return seen


def of_all(numbers: list[int]) -> list[int]:
    lists: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lists, numbers)
    return [number for part in lists for number in part]


@pytest.mark.parametrize("stages", [1, 2])
def test_every_sample_is_seen_once_by_one_rank_with_sharded_inputs(stages: int) -> None:
    ranks = run_ranks(2, f"{HERE}:check_epochs", Case("sharded", stages), 100)
    for epoch in range(EPOCHS):
        counts = Counter(n for rank in ranks for batch in rank[epoch] for n in batch)
        assert counts == Counter(range(SAMPLES))
    assert ranks[0][0] != ranks[0][1], "epochs are not shuffled"


def test_every_rank_sees_the_same_batches_with_replicated_inputs() -> None:
    first, *others = run_ranks(2, f"{HERE}:check_epochs", Case("replicated"), 100)
    assert all(other == first for other in others)
    for epoch in first:
        assert sorted(n for batch in epoch for n in batch) == list(range(SAMPLES))
        assert [len(batch) for batch in epoch] == [8, 8, 8, 8, 8, 4]


def check_resumed(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """Batches of an epoch that is not interrupted, and of one that goes on after two."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    parallel, _ = model(case)
    share = tensoropt_torch.sampler_arguments(parallel)

    def make() -> Any:
        samples: Any = data()
        sampler = StatefulDistributedSampler(samples, shuffle=True, seed=3, **share)
        return StatefulDataLoader(samples, BATCH // share["num_replicas"], sampler=sampler)

    def numbers_of(batches: Iterator[Any], count: int = SAMPLES) -> list[list[int]]:
        return [batch[0].tolist() for batch, _ in zip(batches, range(count), strict=False)]

    whole = numbers_of(iter(make()))
    loader = make()
    begun = iter(loader)
    begin = [next(begun)[0].tolist() for _ in range(2)]
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    return whole, [*begin, *numbers_of(iter(again))]


@pytest.mark.parametrize("inputs", ["sharded", "replicated"])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(inputs: str) -> None:
    ranks = run_ranks(2, f"{HERE}:check_resumed", Case(inputs), 100)
    for whole, resumed in ranks:
        assert resumed == whole
    assert (ranks[0] == ranks[1]) == (inputs == "replicated")
