"""LSTM and GRU layers whose units are split, against one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tests import operators
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.rules.test_recurrent"
STEPS, BATCH, FEATURES = 5, 3, 7
TOLERANCE = 1e-12  # everything is computed in float64
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
GATES = {"lstm": 4, "gru": 3}
Tensors = list[torch.Tensor]


def make_layer(cell: str, units: int, bias: bool, batch_first: bool) -> nn.RNNBase:
    torch.manual_seed(0)
    options = {"bias": bias, "batch_first": batch_first, "dtype": torch.float64}
    layer = CELLS[cell](FEATURES, units, **options)
    assert isinstance(layer, nn.RNNBase)
    return layer


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def run_whole(layer: nn.RNNBase, x: torch.Tensor, states: Tensors) -> Tensors:
    """Output and last states of one process."""
    output, last = layer(x, tuple(states) if len(states) == 2 else states[0])
    return [output, *last] if len(states) == 2 else [output, last]


def run_shard(
    x: torch.Tensor, states: Tensors, weights: Tensors, group: str, batch_first: bool
) -> Tensors:
    if len(states) == 2:
        return list(operators.lstm_shard(x, (states[0], states[1]), weights, group, batch_first))
    return list(operators.gru_shard(x, states[0], weights, group, batch_first))


def close(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    torch.testing.assert_close(
        got, expected, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m: f"{what}: {m}"
    )


def check_layer(payload: tuple[str, bool, bool]) -> list[ops.CollectiveCounts]:
    """Every result and gradient of the layer, with as many units as there are
    ranks times 4; returns the collectives of forward and of both passes."""
    cell, bias, batch_first = payload
    size, rank = dist.get_world_size(), dist.get_rank()
    groups = AxisGroups((size,))
    groups.create([1])
    layer = make_layer(cell, 4 * size, bias, batch_first)
    shape = (BATCH, STEPS) if batch_first else (STEPS, BATCH)
    x = draw(*shape, FEATURES)
    states = [draw(1, BATCH, 4 * size) for _ in range(2 if cell == "lstm" else 1)]
    leaves = [x, *states, *layer.parameters()]
    for leaf in leaves:
        leaf.requires_grad_()
    expected = run_whole(layer, x, states)
    given = [torch.randn_like(tensor) for tensor in expected]
    wanted = torch.autograd.grad(expected, leaves, given)

    def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.detach().chunk(size, dim)[rank].clone()

    def by_gates(stacked: torch.Tensor) -> torch.Tensor:
        return stacked.unflatten(0, (GATES[cell], 4 * size))

    own = [x.detach().clone(), *(part(s, 2) for s in states)]
    own += [part(by_gates(w), 1) for w in layer.parameters()]
    for leaf in own:
        leaf.requires_grad_()
    split = 1 + len(states)
    ops.reset_collective_counts()
    got = run_shard(own[0], own[1:split], own[split:], groups.name(1), batch_first)
    forward = ops.collective_counts()
    found = torch.autograd.grad(got, own, [part(g, 2) for g in given])
    both = ops.collective_counts()
    for i, (tensor, whole) in enumerate(zip(got, expected, strict=True)):
        close(tensor.detach(), part(whole, 2), (payload, size, f"result {i}"))
    gradient = found[0].contiguous()
    dist.all_reduce(gradient)
    close(gradient, wanted[0], (payload, size, "input"))
    for i in range(1, len(own)):
        expected_part = part(wanted[i], 2) if i < split else part(by_gates(wanted[i]), 1)
        close(found[i], expected_part, (payload, size, f"operand {i}"))
    return [forward, both]


@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_split_units_give_the_layer(cell: str, size: int) -> None:
    results = run_ranks(size, f"{HERE}:check_layer", (cell, True, False))
    for forward, both in results:
        assert (forward.all_gather, forward.reduce_scatter) == (STEPS, 0)
        assert (both.all_gather, both.reduce_scatter) == (STEPS + 1, STEPS)
        assert (both.all_to_all, both.all_reduce) == (0, 0)


@pytest.mark.parametrize("cell", list(CELLS))
@pytest.mark.parametrize(("bias", "batch_first"), [(False, False), (True, True)])
def test_without_biases_and_batch_first(cell: str, bias: bool, batch_first: bool) -> None:
    run_ranks(4, f"{HERE}:check_layer", (cell, bias, batch_first))


def check_saved_bytes(cell: str) -> list[int]:
    """Bytes of what autograd saves beyond operands, storages counted once."""
    size = dist.get_world_size()
    groups = AxisGroups((size,))
    groups.create([1])
    gates = GATES[cell]
    states = [draw(1, BATCH, 4) for _ in range(2 if cell == "lstm" else 1)]
    weights = [draw(gates, 4, FEATURES), draw(gates, 4, 4 * size)]
    operands = [draw(STEPS, BATCH, FEATURES).requires_grad_(), *states, *weights]
    known = {tensor.untyped_storage().data_ptr() for tensor in operands}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run_shard(operands[0], states, weights, groups.name(1), False)
    return sorted(saved.values())


@pytest.mark.parametrize(("cell", "numbers"), [("lstm", 5), ("gru", 4)])
def test_what_is_saved_is_what_the_rule_says(cell: str, numbers: int) -> None:
    unit = STEPS * BATCH * 4 * 8
    for sizes in run_ranks(2, f"{HERE}:check_saved_bytes", cell):
        assert sizes == [unit, numbers * unit]  # the output, and the cell's numbers


@pytest.mark.parametrize("batch_first", [False, True])
def test_fake_tensors_need_no_group(batch_first: bool) -> None:
    shape = (3, 5) if batch_first else (5, 3)
    with FakeTensorMode():
        x = torch.empty(*shape, 7, requires_grad=True)
        h = torch.empty(1, 3, 4)
        lstm = [torch.empty(4, 4, 7, requires_grad=True), torch.empty(4, 4, 8)]
        gru = [torch.empty(3, 4, 7, requires_grad=True), torch.empty(3, 4, 8)]
        gru += [torch.empty(3, 4), torch.empty(3, 4)]
        for output, weights in (
            (operators.lstm_shard(x, (h, h), lstm, "no group", batch_first)[0], lstm),
            (operators.gru_shard(x, h, gru, "no group", batch_first)[0], gru),
        ):
            assert output.shape == (*shape, 4)
            found = torch.autograd.grad(output.sum(), [x, weights[0]])
            assert [g.shape for g in found] == [x.shape, weights[0].shape]


def test_operands_that_do_not_fit_are_refused() -> None:
    x, h = torch.zeros(2, 3, 7), torch.zeros(1, 3, 4)
    weights = [torch.zeros(4, 4, 7), torch.zeros(4, 4, 8)]
    with pytest.raises(ValueError, match="weights of 3 gates of 4 units"):
        operators.gru_shard(x, h, weights, "g")
    with pytest.raises(ValueError, match=r"states \[1, b, u\]"):
        operators.lstm_shard(x, (h[0], h[0]), weights, "g")
