"""Gradients of gradients, of operators in all of their configs: the gradient of a gradient lies as
the value does, and what it adds to that of an operand as the operand's gradient.

Operators that communicate are left to ``tests/distributed/runtime/test_second_derivative_ops.py``.
"""

from __future__ import annotations

import pytest
import torch

from tensoropt_torch.rules.layouts import combine, split
from tests.rules.case import Case, Checks
from tests.rules.oracle import Bench
from tests.rules.test_rules import EVEN, UNEVEN

Tensors = list[torch.Tensor]
Found = list[torch.Tensor | None]


def _gradients(of: Tensors, to: Tensors, given: Tensors, again: bool = False) -> Found:
    """By tensor in ``to``; None where there is no way."""
    used = [i for i, tensor in enumerate(of) if tensor.requires_grad]
    leaves = [i for i, tensor in enumerate(to) if tensor.requires_grad]
    if not used or not leaves:
        return [None] * len(to)
    found = torch.autograd.grad(
        [of[i] for i in used],
        [to[i] for i in leaves],
        [given[i] for i in used],
        create_graph=again,
        retain_graph=True,
        allow_unused=True,
    )
    by_tensor = dict(zip(leaves, found, strict=True))
    return [by_tensor.get(i) for i in range(len(to))]


def _second(operands: Tensors, outputs: Tensors, incoming: Tensors, cotangents: Tensors) -> Found:
    """Of operands and incoming gradients, all ranks' together."""
    first = _gradients(outputs, operands, incoming, again=True)
    pairs = [(g, h) for g, h in zip(first, cotangents, strict=True) if g is not None]
    return _gradients([g for g, _ in pairs], [*operands, *incoming], [h for _, h in pairs])


def _joined(ranks: list[Tensors]) -> Tensors:
    return [tensor for tensors in ranks for tensor in tensors]


class SecondDerivatives:
    """Of one case on one mesh."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        random = torch.Generator().manual_seed(7)

        def like(tensor: torch.Tensor) -> torch.Tensor:
            made = torch.randn(tensor.shape, generator=random, dtype=torch.float64)
            return made.to(tensor.dtype)

        self.incoming = [like(t).requires_grad_(t.requires_grad) for t in bench.outputs]
        self.cotangents = [like(t) for t in bench.operands]
        self.whole = _second(bench.operands, bench.outputs, self.incoming, self.cotangents)

    def check(self, config: int) -> None:
        bench, random = self.bench, torch.Generator().manual_seed(config)
        inputs, outputs = bench.ports(config)
        run = bench.run(config, [value for value, _ in inputs], random)
        count, world = len(inputs), len(run.operands)
        incoming = self._split(self.incoming, [g for _, g in outputs], bench.units[count:], random)
        given = self._split(self.cotangents, [v for v, _ in inputs], bench.units[:count], random)
        for rank in incoming:
            for part, whole in zip(rank, self.incoming, strict=True):
                part.requires_grad_(whole.requires_grad)
        found = _second(
            _joined(run.operands), _joined(run.outputs), _joined(incoming), _joined(given)
        )
        places = [g for _, g in inputs] + [v for v, _ in outputs]
        wholes = [*bench.operands, *self.incoming]
        per_rank = [run.operands, incoming]
        for i, layout in enumerate(places):
            ranks, start, width = (
                (per_rank[0], 0, count) if i < count else (per_rank[1], world * count, len(outputs))
            )
            own = i if i < count else i - count
            parts = [
                torch.zeros_like(ranks[rank][own]) if part is None else part
                for rank in range(world)
                for part in [found[start + rank * width + own]]
            ]
            expected = self.whole[i]
            if expected is None:
                expected = torch.zeros_like(wholes[i])
            bound = 10 * bench.op_call.tolerance  # of two passes
            got = combine(
                [part.detach() for part in parts], layout, bench.sizes, bound, bench.units[i]
            )
            what = f"{bench.where(config)}: {'operand' if i < count else 'output'} {own}"
            torch.testing.assert_close(
                got, expected.detach(), rtol=bound, atol=bound, msg=lambda m, w=what: f"{w}: {m}"
            )

    def _split(
        self, wholes: Tensors, layouts: list[str], units: list[list[int]], random: torch.Generator
    ) -> list[Tensors]:
        by_tensor = [
            split(whole.detach(), layout, self.bench.sizes, random, own)
            for whole, layout, own in zip(wholes, layouts, units, strict=True)
        ]
        return [list(rank) for rank in zip(*by_tensor, strict=True)]


def _communicates(bench: Bench, config: int) -> bool:
    form = bench.forms(config)[0]
    return bool(form.groups or form.halos or form.averaged)


CASES = [c for c in (*EVEN, *UNEVEN) if c.checks == Checks.VALUES]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gradients_lie_as_values(case: Case) -> None:
    bench = Bench(case, (2,))
    try:
        second = SecondDerivatives(bench)
    except RuntimeError:  # PyTorch differentiates it once at most
        return
    for config in range(bench.num_configs):
        if not _communicates(bench, config):
            second.check(config)
