"""Gradients of gradients of the operators that communicate, of parts on the ranks against the
whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tensoropt_torch.rules.layouts import combine, split
from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tests import operators
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_second_derivative_ops"
SIZES = (2, 2)
FIRST, SECOND, BOTH = 0b01, 0b10, 0b11  # mesh axes
TARGET = torch.tensor([3, 0, -100, 5, 7, 2, -100, 6])

Layouts = tuple[str, str]  # of a value and of its gradient


@dataclass
class Op:
    """An operator whole and on one rank, and where operands and the result lie."""

    whole: Callable[..., torch.Tensor]
    local: Callable[..., torch.Tensor]
    shapes: list[tuple[int, ...]]
    operands: list[Layouts]
    result: Layouts


def halo(name: Callable[[int], str]) -> Op:
    def whole(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return F.conv1d(F.pad(x.tanh(), (2, 1)), kernel)

    def local(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        return F.conv1d(operators.halo_exchange(x.tanh(), 2, 2, 1, 0.0, name(BOTH)), kernel)

    layouts = [("R,R", "R,R") for _ in range(2)]
    layouts = [("S2,S2", "S2,S2"), ("R,R", "P,P")]
    return Op(whole, local, [(2, 3, 12), (4, 3, 4)], layouts, ("S2,S2", "S2,S2"))


def shorter_halo(name: Callable[[int], str]) -> Op:
    """Blocks end before their last entry, which belongs to no window."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        windows = F.pad(x.tanh(), (1, 0)).unfold(2, 2, 2)
        return windows.square().sum(-1)

    def local(x: torch.Tensor) -> torch.Tensor:
        return (
            operators.halo_exchange(x.tanh(), 2, 1, -1, 0.0, name(BOTH))
            .unfold(2, 2, 2)
            .square()
            .sum(-1)
        )

    return Op(whole, local, [(2, 3, 16)], [("S2,S2", "S2,S2")], ("S2,S2", "S2,S2"))


