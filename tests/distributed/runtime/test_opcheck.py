"""Operators of ours are what they say that they are: ``torch.library.opcheck``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.library import opcheck

import tensoropt_torch.operators
import tensoropt_torch.runtime.random  # noqa: F401 (its operator)
from tensoropt_torch.emit.functional import TRACED
from tensoropt_torch.operators import OPS
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_opcheck"
SAID = ("test_schema", "test_autograd_registration", "test_faketensor")

# Those that change what no schema tells of: queues of a step, counts and clocks of a process,
# errors. And those that only others of ours call.
WITH_EFFECTS = frozenset(
    {
        *("await_gradients", "begin_gathers", "begin_gradient", "begin_value", "put_value"),
        *("take_value", "reshard_gradients", "reshard_parameter"),
        *("begin_gradients", "take_gradients", "program", "run_program", "sum_over_ranks_"),
        *("check_lookup", "check_lookups", "lost_ranks"),
        *("collective_counts", "reset_collective_counts", "network_time", "time_network"),
        *("count_allocations", "peak_allocated", "reset_peak_allocated"),
        *("leaf_gate", "watched_leaves", "written_leaves", "give_leaves", "pass_gate"),
        "ctc_losses_backward",
    }
)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def samples(group: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of each operator, in a job of one process."""
    torch.manual_seed(0)
    gather, total = [0, 0, -1, 0, 1, 0], [2, -1, -1, 0, 1, 0]
    ids, classes = torch.randint(0, 6, (4, 3)), torch.randint(0, 6, (4,))
    mask = torch.rand(4, 3) > 0.5
    norm = real(4, 3, 2), real(3), real(3), zeros(3), zeros(3) + 1, 0.1, 1e-5
    lstm = (
        real(2, 3, 4),
        real(1, 2, 5),
        real(1, 2, 5),
        real(4, 5, 4),
        real(4, 5, 5),
        None,
        None,
        True,
    )
    gru = real(2, 3, 4), real(1, 2, 5), real(3, 5, 4), real(3, 5, 5), None, None, True
    heads = real(1, 2, 4, 3), real(1, 2, 4, 3), real(1, 2, 4, 3)
    bags = torch.randint(0, 6, (7,)), torch.tensor([0, 2, 4])
    speech = zeros(5, 2, 4).log_softmax(-1).requires_grad_()
    lengths = torch.tensor([5, 5]), torch.tensor([3, 2])
    ends = torch.tensor([2, 6], dtype=torch.int32)
    experts = half(4, 8), torch.randint(0, 2, (4, 1)), half(4, 1), half(2, 8, 16), half(2, 16, 8)
    how = "aten::_grouped_mm", "gelu_tanh", False, False
    return {
        "balanced_causal_attention": (*heads, 0.0, None, False, group),
        "batch_norm_groups": (*norm, 2, 0),
        "batch_norm_sharded": (*norm, 0, [8], group, ""),
        "bounded_lookup": (ids, 0, 6, None),
        "count_before": (mask[0], group),
        "cross_entropy_sharded": (real(4, 6), classes, None, 1, -100, 0.1, group),
        "cross_entropy_vocab": (real(4, 6), classes, 1, -100, 0.0, 6, 0, group, group),
        "ctc_losses": (speech, torch.randint(1, 4, (2, 3)), *lengths, 0, False),
        "embedding_bag_rows": (real(6, 5), torch.tensor([[3, 0], [2, 3]]), None, 1, -1, 0),
        "embedding_bag_shard": (real(6, 5), *bags, None, 0, False, -1, 0, 0, 3),
        "embedding_shard": (real(6, 5), ids, 0, 2, 0),
        "exchange_gates": (real(1, 4, 2, 3), group),
        "exchange_rows": (real(4, 3), [4], [4], group),
        "forward_sums": ([zeros()], [zeros(5)], [0], [5], [1], group),
        "gather_shard": (real(4, 6), ids, 1, 0),
        "grouped_mm_shard": (real(6, 4), real(2, 4, 3), ends, 0),
        "gru": (*gru, True),
        "gru_shard": (*gru, group),
        "halo_exchange": (real(2, 3, 4), 1, 1, 1, 0.0, group),
        "write_into_": (torch.zeros(12), [torch.randn(2, 2), torch.randn(2, 1)], 2, 3),
        "keep_mask": (real(4, 3).detach(), 0.3, torch.tensor(7), [1, 2]),
        "linear_blocks": (real(4, 5), real(2, 3, 5), real(2, 3)),
        "linear_sections": (real(4, 5), real(6, 5), real(6), [0, 3], [2, 2]),
        "linear_transposed": (real(4, 5), real(5, 3), real(3)),
        "lstm": (*lstm, True),
        "lstm_shard": (*lstm, group),
        "masked_scatter_shard": (real(4, 3), mask, real(12), group),
        "mean_over_ranks": (real(), zeros() + 3, group),
        "nll_loss_sharded": (real(4, 6), classes, None, -100, group),
        "out_of_range": ([torch.tensor([0, 3])], [0], [6]),
        "reshard": (real(4, 3), gather, [group], total, [group]),
        "routed_experts": (*experts, *how),
        "routed_experts_shard": (*experts, *how, 2, [0], group, ""),
        "sum_of": (zeros(), real(), group),
        "valid_divisor": (classes, None, -100),
    }


def checked(_: object) -> tuple[set[str], list[str]]:
    """The operators that were called, and what is not as they say. Those that the compiler gets
    give what they give after tracing, too."""
    wrong = []
    of_each = samples(dist.group.WORLD.group_name)
    traced = {str(op).split(".")[1] for op in TRACED}
    for name, arguments in of_each.items():
        op = getattr(OPS, name).default
        utils = (*SAID, "test_aot_dispatch_static") if name in traced else SAID
        try:
            op(*arguments)
            opcheck(op, arguments, test_utils=utils)
        except Exception as error:
            wrong.append(f"{name}: {str(error)[-600:]}")
    return set(of_each), wrong


def test_operators_are_what_they_say() -> None:
    ((names, wrong),) = run_ranks(1, f"{HERE}:checked", None, 300)
    assert not wrong, "\n".join(wrong)
    full = (
        n.removeprefix("tensoropt::")
        for n in torch._C._dispatch_get_all_op_names()
        if n.startswith("tensoropt::")
    )
    known = {name for name in full if not name.startswith("_")}
    assert names | WITH_EFFECTS >= known
    assert not names & WITH_EFFECTS
