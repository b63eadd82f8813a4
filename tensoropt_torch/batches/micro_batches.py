"""The graph of one of the micro-batches that a batch is run as.

::

    part = micro_batched(captured, 4)    # the graph of a quarter of the rows
    splits = BatchSplits(captured)       # of several numbers
    parts = [splits.of(count) for count in doubled(16)]

Micro-batches are to a batch what devices are to it under data parallelism, but for when they
run. So that they may be run one by one is proven by the rules of the operators: on a mesh
of one axis with as many devices as there are micro-batches every operator must have a config
that takes its operands as its producers leave them, split along the same rows or as pending
sums, up to a loss that is a pending sum. What one rank calls there is what one micro-batch
computes, sizes, means and all.

A value that mixes rows, but depends on no parameter, as the number of valid targets does, is
computed before for the whole batch: a total. Everything else that mixes rows is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from tensoropt_torch.batches.counted_losses import with_counts
from tensoropt_torch.batches.refusals import refusal
from tensoropt_torch.batches.value_rows import SplitRows, batch_rows
from tensoropt_torch.batches.writer import MicroBatchWriter
from tensoropt_torch.collector import without_collections
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.lowering import operator_name
from tensoropt_torch.frontend.passes.nodes import changes_memory, running_statistics, value_of


def doubled(most: int) -> list[int]:
    """2, 4, 8 and so on, up to ``most``: numbers of micro-batches, or of stages, that are tried."""
    return [2**power for power in range(1, most.bit_length())]


class BatchSplits:
    """The graphs of the micro-batches of one batch; what is the same for all numbers of them is
    made once.

    Args:
        captured: of a training step, with its loss, unless gradients are ``deferred``; or the
            graph of one of its micro-batches.
        whole_inputs: names of inputs that all micro-batches get whole; so do those whose dim 0
            is not that of the first input.
        deferred: gradients are made when all micro-batches have run, of whatever is computed of
            the outputs.
    """

    def __init__(
        self,
        captured: CapturedModel,
        whole_inputs: Sequence[str] = (),
        *,
        deferred: bool = False,
    ) -> None:
        self._given = captured
        self._whole = captured.batch or captured
        self._whole_inputs = whole_inputs
        self._deferred = deferred

    @without_collections()
    def of(self, count: int) -> CapturedModel:
        """The graph of one of ``count`` micro-batches. One that is in so many already stays as it
        is.

        Raises:
            TensorOptError: the batch cannot be split so, or its loss is not that of its parts;
                says where.
        """
        if count == self._given.micro_batches:
            return self._given
        if count == 1:
            return self._whole
        _check(self._whole, count, self._whole_inputs)
        if not self._deferred:
            _check_casts(self._whole, count)
        rows = SplitRows(self._counted, count, self._whole_inputs)
        writer = MicroBatchWriter(self._counted, rows, count)
        return replace(writer.write(needs_loss=not self._deferred), batch=self._whole)

    @cached_property
    def _counted(self) -> CapturedModel:
        return with_counts(self._whole)


def micro_batched(
    captured: CapturedModel, count: int, whole_inputs: Sequence[str] = (), *, deferred: bool = False
) -> CapturedModel:
    """The graph of one of ``count`` micro-batches of the captured batch, see ``BatchSplits``."""
    return BatchSplits(captured, whole_inputs, deferred=deferred).of(count)


def _check(captured: CapturedModel, count: int, whole_inputs: Sequence[str]) -> None:
    rows = batch_rows(captured, whole_inputs)
    if rows == 0 or rows % count != 0:
        raise refusal(
            count, f"the batch has {rows} rows, which {count} does not divide", "take a divisor"
        )
    for source in captured.inputs:
        if source.kind == "input" and value_of(source.placeholder).requires_grad:
            raise refusal(
                count, f"input '{source.names[0]}' requires a gradient", "detach it before"
            )
    for node in captured.graph_module.graph.nodes:
        if changes_memory(node) or running_statistics(node):
            what = f"op '{operator_name(node)}' ({node.target}) changes a buffer in every forward"
            raise refusal(count, what, "leave it out (for BatchNorm: GroupNorm or LayerNorm)")


def _check_casts(captured: CapturedModel, count: int) -> None:
    for device, dtype in captured.context.autocast:
        if dtype == torch.float16:
            raise refusal(
                count,
                f"gradients of float16 on {device} are made before a GradScaler scales the loss",
                "use bfloat16, or stages with find_stages(schedule='gpipe')",
            )
