"""What a training step works on: rows, tokens and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tensoropt_torch.batches import batch_rows
from tensoropt_torch.config import Device
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.space.settings import Settings

# Operators whose FLOPs count, by their names in ATen: products of matrices, convolutions, attention
# and what is made of them.
PRODUCTS = frozenset(
    {
        *("linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "einsum", "_grouped_mm", "bilinear"),
        *("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose2d"),
        *("scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    }
)


@dataclass(frozen=True)
class StepWork:
    """What a training step works on.

    Attributes:
        rows: of the global batch.
        tokens: of all rows; 0: the inputs have none.
        flops: of forward and backward without recomputation, by dtype.
    """

    rows: int
    tokens: int
    flops: Mapping[str, float]

    @property
    def total_flops(self) -> float:
        return sum(self.flops.values())

    def peak_seconds(self, device: Device) -> float:
        """How long one device would take at the peaks of its data sheet.

        Raises:
            TensorOptError: the cluster has no peak for a dtype of it.
        """
        peaks: Mapping[str, float] = {str(name): rate for name, rate in device.flops_per_s.items()}
        for dtype in self.flops:
            if dtype not in peaks:
                raise TensorOptError(
                    f"device '{device.name}' has no peak for {dtype}, in which the model computes: "
                    f"known are {', '.join(peaks)}; add it to [device.flops_per_s]"
                )
        return sum(flops / peaks[dtype] for dtype, flops in self.flops.items())


def step_work(captured: CapturedModel, settings: Settings) -> StepWork:
    """Of a model with its whole batch, in a strategy space of any mesh."""
    return StepWork(
        batch_rows(captured, settings.whole_inputs),
        _tokens(captured),
        _flops_by_dtype(captured, settings),
    )


def _tokens(captured: CapturedModel) -> int:
    """Of the first input of whole numbers that has rows and positions."""
    for source in captured.inputs:
        value = source.placeholder.meta.get("val")
        if source.kind == "input" and isinstance(value, torch.Tensor) and _is_text(value):
            return value.numel()
    return 0


def _is_text(value: torch.Tensor) -> bool:
    return value.dtype in (torch.int64, torch.int32) and value.dim() == 2


def _flops_by_dtype(captured: CapturedModel, settings: Settings) -> dict[str, float]:
    space = make_space(captured, settings)
    nodes = {node.name: node for node in captured.graph_module.graph.nodes}
    targets = {row.name: row.target for row in space.nodes()}
    found: dict[str, float] = {}
    for row in space.work(space.random_strategy(0)):
        if _operator(targets.get(row.name, "")) in PRODUCTS:
            dtype = _dtype(nodes.get(row.name.rpartition(".")[2]))
            found[dtype] = found.get(dtype, 0.0) + row.flops
    return found


def _operator(target: str) -> str:
    """``linear`` of ``aten.linear.default``."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 else target


def _dtype(node: torch.fx.Node | None) -> str:
    value = node.meta.get("val") if node is not None else None
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    dtype = value.dtype if isinstance(value, torch.Tensor) else torch.float32
    return str(dtype).removeprefix("torch.")