def _vocab(reduction: int, smoothing: float, result: str) -> Callable[[Any], Op]:
    """Classes are split over the second axis, positions over the first."""

    def make(name: Callable[[int], str]) -> Op:
        kind = "mean" if reduction == ops.MEAN else "sum"

        def whole(x: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(x, TARGET, reduction=kind, label_smoothing=smoothing)

        def local(x: torch.Tensor) -> torch.Tensor:
            row, column = divmod(dist.get_rank(), 2)
            target = TARGET.chunk(2)[row]
            groups = name(SECOND), name(FIRST)
            return operators.cross_entropy_vocab(
                x, target, reduction, -100, 8, 4 * column, *groups, smoothing
            )

        return Op(whole, local, [(8, 8)], [("S0,S1", "S0,S1")], (result, "R,R"))

    return make


def sharded_loss(name: Callable[[int], str]) -> Op:
    def whole(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x.tanh(), TARGET).square()

    def local(x: torch.Tensor) -> torch.Tensor:
        target = TARGET.chunk(4)[dist.get_rank()]
        return operators.cross_entropy_sharded(x.tanh(), target, count_group=name(BOTH)).square()

    return Op(whole, local, [(8, 8)], [("S0,S0", "S0,S0")], ("R,R", "R,R"))


def sums(name: Callable[[int], str]) -> Op:
    def whole(x: torch.Tensor) -> torch.Tensor:
        return x.square().sum().square()

    def local(x: torch.Tensor) -> torch.Tensor:
        share = x.square().sum()
        (found,) = torch.ops.tensoropt.forward_sums([share.detach()], [], [], [], [], name(BOTH))
        total: torch.Tensor = ops.OPS.sum_of(found, share, name(BOTH))
        return total.square()

    return Op(whole, local, [(8, 3)], [("S0,S0", "S0,S0")], ("R,R", "R,R"))


def _batch_norm(batch: int, channels: bool) -> Callable[[Any], Op]:
    def make(name: Callable[[int], str]) -> Op:
        def whole(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x.tanh(), None, None, weight, bias, training=True)

        def local(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return operators.batch_norm_sharded(
                x.tanh(), weight, bias, None, None, batch_group=name(batch)
            )

        rows = "S0,S1" if channels else "S0,S0"
        own: Layouts = ("R,S0", "P,S0") if channels else ("R,R", "P,P")
        return Op(whole, local, [(8, 4, 3), (4,), (4,)], [(rows, rows), own, own], (rows, rows))

    return make


def rows(name: Callable[[int], str]) -> Op:
    """Each rank sends a row to each."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        return x.square().view(4, 4, 3).transpose(0, 1).reshape(16, 3).tanh()

    def local(x: torch.Tensor) -> torch.Tensor:
        counts = [1] * 4
        exchanged: torch.Tensor = ops.OPS.exchange_rows(x.square(), counts, counts, name(BOTH))
        return exchanged.tanh()

    return Op(whole, local, [(16, 3)], [("S0,S0", "S0,S0")], ("S0,S0", "S0,S0"))


def gates(name: Callable[[int], str]) -> Op:
    """There and back."""

    def whole(x: torch.Tensor) -> torch.Tensor:
        return x.square().tanh()

    def local(x: torch.Tensor) -> torch.Tensor:
        there: torch.Tensor = ops.OPS.exchange_gates(x.square(), name(BOTH), True)
        back: torch.Tensor = ops.OPS.exchange_gates(there.tanh(), name(BOTH), False)
        return back

    return Op(whole, local, [(2, 24, 3)], [("S1,S1", "S1,S1")], ("S1,S1", "S1,S1"))


OPS = {
    "halo": halo,
    "shorter halo": shorter_halo,
    "vocabulary, mean": _vocab(ops.MEAN, 0.0, "R,R"),
    "vocabulary, smooth sum": _vocab(ops.SUM, 0.1, "P,R"),
    "vocabulary, smooth mean": _vocab(ops.MEAN, 0.1, "R,R"),
    "sharded loss": sharded_loss,
    "sums": sums,
    "batch norm": _batch_norm(BOTH, channels=False),
    "batch norm, channels": _batch_norm(FIRST, channels=True),
    "rows": rows,
    "gates": gates,
}


def _second(
    op: Callable[..., torch.Tensor],
    operands: list[torch.Tensor],
    incoming: torch.Tensor,
    cotangents: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Of the incoming gradient and the operands."""
    leaves = [x.requires_grad_() for x in (incoming, *operands)]
    first = torch.autograd.grad(op(*operands), operands, incoming, create_graph=True)
    found = torch.autograd.grad(first, leaves, cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def check(payload: tuple[str, int]) -> None:
    name, seed = payload
    groups = AxisGroups(SIZES)
    groups.create([FIRST, SECOND, BOTH])
    op = OPS[name](groups.name)
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    operands, cotangents = ([normal(*shape) for shape in op.shapes] for _ in range(2))
    incoming = normal(*op.whole(*operands).shape)

    def own(whole: torch.Tensor, layout: str) -> torch.Tensor:
        return split(whole, layout, SIZES, random)[dist.get_rank()]

    values = [value for value, _ in op.operands]
    got = _second(
        op.local,
        [own(x, value) for x, value in zip(operands, values, strict=True)],
        own(incoming, op.result[1]),
        [own(h, value) for h, value in zip(cotangents, values, strict=True)],
    )
    expected = _second(op.whole, operands, incoming, cotangents)
    layouts = [op.result[0], *(gradient for _, gradient in op.operands)]
    for number, (mine, whole, layout) in enumerate(zip(got, expected, layouts, strict=True)):
        parts: list[torch.Tensor] = [torch.empty(0)] * 4
        dist.all_gather_object(parts, mine)
        found = combine(parts, layout, SIZES, 1e-9, [1] * whole.dim())
        torch.testing.assert_close(
            found,
            whole,
            rtol=1e-8,
            atol=1e-8,
            msg=lambda m, n=number: f"{name}, seed {seed}: {n}: {m}",
        )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", OPS)
def test_gradients_of_gradients_are_those_of_the_whole(name: str, seed: int) -> None:
    run_ranks(4, f"{HERE}:check", (name, seed))


def refused(_: object) -> str:
    x = torch.randn(4, 3, 2, requires_grad=True)
    h = torch.zeros(1, 3, 4)
    weights = [torch.randn(3, 4, n, requires_grad=True) for n in (2, 4)]
    output, _ = ops.OPS.gru_shard(x, h, *weights, None, None, False, dist.group.WORLD.group_name)
    with pytest.raises(RuntimeError) as error:
        torch.autograd.grad(output.sum(), x, create_graph=True)
    return str(error.value)


def test_recurrent_layers_in_parts_refuse_it() -> None:
    (text,) = run_ranks(1, f"{HERE}:refused")
    assert "GRU, LSTM" in text and "create_graph=True" in text
