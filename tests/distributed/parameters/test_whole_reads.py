"""What PyTorch's ``DTensor`` has no way for, of parameters and gradients of a parallel module, is
that of one process, or one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Shard
from torch.nn import functional

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tests.distributed.harness import run_ranks
from tests.distributed.parameters.test_parameter_reads import close, gradients, number
from tests.distributed.parameters.test_parameter_writes import batch, made, plans
from tests.distributed.parity import whole

HERE = "tests.distributed.parameters.test_whole_reads"

PLACES = torch.tensor([0, 3, 3, 2])

# Of a matrix; several of them are called with one number after the other, of which none may count
# for the other.
READS: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda p: p[PLACES],
    "rows of a list": lambda p: p[[0, 3]],
    "columns": lambda p: p[:, PLACES],
    "elements": lambda p: p[PLACES, PLACES],
    "masked": lambda p: p[p > 0],
    "masked rows": lambda p: p[p[:, 0] > 0],
    "masked by a plain tensor": lambda p: p[torch.arange(len(p)) % 2 == 0],
    "index_select": lambda p: p.index_select(0, PLACES),
    "gather": lambda p: p.gather(0, PLACES[:, None]),
    "take": lambda p: p.take(PLACES),
    "masked_select": lambda p: p.masked_select(p > 0),
    "embedding": lambda p: functional.embedding(PLACES, p),
    "largest three": lambda p: p.topk(3, 0).values,
    "largest four": lambda p: p.topk(4, 0).values,
    "renorm": lambda p: torch.renorm(p, 2, 0, 0.1),
    "distances": lambda p: torch.cdist(p, p * 2),
    "singular values": lambda p: torch.linalg.svdvals(p),
    "unfold": lambda p: p.unfold(0, 2, 2),
    "flat": lambda p: p.view(-1),
    "pinv": lambda p: torch.linalg.pinv(p),
    "allclose": lambda p: float(torch.allclose(p, p + 1e-20)) + float(torch.allclose(p, p + 1)),
    "three bins": lambda p: torch.histc(p.detach(), 3),
    "four bins": lambda p: torch.histc(p.detach(), 4),
    "unique": lambda p: (p.detach() * 10).round().unique(return_counts=True)[1],
    "nonzero": lambda p: (p.detach() > 0.05).nonzero(),
    "list": lambda p: torch.tensor(p.detach().tolist()),
    "tensor of numbers": lambda p: torch.tensor([p.norm(), p.sum(), p.max()]),
    "tensor of integers": lambda p: torch.tensor([(p > 0).sum(), (p < 0).sum()]),
    "text": lambda p: float(f"{p.norm():.3f}") + float(f"{p.sum():8.2e}") + float(f"{p.std():.4g}"),
    "product with a number": lambda p: 2 * p * torch.tensor(0.5) - 1 + (3 - p) / 2,
}

WRITES: dict[str, Callable[[Tensor], Any]] = {
    "diagonal": lambda p: p.fill_diagonal_(0.25),
    "renorm": lambda p: p.renorm_(2, 0, 0.1),
}

BESIDE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mul": lambda p, x: p * x,
    "mul, reflected": lambda p, x: x * p,
    "lt": lambda p, x: x > p,
    "mm": lambda p, x: functional.linear(x, p),
    "where": lambda p, x: torch.where(x > 0, p, 0.0),
    "cat": lambda p, x: torch.cat([p, x]),
}


def read_all(_: None) -> list[str]:
    wrong, split = [], 0
    for index, plan in enumerate(plans(made())):
        one, module = made(), tensoropt_torch.parallelize(made(), plan)
        both: Any = zip(one.parameters(), module.parameters(), strict=True)
        pairs = [(their, own) for their, own in both if their.dim() == 2]
        split += sum(own.to_local().numel() < own.numel() for _, own in pairs)
        for name, read in READS.items():
            for their, own in pairs:
                expected, found = read(their), read(own)
                if not _are_equal(found, expected, their, own):
                    wrong.append(f"{name}, plan {index}: {found}, not {expected}")
        for name, write in WRITES.items():
            for their, own in pairs:
                with torch.no_grad():
                    write(their)
                    write(own)
                if not close(whole(own), their):
                    wrong.append(f"{name}, plan {index}")
        _check_refused(module)
        _check_rows_of_gradients(one, module)
    assert split
    return wrong


def _are_equal(found: Any, expected: Any, their: Tensor, own: Tensor) -> bool:
    if not isinstance(expected, Tensor):
        return abs(number(found) - number(expected)) < 1e-9
    same = found.shape == expected.shape and close(whole(found).double(), expected.double())
    if not same or not expected.requires_grad:
        return same
    theirs, ours = ([v.pow(2).sum()] for v in (expected, found))
    pairs = zip(gradients(ours[0], [own]), gradients(theirs[0], [their]), strict=True)
    return all(close(*pair) for pair in pairs)


def _check_refused(module: Any) -> None:
    p: Any = next(p for p in module.parameters() if p.dim() == 2)
    for name, beside in BESIDE.items():
        with pytest.raises(TensorOptError, match=rf"^{name.split(',')[0]} .*w = p.full_tensor\(\)"):
            beside(p, torch.ones(p.shape, dtype=p.dtype))
    with pytest.raises(TensorOptError, match=r"p.full_tensor\(\).numpy\(\)"):
        numpy.asarray(p.detach())
    with pytest.raises(TensorOptError, match="another tensor beside it on rank 1 than on rank 0"):
        p[torch.tensor([dist.get_rank()])]


def _check_rows_of_gradients(one: Any, module: Any) -> None:
    """Rows that are not trained: written by an index, or refused."""
    for network in (one, module):
        network(batch()).backward()
        network.qkv.weight.grad[PLACES] = 0
        network.qkv.weight.grad[1] = 7
    grad: Any = module.qkv.weight.grad
    assert close(grad.full_tensor(), one.qkv.weight.grad)
    if Shard(0) in grad.placements:
        with pytest.raises(TensorOptError, match="view of a parameter or gradient that is split"):
            grad[0].zero_()


def lbfgs(options: dict[str, Any]) -> list[list[float]]:
    found = []
    plan = list(plans(made()))[-1]
    for network in (made(), tensoropt_torch.parallelize(made(), plan)):
        optimizer = torch.optim.LBFGS(network.parameters(), lr=0.3, max_iter=4, **options)

        def closure(network: Any = network, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = network(batch())
            loss.backward()
            return loss

        found.append([float(optimizer.step(closure)) for _ in range(3)])
    return found


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_reads_are_those_of_one_process_or_refused(world_size: int) -> None:
    for wrong in run_ranks(world_size, f"{HERE}:read_all", None, 400):
        assert wrong == []


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}])
def test_lbfgs_is_that_of_one_process(options: dict[str, Any]) -> None:
    """On three ranks, which divide no dim of the parameters."""
    for expected, found in run_ranks(3, f"{HERE}:lbfgs", options, 400):
        assert found == pytest.approx(expected, rel=1e-6)
