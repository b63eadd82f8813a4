"""Batch normalisation by groups of rows, beside ``DistributedDataParallel``."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tests.distributed.batch_norm import batch_norm_in_groups
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.rules.test_batch_norm_groups"
ROWS = 6  # of a rank
GROUPED: dict[str, Any] = {"inputs": "sharded", "measure": False}


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)]
    return nn.Sequential(*layers, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Of all ranks."""
    torch.manual_seed(1)
    rows = ROWS * dist.get_world_size()
    return torch.randn(rows, 3, 6, 6, dtype=torch.float64), torch.randint(5, (rows,))


def own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.detach(), expected.detach(), rtol=1e-9, atol=1e-11)


def mean_of_ranks(tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def check_beside_ddp(_: None) -> None:
    torch.manual_seed(0)
    model = convolutional().double()
    theirs = DistributedDataParallel(copy.deepcopy(model), broadcast_buffers=False)
    x, y = batch()
    ours = tensoropt_torch.auto_parallel(
        model,
        (x,),
        loss_fn=F.cross_entropy,
        targets=(y,),
        batch_norm_groups=dist.get_world_size(),
        **GROUPED,
    )
    loss = ours(own(x), own(y))
    loss.backward()
    expected = F.cross_entropy(theirs(own(x)), own(y))
    expected.backward()
    close(loss, mean_of_ranks(expected))
    for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert theirs_p.grad is not None
        close(ours_p.grad.full_tensor(), theirs_p.grad)
    for (name, buffer), theirs_b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        if not name.endswith("num_batches_tracked"):
            close(buffer, mean_of_ranks(theirs_b))
    ours.eval()
    with torch.no_grad():
        assert torch.isfinite(ours(own(x))).all()


@pytest.mark.parametrize("ranks", [2, 3])
def test_it_is_what_ddp_computes(ranks: int) -> None:
    run_ranks(ranks, f"{HERE}:check_beside_ddp", None, 100)


def check_calls(_: None) -> list[str]:
    """Collectives and calls of batch normalisation in a graph that splits the batch everywhere."""
    model = convolutional().double()
    x, y = batch()
    keywords = {"loss_fn": F.cross_entropy, "targets": (y,)}
    example = tensoropt_torch.Example(model, (x,), **keywords, batch_norm_groups=2)
    plan = tensoropt_torch.find_strategy(example, pin={"*": "b"}, cluster="cpu", **GROUPED)
    graph = tensoropt_torch.parallelize(example, plan).rank_graph.graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    names = [str(node.target).removesuffix(".default") for node in calls]
    return [name for name in names if "batch_norm" in name or "sum" in name or "mean" in name]


def test_running_statistics_are_averaged_at_once_with_the_loss() -> None:
    expected = [*["tensoropt.batch_norm_groups"] * 2, "tensoropt.forward_sums", "tensoropt.sum_of"]
    assert run_ranks(2, f"{HERE}:check_calls", None, 100) == [expected, expected]


class Twice(nn.Module):
    """A layer that is called twice, and once more in evaluation: its statistics are read in
    the forward that changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4) -> (b, 6)."""
        x = self.norm(self.last(self.norm(self.first(x))).tanh())
        norm = self.norm
        known = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return self.last(known) + norm.running_mean


def check_read_again(groups: int) -> None:
    torch.manual_seed(0)
    model = Twice().double()
    theirs = copy.deepcopy(model)
    x = torch.randn(8, 4, dtype=torch.float64)
    frontier = tensoropt_torch.find_frontier(
        model, (x,), loss_fn=_square, batch_norm_groups=groups, cluster="cpu", measure=False
    )
    with batch_norm_in_groups(groups):
        expected = _square(theirs(x))
        expected.backward()
    for point in frontier.thinned(4):
        ours = tensoropt_torch.parallelize(copy.deepcopy(model), point.plan, (x,))
        loss = ours(x)
        loss.backward()
        close(loss, expected)
        for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
            close(ours_p.grad.full_tensor(), theirs_p.grad)
        for ours_b, theirs_b in zip(ours.buffers(), theirs.buffers(), strict=True):
            close(ours_b, theirs_b)


def _square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.mark.parametrize("groups", [2, 4])
def test_statistics_are_averaged_before_they_are_read(groups: int) -> None:
    run_ranks(2, f"{HERE}:check_read_again", groups, 100)


def check_variants(_: None) -> None:
    """Other shapes and modes keep the groups; so do batches that these do not divide."""
    torch.manual_seed(0)
    groups = dist.get_world_size()
    model = convolutional().double()
    theirs = copy.deepcopy(model)
    x, _ = batch()
    ours = tensoropt_torch.auto_parallel(
        model, (x,), loss_fn=_square, batch_norm_groups=groups, measure=False
    )
    for rows in (len(x), len(x) - 3):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                loss = ours(x[:rows])
                with batch_norm_in_groups(groups):
                    close(loss, _square(theirs(x[:rows])))
    for ours_b, theirs_b in zip(ours.buffers(), theirs.buffers(), strict=True):
        close(ours_b, theirs_b)
    ours.eval()
    theirs.eval()
    close(ours(x), _square(theirs(x)))


def test_calls_of_other_kinds_keep_the_groups() -> None:
    run_ranks(2, f"{HERE}:check_variants", None, 150)


def test_a_group_needs_two_numbers() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    message = r"\[8, 6\] in batch_norm_groups = 8, .* give a batch of 16 rows or fewer groups"
    with pytest.raises(TensorOptError, match=message):
        tensoropt_torch.find_frontier(
            model, (torch.randn(8, 4),), loss_fn=_square, batch_norm_groups=8, num_devices=2
        )
    with pytest.raises(TensorOptError, match="batch_norm_groups = 0 is not allowed"):
        tensoropt_torch.Example(model, batch_norm_groups=0)


def test_micro_batches_do_not_change_running_statistics() -> None:
    """Which would be changed by each of them, one after the other."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    with pytest.raises(TensorOptError, match="changes a buffer in every forward"):
        tensoropt_torch.find_frontier(
            model,
            (torch.randn(8, 4),),
            loss_fn=_square,
            batch_norm_groups=2,
            max_micro_batches=2,
            num_devices=2,
        )


def check_sync(_: None) -> None:
    """Converted, as on GPUs: one layer only, the other keeps its groups."""
    torch.manual_seed(0)
    model = convolutional().double()
    theirs = copy.deepcopy(model)
    model[4] = nn.SyncBatchNorm.convert_sync_batchnorm(model[4])
    x, _ = batch()
    ours = tensoropt_torch.auto_parallel(
        model, (x,), loss_fn=_square, batch_norm_groups=2, measure=False
    )
    loss = ours(x)
    with batch_norm_in_groups(2):
        hidden = theirs[:4](x)
    expected = _square(theirs[4:](hidden))
    close(loss, expected)
    for ours_b, theirs_b in zip(ours.buffers(), theirs.buffers(), strict=True):
        close(ours_b, theirs_b)


def test_sync_batch_norm_is_that_of_the_whole_batch() -> None:
    run_ranks(2, f"{HERE}:check_sync", None, 100)
