"""What a stage does while the ranks agree on a call, and what is left of one on which they do
not; and who waits for whom at the end of a step."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule, TensorOptError
from tensoropt_torch.module.stage_outputs import OutputExchange, StageOutput
from tensoropt_torch.runtime.stage_groups import StageGroups
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.calls.test_stage_confirmation"
AGREE = r"the ranks call the module differently|input 'ids' is not the same"


class Net(nn.Module):
    """Looks up, draws numbers, and counts its batches, all in the first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(8, 16), nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.drop(self.norm(self.table(ids)))).relu())


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all ranks."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(8, (8,), generator=generator)
    return ids, torch.randn(8, 4, generator=generator)


def net() -> ParallelModule:
    torch.manual_seed(0)
    ids, y = batch()
    model = Net()
    given = {"loss_fn": F.mse_loss, "targets": (y,)}
    plan = tensoropt_torch.find_stages(model, (ids,), stages=["body"], measure=False, **given)
    return tensoropt_torch.parallelize(model, plan, (ids,), **given)


def step(module: ParallelModule, seed: int) -> torch.Tensor:
    """A step of each mode."""
    ids, y = batch(seed)
    module.zero_grad()
    loss = module(ids, y)
    loss.backward()
    module.eval()
    with torch.no_grad():
        evaluated = module(ids, y)
    module.train()
    return torch.stack([loss.detach(), evaluated])


def check_disagreement(_: None) -> None:
    """In modes that were used before, so that the first stage computes at once; a rank also
    fails by itself."""
    disturbed, calm = net(), net()
    for module in (disturbed, calm):
        step(module, 0)
    ids, y = batch()
    ranks, seed = dist.get_world_size(), 1
    for wrong_rank in range(ranks):
        for failing in (False, True):
            is_wrong = dist.get_rank() == wrong_rank
            disturbed.train(not is_wrong)
            own = ids + 8 if failing and is_wrong else ids
            with pytest.raises(TensorOptError, match=AGREE):
                disturbed(own, y)
            disturbed.train()
            assert torch.equal(step(disturbed, seed), step(calm, seed))
            seed += 1
    for one, other in zip(disturbed.parameters(), calm.parameters(), strict=True):
        assert torch.equal(one.grad.to_local(), other.grad.to_local())
    for one, other in zip(disturbed.buffers(), calm.buffers(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("world", [2, 4])
def test_a_call_that_differs_leaves_nothing(world: int) -> None:
    run_ranks(world, f"{HERE}:check_disagreement", None, 200)


def check_exchange(shape: tuple[int, ...]) -> list[float]:
    """The stage that makes an output is done with it before the others ask for it."""
    groups = StageGroups(dist.get_world_size(), [1], torch.device("cpu"))
    value = torch.empty(shape, dtype=torch.float64, device="meta")
    node = torch.fx.Graph().placeholder("output")
    node.meta["val"] = value
    last = groups.stages - 1
    outputs = [StageOutput.of(node, (last, 0, 0), 0, None, False, 1)]
    exchange = OutputExchange(outputs, 1, groups)
    store = dist.distributed_c10d._get_default_store()
    made = torch.full(shape, 7.0, dtype=torch.float64)
    if groups.stage == last:
        (found,) = exchange.shared([[made]])
        store.set("done", "yes")
    else:
        store.wait(["done"])
        (found,) = exchange.shared([])
    return [float(found.sum()) / found.numel()]


@pytest.mark.parametrize("world", [2, 3])
def test_small_outputs_wait_for_nobody(world: int) -> None:
    assert run_ranks(world, f"{HERE}:check_exchange", (4, 4), 60) == [[7.0]] * world
    assert run_ranks(world, f"{HERE}:check_exchange", (), 60) == [[7.0]] * world


def check_large(_: None) -> list[float]:
    groups = StageGroups(2, [1], torch.device("cpu"))
    found = []
    for shape in ((1 << 15,), (3,)):
        value = torch.empty(shape, device="meta")
        node = torch.fx.Graph().placeholder("output")
        node.meta["val"] = value
        outputs = [StageOutput.of(node, (stage, 0, 0), 0, None, False, 1) for stage in (0, 1)]
        exchange = OutputExchange(
            [*outputs, StageOutput.of(5, (0, 0, 0), "same", None, False, 1)], 1, groups
        )
        own = torch.full(shape, float(groups.stage))
        first, second, number = exchange.shared([[own]])
        found += [float(first.mean()), float(second.mean()), number]
    return found


def test_outputs_of_all_sizes_and_stages_are_shared() -> None:
    assert run_ranks(2, f"{HERE}:check_large", None, 60) == [[0.0, 1.0, 5] * 2] * 2
