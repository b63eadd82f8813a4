"""Functions that stand for ATen's names call the same operators, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._C._profiler import _ExperimentalConfig
from torch._ops import OpOverload
from torch.profiler import ProfilerActivity, profile

from tensoropt_torch.emit.quick_calls import QUICK, quick_forward

A = torch.ops.aten


def real(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.rand(shape, generator=generator) + 0.5


IMAGE, ROWS, VECTOR, IDS = real(2, 4, 6, 6), real(4, 6), real(6), torch.tensor([[1, 3, 0, 2]])
# The arguments of calls by position, and by name, as graphs have them.
CALLS: dict[OpOverload, list[tuple[Any, ...]]] = {
    A._log_softmax.default: [(ROWS, 1, False)],
    A._scaled_dot_product_flash_attention_for_cpu.default: [
        (IMAGE, IMAGE, IMAGE, 0.0, True),
        (IMAGE, IMAGE, IMAGE, 0.0, False, {"scale": 0.2}),
    ],
    A._softmax.default: [(ROWS, 1, False)],
    A.add.Tensor: [(ROWS, VECTOR), (ROWS, VECTOR, {"alpha": 2}), (ROWS, 2)],
    A.add_.Tensor: [(ROWS + 0, VECTOR)],
    A.addmm.default: [(VECTOR, ROWS, real(6, 6), {"beta": 1, "alpha": 1})],
    A.avg_pool2d.default: [(IMAGE, [2, 2], [1, 1], [0, 0], True, False)],
    A.adaptive_avg_pool2d.default: [(IMAGE, [2, 3])],
    A.baddbmm.default: [(real(2, 4, 5), real(2, 4, 3), real(2, 3, 5), {"beta": 0, "alpha": 3})],
    A.batch_norm.default: [
        (IMAGE, real(4), real(4), real(4), real(4), train, 0.1, 1e-5, False)
        for train in (True, False)
    ],
    A.bmm.default: [(real(2, 4, 3), real(2, 3, 5))],
    A.cat.default: [([ROWS, ROWS], 1), ([ROWS, ROWS], 0), ([ROWS, ROWS],)],
    A.chunk.default: [(ROWS, 2, 1), (ROWS, 2)],
    A.clamp.default: [(ROWS, 0.5), (ROWS, None, 1.0), (ROWS, 1.5, 2.5)],
    A.clone.default: [(ROWS,), (ROWS, {"memory_format": torch.contiguous_format})],
    A.conv1d.default: [(real(2, 4, 8), real(3, 4, 3), real(3), [2], [1], [1], 1)],
    A.conv2d.default: [(IMAGE, real(4, 2, 3, 3), None, [1, 1], [1, 1], [2, 2], 2)],
    A.convolution.default: [
        (IMAGE, real(3, 4, 3, 3), real(3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    ],
    A.cumsum.default: [(ROWS, 1), (ROWS, 0, {"dtype": torch.float64})],
    A.div.Tensor: [(ROWS, VECTOR), (ROWS, 2.0)],
    A.embedding.default: [(ROWS, IDS, -1, False, False), (ROWS, IDS, 2, True, False)],
    A.expand.default: [(VECTOR, [4, 6]), (VECTOR, [4, -1], {"implicit": True})],
    A.flatten.using_ints: [(IMAGE, 1, 2), (IMAGE,)],
    A.gather.default: [(ROWS, 1, IDS), (ROWS, 0, IDS, {"sparse_grad": False})],
    A.gelu.default: [(ROWS,), (ROWS, {"approximate": "tanh"}), (ROWS, {"approximate": "none"})],
    A.group_norm.default: [(IMAGE, 2, real(4), real(4), 1e-3, False)],
    A.layer_norm.default: [(ROWS, [6], VECTOR, VECTOR, 1e-3, False), (ROWS, [6])],
    A.linear.default: [(ROWS, real(3, 6), real(3)), (ROWS, real(3, 6)), (ROWS, real(3, 6), None)],
    A.log_softmax.int: [(ROWS, 1), (ROWS, -1, torch.float64), (ROWS, 0, None)],
    A.masked_fill.Scalar: [(ROWS, VECTOR > 1, float("-inf"))],
    A.matmul.default: [(ROWS, real(6, 3)), (real(2, 4, 3), real(3))],
    A.max_pool2d.default: [(IMAGE, [2, 2], [1, 1], [1, 1], [1, 1], True)],
    A.max_pool2d_with_indices.default: [(IMAGE, [2, 2], [1, 1], [1, 1], [1, 1], True)],
    A.mean.default: [(ROWS,), (ROWS, {"dtype": torch.float64})],
    A.mean.dim: [(ROWS, [1], True), (ROWS, [0, 1]), (ROWS, [-1], False, {"dtype": None})],
    A.mm.default: [(ROWS, real(6, 3))],
    A.mul.Tensor: [(ROWS, VECTOR), (ROWS, 2), (ROWS, 0.5)],
    A.narrow.default: [(ROWS, 1, 2, 3)],
    A.native_batch_norm.default: [
        (IMAGE, real(4), real(4), real(4), real(4), train, 0.1, 1e-5) for train in (True, False)
    ],
    A.native_group_norm.default: [(IMAGE, real(4), real(4), 2, 4, 36, 2, 1e-3)],
    A.native_layer_norm.default: [(ROWS, [6], VECTOR, None, 1e-3)],
    A.permute.default: [(IMAGE, [0, 2, 3, 1])],
    A.pow.Tensor_Scalar: [(ROWS, 2), (ROWS, 3.0)],
    A.reshape.default: [(ROWS, [2, 12]), (IMAGE.transpose(1, 2), [2, -1])],
    A.rms_norm.default: [(ROWS, [6], VECTOR, 1e-3), (ROWS, [6])],
    A.scaled_dot_product_attention.default: [
        (IMAGE, IMAGE, IMAGE, None, 0.0, True, {"scale": None, "enable_gqa": False}),
        (IMAGE, IMAGE, IMAGE, real(6, 6), 0.0, False, {"scale": 0.2}),
    ],
    A.select.int: [(ROWS, 1, 2)],
    A.softmax.int: [(ROWS, 1), (ROWS, -1, torch.float64)],
    A.split_with_sizes.default: [(ROWS, [1, 3]), (ROWS, [2, 4], 1)],
    A.squeeze.dim: [(real(4, 1), 1)],
    A.stack.default: [([ROWS, ROWS], 1), ([ROWS, ROWS],)],
    A.sub.Tensor: [(ROWS, VECTOR), (ROWS, VECTOR, {"alpha": 2})],
    A.sum.default: [(ROWS,), (ROWS, {"dtype": torch.float64})],
    A.sum.dim_IntList: [(ROWS, [0], True), (ROWS, None), (ROWS, [1]), (IMAGE, [0, 2])],
    A.to.dtype: [
        (ROWS, torch.bfloat16, False, False, None),
        (ROWS, torch.float32, False, True),
        (IMAGE, torch.bfloat16, False, False, torch.channels_last),
    ],
    A.transpose.int: [(IMAGE, 1, 2)],
    A.unbind.int: [(ROWS, 1), (ROWS,)],
    A.unsqueeze.default: [(ROWS, 1)],
    A.upsample_nearest2d.vec: [(IMAGE, [12, 12], None), (IMAGE, None, [2.0, 2.0])],
    A.view.default: [(ROWS, [2, 12])],
    A.where.self: [(VECTOR > 1, ROWS, VECTOR)],
    A._to_copy.default: [
        (ROWS, {"dtype": torch.bfloat16}),
        (ROWS, {"dtype": torch.float32}),
        (ROWS, {"dtype": torch.float64, "memory_format": torch.contiguous_format}),
    ],
}
# Of one tensor.
CALLS |= {op: [(ROWS + 0,)] for op in QUICK if op not in CALLS}


def graph_of(op: OpOverload, arguments: tuple[Any, ...]) -> tuple[fx.GraphModule, list[Any]]:
    """That of one call, and its inputs."""
    graph, tensors = fx.Graph(), []

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        return graph.placeholder(f"x{len(tensors)}")

    args, kwargs = arguments, {}
    if isinstance(args[-1], dict):
        *args, kwargs = args
    args = [[placed(x) for x in a] if _has_tensors(a) else placed(a) for a in args]
    graph.output(graph.call_function(op, tuple(args), kwargs))
    return fx.GraphModule({}, graph), tensors


def with_defaults(op: OpOverload, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """With all that the operator would take for what is not given."""
    args = list(arguments)
    named = dict(args.pop()) if isinstance(args[-1], dict) else {}
    for argument in op._schema.arguments[len(args) :]:
        if argument.name in named or not argument.has_default_value():
            continue
        if argument.kwarg_only or named:
            named[argument.name] = argument.default_value
        else:
            args.append(argument.default_value)
    return (*args, named) if named else tuple(args)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], torch.Tensor)


def called(forward: Any, tensors: list[Any]) -> tuple[Any, list[str]]:
    """What it gives for copies of the tensors, what these are then, and the operators that run."""
    tensors = [tensor.clone() for tensor in tensors]
    names = _ExperimentalConfig(capture_overload_names=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=names) as profiler:
        result = forward(*tensors)
    return (result, tensors), [f"{e.name}.{e.overload_name}" for e in profiler.events()]


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_a_function_calls_the_operator_that_it_stands_for(op: OpOverload) -> None:
    calls = CALLS[op]
    for arguments in [*calls, *(with_defaults(op, arguments) for arguments in calls)]:
        graph, tensors = graph_of(op, arguments)
        (expected, after), operators = called(graph.forward, tensors)
        (found, after_it), run = called(quick_forward(graph), tensors)
        if op is A._to_copy.default and len(run) > len(operators):
            assert run.pop(0) == "aten::to.dtype", arguments
        assert run == operators, arguments
        torch.testing.assert_close((found, after_it), (expected, after), rtol=0, atol=0)
        for one, other in zip(leaves(found), leaves(expected), strict=True):
            assert (one.dtype, one.stride()) == (other.dtype, other.stride()), arguments


def leaves(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def test_numbers_in_place_of_tensors_are_left_to_the_operator() -> None:
    graph, _ = graph_of(A.add.Tensor, (ROWS, 2))
    forward: Any = quick_forward(graph)
    assert "torch.ops.aten.add.Tensor" in forward.__self__.code


def test_the_copied_graph_keeps_the_names_of_operators() -> None:
    graph, tensors = graph_of(A.linear.default, (ROWS, real(3, 6)))
    quick_forward(graph)(*tensors)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [
        A.linear.default
    ]
