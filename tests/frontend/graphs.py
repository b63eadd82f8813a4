"""Exported graphs, and whether passes keep their numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from tensoropt_torch.frontend import passes
from tensoropt_torch.frontend.passes import Pass, target_name
from tests.frontend.training import (
    Layer,
    assert_bit_equal,
    batch,
    train_graph,
    train_module,
)

Body = Callable[..., Any]

LIFTED = "lifted"  # in the meta of placeholders: the tensor that the body made


def exported(model: nn.Module, *args: Any) -> fx.GraphModule:
    """The graph of a module as ``capture`` has it before the passes."""
    program = torch.export.export(model, args, strict=False)
    module = program.graph_module
    module.graph.owning_module = module
    for node in module.graph.find_nodes(op="placeholder"):
        if node.name not in program.graph_signature.user_inputs:
            node.meta[passes.BUFFER] = node.name in program.graph_signature.inputs_to_buffers
        lifted = program.graph_signature.inputs_to_lifted_tensor_constants.get(node.name)
        if lifted is not None:
            node.meta[LIFTED] = program.constants[lifted]
    return module


def normalised(body: Body, *run: Pass) -> tuple[Layer, fx.GraphModule]:
    """The layer and its graph after these passes, checked against the layer."""
    layer = Layer(body)
    module = exported(layer, batch())
    for one in run:
        one(module.graph)
        module.graph.lint()
    check_same(layer, module)
    return layer, module


def check_after_every_pass(body: Body) -> None:
    """All passes, one after the other, keep the numbers."""
    module = exported(Layer(body), batch())
    for run in passes.PASSES:
        run(module.graph)
        module.graph.lint()
        check_same(Layer(body), module)


def check_same(layer: Layer, module: fx.GraphModule) -> None:
    """Outputs, gradients and buffers."""
    ran = copy.deepcopy(layer)
    sources = {
        "p_linear_weight": ran.linear.weight,
        "p_linear_bias": ran.linear.bias,
        "b_offset": ran.offset,
    }
    values = []
    for node in module.graph.find_nodes(op="placeholder"):
        constant = node.meta.get(passes.FOLDED, node.meta.get(LIFTED))
        values.append(sources.get(node.name, batch()) if constant is None else constant)
    assert_bit_equal(train_graph(ran, module, values), train_module(layer, (batch(),)))
    assert torch.equal(ran.offset, layer.offset)


def targets(module: fx.GraphModule) -> list[str]:
    """The operators of the graph, in order."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return [target_name(node) or str(node.target) for node in calls]
