"""Losses to which a program adds what it computes of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.parameters.test_penalties"

Penalty = Callable[[Iterable[torch.Tensor]], torch.Tensor]

PENALTIES: dict[str, Penalty] = {
    "squares": lambda parameters: sum(p.pow(2).sum() for p in parameters),  # type: ignore[misc, return-value]
    "absolute values": lambda parameters: sum(p.abs().sum() for p in parameters),  # type: ignore[misc, return-value]
    "norms": lambda parameters: torch.stack([p.norm() for p in parameters]).sum(),
    "distance": lambda parameters: sum((p - p.detach() * 0.9).square().mean() for p in parameters),  # type: ignore[misc, return-value]
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 8)).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 12, generator=generator, dtype=torch.float64), torch.randint(
        8, (8,), generator=generator
    )


def gradients(inputs: str) -> list[str]:
    """What differs from one process: gradients and the values of the sums."""
    wrong, (x, y) = [], batch()
    shared = slice(None) if inputs == "replicated" else slice(*_share(len(x)))
    frontier = tensoropt_torch.find_frontier(
        net(),
        (x[shared],),
        loss_fn=nn.functional.cross_entropy,
        targets=(y[shared],),
        inputs=inputs,
    )
    for point in (frontier.smallest, frontier.fastest):
        for name, penalty in PENALTIES.items():
            one, module = net(), tensoropt_torch.parallelize(net(), point.plan)
            expected = nn.functional.cross_entropy(one(x), y) + 0.01 * penalty(one.parameters())
            found = module(x[shared], y[shared]) + 0.01 * penalty(module.parameters())
            expected.backward()
            found.backward()
            if abs(float(whole(found.detach())) - float(expected.detach())) > 1e-12:
                wrong.append(f"{name}: {found} instead of {expected}")
            wrong += [
                f"{name}: {own}"
                for (own, p), q in zip(module.named_parameters(), one.parameters(), strict=True)
                if not torch.allclose(whole(p.grad), q.grad, rtol=1e-10)  # type: ignore[arg-type]
            ]
    return wrong


def _share(rows: int) -> tuple[int, int]:
    size, rank = rows // dist.get_world_size(), dist.get_rank()
    return rank * size, (rank + 1) * size


def test_penalties_of_parameters_are_those_of_one_process() -> None:
    for inputs in ("replicated", "sharded"):
        for wrong in run_ranks(2, f"{HERE}:gradients", inputs, 120):
            assert wrong == [], inputs
