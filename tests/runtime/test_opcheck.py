"""``torch.library.opcheck`` over every operator of the library, on two ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

# Registers transformers::grouped_mm_fallback.
import transformers.integrations.moe  # noqa: F401

import tensoropt_torch.runtime.random  # noqa: F401 (its operator)
from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.parameter_queue import parameter_queue as new_queue
from tests.distributed.harness import run_ranks

HERE = "tests.runtime.test_opcheck"
RANKS = 2

SCHEMA = ("test_schema",)
# What is in a queue decides, not the arguments alone.
WITH_QUEUE = (*SCHEMA, "test_autograd_registration")
# Functionalization refuses operators that may return views, that call collectives in kernels
# which it traces, or whose shapes are numbers, as in plans.
WITHOUT_AOT = (*SCHEMA, "test_autograd_registration", "test_faketensor")
ALL = (*WITHOUT_AOT, "test_aot_dispatch_dynamic")


@dataclass(frozen=True)
class Case:
    """Arguments of a call, and the checks that apply to it."""

    args: Sequence[Any]
    checks: Sequence[str] = ALL
    keywords: dict[str, Any] = field(default_factory=dict)


def all_operators() -> list[str]:
    """All of the namespace, ``reshard`` or ``linear.bias``."""
    prefix = "tensoropt::"
    found = torch._C._dispatch_get_all_op_names()
    return sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


def gathering(group: str) -> tuple[list[int], list[str]]:
    """A program that gathers dim 0."""
    return [0, 0, 0, 0, RANKS, dist.get_rank()], [group]


def slicing() -> tuple[list[int], list[str]]:
    return [4, 0, 0, -1, RANKS, dist.get_rank()], []


DTYPES = {"dtype": torch.bfloat16, "reduce_dtype": torch.float32}
NOTHING: tuple[list[int], list[str]] = ([], [])


def reshards(group: str) -> dict[str, list[Case]]:
    programs = [
        (*gathering(group), *slicing()),
        (*slicing(), *gathering(group)),
        (*NOTHING, *gathering(group)),
        (*NOTHING, *NOTHING),
    ]
    return {
        "reshard": [
            Case((normal(4, 3).requires_grad_(grad), *program), WITHOUT_AOT, casts)
            for program in programs
            for grad in (True, False)
            for casts in ({}, DTYPES)
        ],
        "reshard_parameter": [
            Case((normal(4, 3), *program, new_queue(), 0), WITH_QUEUE, casts)
            for program in programs
            for casts in ({}, DTYPES)
        ],
        "begin_value": [
            Case((torch.randn(4, 3), *gathering(group), new_queue(), 0), WITH_QUEUE, casts)
            for casts in ({}, {"dtype": torch.bfloat16})
        ],
        "program": [Case(gathering(group), SCHEMA)],
        "run_program": [
            Case((torch.randn(4, 3), OPS.program(*program), dtype), SCHEMA)
            for program in (gathering(group), slicing())
            for dtype in (None, torch.bfloat16)
        ],
        "sum_over_ranks_": [Case((torch.randn(4), group), SCHEMA)],
        "put_value": [Case((torch.randn(4, 3), new_queue(), 0), WITH_QUEUE)],
        "begin_gathers": [
            Case(
                ([torch.randn(4, 3), torch.randn(2)], [1, 0], group, new_queue(), [0, 1]),
                WITH_QUEUE,
                casts,
            )
            for casts in ({}, {"dtype": torch.bfloat16})
        ],
        "await_gradients": [
            Case(([normal(4, 3), torch.randn(2), normal(2)], new_queue(), [0, 2, 1]), WITH_QUEUE),
            Case(([torch.randn(4, 3)], new_queue(), [0]), WITH_QUEUE),
        ],
        "reshard_gradients": [
            Case(
                ([normal(4, 3), torch.randn(2)], *gathering(group), new_queue(), [0, 1]),
                WITH_QUEUE,
                casts,
            )
            for casts in ({}, {"reduce_dtype": torch.float32})
        ],
        "halo_exchange": [
            Case((normal(4, 3), 0, low, high, 0.0, group), WITHOUT_AOT)
            for low, high in ((1, 2), (0, 1), (1, -1), (0, 0))
        ],
    }


def look_ups(group: str) -> dict[str, list[Case]]:
    ranges = [torch.tensor([3, ~0])]
    bags = (normal(4, 3), ids(8, 10), torch.tensor([0, 3, 3, 7]))
    return {
        "check_lookup": [Case((ids(8, 5), 0, 8, None, "op"), WITHOUT_AOT)],
        "bounded_lookup": [
            Case((ids(8, 5), 0, 8, None), WITHOUT_AOT),
            # Then it is no view, which fake tensors cannot know.
            Case((ids(8, 5) + 8, 0, 8, -100), (*SCHEMA, "test_autograd_registration")),
        ],
        "out_of_range": [Case((ranges, [0], [8]), (*SCHEMA, "test_autograd_registration"))],
        "check_lookups": [
            Case((torch.zeros((), dtype=torch.float64), ranges, [0], [8], ["op"], group), SCHEMA)
        ],
        "embedding_shard": [
            Case((normal(4, 3), ids(8, 5), 4, -1, 0)),
            Case((normal(4, 3), ids(8, 5) - 8, 0, -1, 8)),
        ],
        "gather_shard": [Case((normal(4, 3), ids(8, 2, 3), 0, 4))],
        "embedding_bag_shard": [
            Case((*bags, None, 0, False, -1, 4, 1, 2), WITHOUT_AOT),
            Case((*bags, normal(10), 0, False, -1, 4, 1, 2), WITHOUT_AOT),
        ],
        "embedding_bag_rows": [
            Case((normal(4, 3), ids(8, 5, 2), None, 0, -1, 4), WITHOUT_AOT),
            Case((normal(8, 3), ids(8, 5, 2), normal(5, 2), 0, -1), WITHOUT_AOT),
            Case((normal(8, 3), ids(8, 5, 2), None, 2, 3), WITHOUT_AOT),
        ],
        "_bag_bounds": [Case((torch.tensor([0, 3, 5]), 0, 2, 8), SCHEMA)],
    }


def losses(group: str) -> dict[str, list[Case]]:
    logits, target = normal(6, 4), ids(4, 6)
    vocabulary = (logits, ids(8, 6), ops.MEAN, -100, 0.1, 8, 4 * dist.get_rank(), group, "")
    return {
        "cross_entropy_sharded": [
            Case((logits, target, None, ops.MEAN, -100, 0.1, group)),
            Case((logits, target, torch.rand(4), ops.MEAN, -100, 0.0, group)),
        ],
        "nll_loss_sharded": [Case((normal(6, 4), target, None, -100, group))],
        "cross_entropy_vocab": [Case(vocabulary)],
        "_cross_entropy_vocab": [Case([_detached(a) for a in vocabulary])],
        "valid_divisor": [
            Case((target, None, 1)),
            Case((target, torch.rand(4), -100)),
        ],
        "forward_sums": [
            Case(([normal(6).sum(), torch.rand(())], [], [], [], [], group), WITHOUT_AOT),
            Case(([], [torch.rand(3), torch.rand(5)], [0, 1], [3, 2], [2, 1], group), WITHOUT_AOT),
        ],
        "sum_of": [Case((torch.rand(()), normal(6).sum(), group))],
        "mean_over_ranks": [Case((normal(6).sum(), target.ne(1).sum(), group))],
    }


def sequence_losses(_: str) -> dict[str, list[Case]]:
    scores = torch.randn(6, 2, 5).log_softmax(-1)
    lengths = torch.tensor([6, 5]), torch.tensor([3, 2])
    call = (torch.randint(1, 5, (2, 3)), *lengths, 0)
    trained = scores.clone().requires_grad_()
    return {
        "ctc_losses": [Case((trained, *call, infinite)) for infinite in (False, True)],
        "ctc_losses_backward": [Case((torch.rand(2), scores, *call, False))],
    }


def masks(group: str) -> dict[str, list[Case]]:
    x, mask, source = normal(4, 3), torch.rand(4, 3) > 0.5, normal(24)
    return {
        "masked_scatter_shard": [Case((x, mask, source, group), WITHOUT_AOT)],
        "count_before": [Case((mask, group)), Case((mask, ""))],
    }


def layers(group: str) -> dict[str, list[Case]]:
    norm = (normal(4, 3, 2), normal(3), normal(3), torch.zeros(3), torch.ones(3), 0.1, 1e-5)
    heads = (normal(2, 2, 4, 3), normal(2, 2, 8, 3), normal(2, 2, 8, 3))
    x, permuted = normal(4, 3, 2).detach(), normal(4, 2, 3).transpose(1, 2)
    return {
        "batch_norm_sharded": [
            Case((*norm, 0, [], group, ""), WITHOUT_AOT),
            Case((permuted, *norm[1:], 0, [4], group, ""), WITHOUT_AOT),
        ],
        "_batch_statistics": [Case((x,))],
        "_batch_gradient_sums": [Case((x, x, torch.zeros(3), torch.ones(3)))],
        "_batch_norm_sharded": [Case((*(_detached(a) for a in norm), 0, [], group, ""))],
        "batch_norm_groups": [
            Case((*norm, 1)),
            Case((*norm, 2)),
            Case((*norm[:3], torch.zeros(5), torch.ones(5), 0.1, 1e-5, 2, 1)),
            Case((norm[0], None, None, None, None, 0.1, 1e-5, 2)),
        ],
        "balanced_causal_attention": [Case((*heads, 0.0, None, False, group))],
        "write_into_": [
            Case((torch.zeros(12), [torch.randn(2, 2)], 2, 3), SCHEMA),
            Case((torch.zeros(12), [torch.randn(2, 2), torch.randn(3).t()], 1, 3), SCHEMA),
        ],
        # Behind the gate are leaves, whatever they are.
        "leaf_gate": [Case(([normal(4), normal(2, 3)],), SCHEMA)],
        "keep_mask": [Case((torch.rand(4, 3), 0.5, torch.tensor(7), [0, 1]))],
        "linear_blocks": [
            Case((normal(4, 2), normal(3, 5, 2), normal(3, 5))),
            Case((normal(4, 2), normal(2, 3, 5), None, True)),
        ],
        "linear_transposed": [
            Case((normal(4, 2), normal(2, 5), normal(5))),
            Case((normal(3, 4, 2), normal(2, 5))),
        ],
        "linear_sections": [
            Case((normal(4, 2), normal(6, 2), normal(6), [0, 4], [4, 2])),
            Case((normal(3, 4, 2), normal(6, 2), None, [1, 4], [2, 1])),
        ],
        "_linear_of_rows": [
            Case((normal(4, 2), normal(6, 2), normal(6), [1, 4], [2, 1])),
            Case((normal(3, 4, 2), normal(6, 2), None, [1, 4], [2, 1])),
        ],
        "grouped_mm_shard": [
            Case((normal(6, 3), normal(2, 3, 2), torch.tensor([2, 3, 5, 6]), 2), WITHOUT_AOT)
        ],
        "_group_sizes": [Case((torch.tensor([2, 3, 5, 6]), 1, 2, 6), SCHEMA)],
    }


def recurrent(group: str) -> dict[str, list[Case]]:
    x, h, c = normal(5, 2, 3), normal(1, 2, 2), normal(1, 2, 2)
    found: dict[str, list[Case]] = {}
    for cell, states, gates in (("lstm", (h, c), 4), ("gru", (h,), 3)):
        inputs, biases = normal(gates, 2, 3), (normal(gates, 2), normal(gates, 2))
        whole, part = normal(gates, 2, 2), normal(gates, 2, 2 * RANKS)
        given = [(None, None), biases]
        found[cell] = [Case((x, *states, inputs, whole, *b, False, True)) for b in given]
        shard = [Case((x, *states, inputs, part, *b, False, group)) for b in given]
        found[f"{cell}_shard"] = shard
    weights = (normal(4, 2, 3), normal(4, 2, 4))
    call = [_detached(a) for a in (x, h, c, *weights, None, None, False, group)]
    output, h_n, c_n, saved = torch.ops.tensoropt._recurrent_shard(*call)
    found["_recurrent_shard"] = [Case((x, h, c, *weights, None, None, False, group))]
    found["_recurrent_shard_backward"] = [Case(([output, h_n, c_n], [output, saved], *call))]
    return found


def experts(group: str) -> dict[str, list[Case]]:
    calls = ("transformers::grouped_mm_fallback", "silu", True, False)
    turned = (*calls[:-1], True)
    x, chosen, weights = normal(6, 5), ids(4, 6, 2), torch.rand(6, 2, requires_grad=True)
    matrices = (normal(4, 5, 6), normal(4, 3, 5))
    own = (normal(2, 5, 6), normal(2, 3, 5))
    split = (normal(4, 5, 6), normal(4, 3, 5))
    shared = (4, [2 * dist.get_rank()], "", "")
    ends = torch.tensor([2, 3, 5, 6])
    sizes = [4, 2] if dist.get_rank() else [2, 4]
    received = [2, 4] if dist.get_rank() == 0 else [4, 2]
    return {
        "routed_experts": [
            Case((x, chosen, weights, *matrices, *calls), WITHOUT_AOT),
            Case((x, chosen, weights, normal(4, 6, 5), normal(4, 5, 3), *turned), WITHOUT_AOT),
        ],
        "routed_experts_shard": [
            Case((x, chosen, weights, *own, *calls, *shared), WITHOUT_AOT),
            Case((x, chosen, weights, *own, *calls, 4, [0, 2], group, ""), WITHOUT_AOT),
            Case((x, chosen, weights, *split, *calls, 4, [0], "", group), WITHOUT_AOT),
        ],
        "_route": [Case((chosen, 4), WITHOUT_AOT)],
        "_routed_counts": [Case((ends, [0, 2], 2, 6, group), SCHEMA)],
        "_order_by_expert": [Case((torch.randn(6, 5), [2, 1, 1, 2], 2))],
        "exchange_rows": [Case((normal(6, 5), sizes, received, group))],
        "exchange_gates": [Case((normal(2, 6, 3), group, to_units)) for to_units in (True, False)],
    }


def counters(_: str) -> dict[str, list[Case]]:
    """Of the process: they take and give numbers."""
    found = {
        name: [Case((), SCHEMA)]
        for name in (
            "collective_counts",
            "reset_collective_counts",
            "network_time",
            "peak_allocated",
            "reset_peak_allocated",
        )
    }
    switches = ("time_network", "count_allocations")
    return found | {name: [Case((False,), SCHEMA)] for name in switches}


FAMILIES: tuple[Callable[[str], dict[str, list[Case]]], ...] = (
    reshards,
    look_ups,
    losses,
    sequence_losses,
    masks,
    layers,
    recurrent,
    experts,
    counters,
)
# The calls of one belong to a pass of backward, the other takes what was begun, once:
# tests/distributed/runtime/test_overlap.py. What is asked of a gate is asked of its node, which a
# copy of it has not: tests/runtime/test_leaf_gate.py.
IN_ORDER = {"begin_gradient", "begin_gradients", "take_gradients", "take_value"}
OF_GATES = {"watched_leaves", "written_leaves", "give_leaves", "pass_gate"}


def _detached(argument: Any) -> Any:
    return argument.detach() if isinstance(argument, torch.Tensor) else argument


def overload(name: str) -> torch._ops.OpOverload:
    packet, _, which = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.tensoropt, packet), which or "default")
    return found


def undeclared_aliases(op: torch._ops.OpOverload, case: Case) -> list[str]:
    """Outputs that share memory with an operand although the schema does not say so. As a
    caller sees it, and as kernels below autograd return it: ``opcheck`` looks at what these
    are called with only."""
    tensors = [a for a in case.args if isinstance(a, torch.Tensor)]
    operands = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    found = []
    for below in (False, True):
        with torch._C._AutoDispatchBelowAutograd() if below else nullcontext():
            outputs = op(*case.args, **case.keywords)
        outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        for i, (output, declared) in enumerate(zip(outputs, op._schema.returns, strict=False)):
            shared = isinstance(output, torch.Tensor) and output.numel() > 0
            shared = shared and output.untyped_storage().data_ptr() in operands
            if shared and declared.alias_info is None:
                found.append(f"output {i} is a view of an operand, below autograd: {below}")
    return found


def check_all(_: None) -> tuple[list[str], list[str]]:
    """The operators that were checked, and what was wrong."""
    groups = AxisGroups((RANKS,))
    groups.create([1])
    checked, wrong = [], []
    for family in FAMILIES:
        torch.manual_seed(0)
        for name, cases in family(groups.name(1)).items():
            checked.append(name)
            for number, case in enumerate(cases):
                results = torch.library.opcheck(
                    overload(name),
                    tuple(case.args),
                    case.keywords,
                    test_utils=case.checks,
                    raise_exception=False,
                )
                wrong += [
                    f"{name}, case {number}: {text}"
                    for text in undeclared_aliases(overload(name), case)
                ]
                wrong += [
                    f"{name}, case {number}, {check}: {result}"
                    for check, result in results.items()
                    if result != "SUCCESS"
                ]
    return checked, wrong


def test_every_operator_is_what_it_says() -> None:
    """But for that which only raises an error (``test_waiting.py``)."""
    for checked, wrong in run_ranks(RANKS, f"{HERE}:check_all", timeout_s=500):
        assert sorted({*checked, *IN_ORDER, *OF_GATES, "lost_ranks"}) == all_operators()
        assert not wrong, "\n".join(wrong)
