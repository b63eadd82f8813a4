"""What programs compute of parameters and gradients is that of one process: numbers that they
print, and sums that they add to the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tests.distributed.harness import run_ranks
from tests.distributed.parameters.test_parameter_writes import batch, made, plans
from tests.distributed.parity import whole

HERE = "tests.distributed.parameters.test_parameter_reads"

Read = Callable[[Sequence[Tensor]], Tensor | float]


def to_target(loss: Callable[[Tensor, Tensor], Tensor]) -> Read:
    """Of each parameter, and one that is near."""
    return lambda parameters: total([loss(p, p.detach() * 0.5 + 0.3) for p in parameters])


def between(loss: Callable[[Tensor, Tensor], Tensor]) -> Read:
    """As ``to_target``, of numbers between 0 and 1."""
    return to_target(lambda p, q: loss(p.sigmoid(), q.sigmoid()))


def total(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(values).sum()


READS: dict[str, Read] = {
    "numbers of norms": lambda ps: sum(p.norm().item() ** 2 for p in ps) ** 0.5,
    "number of a norm of data": lambda ps: float(ps[0].data.norm(2)),
    "number of a sum": lambda ps: ps[0].sum().item(),
    "number of a mean": lambda ps: ps[0].mean().item(),
    "number of a maximum": lambda ps: ps[0].max().item(),
    "number of an element": lambda ps: ps[0][40, 3].item(),
    "count": lambda ps: int((ps[0] > 0).sum()),
    "truth": lambda ps: float(bool((ps[0] > ps[0].max().item() - 1e-3).any())),
    "any of columns": lambda ps: (ps[0] > 0.1).any(0).sum().double(),
    "all of columns": lambda ps: (ps[0] < 0.2).all(0).sum().double(),
    "sum of norms": lambda ps: total([p.norm() for p in ps]),
    "mean of norms": lambda ps: torch.stack([p.norm() for p in ps]).mean(),
    "joined norms": lambda ps: torch.cat([p.norm().view(1) for p in ps]).sum(),
    "norms of several": lambda ps: torch.stack(torch._foreach_norm([p.detach() for p in ps])).sum(),
    "norms of columns": lambda ps: ps[0].norm(dim=0).sum(),
    "norm of norms": lambda ps: torch.stack([p.norm() for p in ps]).norm(),
    "largest element": lambda ps: ps[0].abs().amax(),
    "number of the largest": lambda ps: ps[0].detach().norm(float("inf")).item(),
    "total norm": lambda ps: torch.nn.utils.get_total_norm(ps),
    "squares": lambda ps: total([p.pow(2).sum() for p in ps]),
    "absolute values": lambda ps: total([p.abs().sum() for p in ps]),
    "squared error": to_target(functional.mse_loss),
    "sum of squared errors": to_target(lambda p, q: functional.mse_loss(p, q, reduction="sum")),
    "absolute error": to_target(functional.l1_loss),
    "smooth error": to_target(functional.smooth_l1_loss),
    "error of Huber": to_target(functional.huber_loss),
    "soft margin": to_target(functional.soft_margin_loss),
    "entropy": between(functional.binary_cross_entropy),
    "entropy of logits": to_target(
        lambda p, q: functional.binary_cross_entropy_with_logits(p, q.sigmoid())
    ),
}


def gradients(value: Tensor | float, parameters: Sequence[Tensor]) -> list[Tensor]:
    if not isinstance(value, Tensor) or not value.requires_grad:
        return []
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [whole(g) for g in found if g is not None]


def number(value: Tensor | float) -> float:
    return float(whole(value)) if isinstance(value, Tensor) else float(value)


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-9, atol=1e-12)


def read_all(_: None) -> list[str]:
    wrong, split = [], 0
    for index, plan in enumerate(plans(made())):
        one, module = made(), tensoropt_torch.parallelize(made(), plan)
        theirs, own = list(one.parameters()), list(module.parameters())
        split += sum(p.to_local().numel() < p.numel() for p in own)  # type: ignore[attr-defined]
        for name, read in READS.items():
            expected, found = read(theirs), read(own)
            if abs(number(found) - number(expected)) > 1e-9 * (1 + abs(number(expected))):
                wrong.append(f"{name}, plan {index}: {number(found)}, not {number(expected)}")
            pairs = zip(gradients(found, own), gradients(expected, theirs), strict=True)
            if not all(close(*pair) for pair in pairs):
                wrong.append(f"{name}, plan {index}: its gradients")
        for network in (one, module):
            network(batch()).backward()
        norms = [
            sum(float(p.grad.norm()) for p in network.parameters() if p.grad is not None)
            for network in (one, module)
        ]
        if abs(norms[0] - norms[1]) > 1e-9:
            wrong.append(f"norms of gradients, plan {index}: {norms}")
    assert split
    return wrong


def largest(_: None) -> None:
    module = tensoropt_torch.parallelize(made(), next(plans(made())))
    with pytest.raises(TensorOptError, match=r"p.abs\(\).amax"):
        module.qkv.weight.norm(float("inf"))
    with torch.no_grad():
        module.qkv.weight.norm(float("inf"))


def test_gradients_that_would_be_wrong_are_refused() -> None:
    run_ranks(2, f"{HERE}:largest")


def test_reads_are_those_of_one_process() -> None:
    for wrong in run_ranks(2, f"{HERE}:read_all", None, 240):
        assert wrong == []
