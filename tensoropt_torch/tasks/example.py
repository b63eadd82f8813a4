"""What is planned: a model with an example of its global batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import nn

from tensoropt_torch.checks import check_whole
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import CallContext, CapturedModel, capture
from tensoropt_torch.frontend.call_context import (
    Autocast,
    Outputs,
    autocast_device,
    current_autocast,
)
from tensoropt_torch.measure.runs.batch import Batch
from tensoropt_torch.module.shared import check_not_parallel
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.units import dtype_name

# A module, one of ATen calls included, or a program that was exported already.
Model = nn.Module | torch.export.ExportedProgram

AutocastDType = Literal["bfloat16", "float16"]


@dataclass(frozen=True)
class Example:
    """A model with an example of its global batch.

    Every function that plans takes one in place of ``model, args, kwargs``::

        example = Example(model, (tokens,), loss_fn=cross_entropy, targets=(labels,))
        plan = find_strategy(example, cluster="h100-8")  # or find_strategy(model, (x, y))

    Attributes:
        model: an ``nn.Module``, one of ATen calls included; or an ``ExportedProgram``,
            which has example inputs of its own.
        args, kwargs: inputs of the **global** batch. Values do not matter for planning,
            so tensors on the meta device will do; real ones are those that plans are run with
            where a job runs. Containers may be nested.
        loss_fn: called with the model's output and ``targets`` if the loss is not
            computed inside the module.
        targets: what ``loss_fn`` takes besides, of the global batch.
        outputs: what a training step gives of an output with a ``loss``: ``"loss"``, that
            alone, so that no device has to hold, say, all logits; or ``"all"``, and with a
            ``loss_fn`` the pair of loss and output.
        batch_norm_groups: in training batch normalisation takes the statistics of so many
            equal parts of the batch (``torch.chunk``, dim 0 of what the layer is given), each
            of them by itself: as many as processes for what ``DistributedDataParallel``
            computes with ``nn.BatchNorm``, whatever the plan, without a collective in each
            layer. Running statistics move by the mean of the groups. By default 1: those of
            the whole batch, as of one process, and always of ``nn.SyncBatchNorm``.

    A ``torch.autocast`` around the planning is one around the step that is planned.
    """

    model: Model = field(repr=False)
    args: Sequence[Any] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    loss_fn: Callable[..., torch.Tensor] | None = None
    targets: Sequence[Any] = field(default=(), repr=False)
    outputs: Outputs = "loss"
    batch_norm_groups: int = 1
    autocast: AutocastDType | torch.dtype | None = None

    def __post_init__(self) -> None:
        check_choice("outputs", self.outputs, get_args(Outputs))
        if self.autocast is not None:
            check_choice("autocast", dtype_name(self.autocast), get_args(AutocastDType))
        check_whole("batch_norm_groups", self.batch_norm_groups, least=1)
        check_not_parallel(self.model)

    def capture(self) -> CapturedModel:
        """The model as a graph."""
        return capture(
            self.model,
            self.args,
            self.kwargs,
            loss_fn=self.loss_fn,
            targets=self.targets,
            context=CallContext(
                autocast=self._casts,
                outputs=self.outputs,
                batch_norm_groups=self.batch_norm_groups,
            ),
        )

    @property
    def _casts(self) -> Autocast:
        """What is cast to, on the device at hand."""
        if self.autocast is None:
            return current_autocast()
        return ((autocast_device(), getattr(torch, dtype_name(self.autocast))),)

    @property
    def batch(self) -> Batch:
        """The arguments of the captured model."""
        return (*self.args, *self.targets), dict(self.kwargs or {})


class ExampleKeywords(TypedDict, total=False):
    """The keywords of functions that take a model in parts: fields of ``Example``."""

    loss_fn: Callable[..., torch.Tensor] | None
    targets: Sequence[Any]
    outputs: Outputs
    batch_norm_groups: int
    autocast: AutocastDType | torch.dtype | None


def example_of(
    model: Model | Example,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    keywords: ExampleKeywords,
) -> Example:
    """The example that a public function was given, as one or in parts.

    Raises:
        TensorOptError: as one and in parts.
    """
    names = ExampleKeywords.__annotations__
    parts: dict[str, Any] = {name: value for name, value in keywords.items() if name in names}
    if not isinstance(model, Example):
        return Example(model, args, kwargs, **parts)
    parts |= {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value}
    if parts:
        raise TensorOptError(
            f"'{next(iter(parts))}' is given beside an Example, which has its own; make another "
            "one with dataclasses.replace(example, ...)"
        )
    return model


def model_of(plan: Plan | StagedPlan, example: Example) -> CapturedModel:
    """The model that the plan was made for, captured again if it is not at hand."""
    if plan.captured is not None:
        return plan.captured
    if not example.args and not example.kwargs and isinstance(example.model, nn.Module):
        raise TensorOptError(
            "the plan was loaded without its model; give example inputs of the global batch: "
            "parallelize(model, plan, args), or with a loss that was planned "
            "parallelize(Example(model, args, loss_fn=..., targets=...), plan)"
        )
    return example.capture()
