"""The graph of a micro-batch: shares of the loss and of the gradients that add up to those of
the batch, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from tensoropt_torch import Example, find_frontier
from tensoropt_torch.batches import BatchSplits, micro_batched, micro_batches
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, capture
from tests.distributed.models import CASES, Case, make

IN_ONE = (
    "gpt",
    "fused",
    "fused_otherwise",
    "gpt_tied",
    "llama",
    "transformer",
    "mlp",
    "lstm",
    "gru",
    "vgg",
    "texts",
)
TOLERANCE = 1e-10


def values_of(captured: CapturedModel, case: Case, inputs: list[Any]) -> list[Any]:
    """Of the sources but totals, which micro-batches get besides."""
    parameters = dict(case.model.named_parameters(remove_duplicate=False))
    rest = iter(inputs)
    values: list[Any] = []
    for source in captured.sources:
        if source.kind in ("input", "literal"):
            values.append(next(rest))
        elif source.kind != "total":
            name = source.names[0]
            value = parameters.get(name, captured.constants.get(name))
            values.append(None if value is None else source.as_seen(value))
    return values


def run(graph: fx.GraphModule, values: list[Any]) -> tuple[Any, ...]:
    """The outputs of a captured graph."""
    found: tuple[Any, ...] = graph.forward(*values)
    return found


def totals_of(captured: CapturedModel, values: list[Any]) -> tuple[torch.Tensor, ...]:
    """Of the whole batch, whose sources have these values."""
    micro = captured.micro_batching
    assert micro is not None
    if micro.totals is None:
        return ()
    found: tuple[torch.Tensor, ...] = micro.totals.forward(
        *(values[number] for number in micro.total_sources)
    )
    return found


def trained(case: Case, count: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of the batch in so many micro-batches, by their graph."""
    captured = micro_batched(capture(case.model, case.args, **case.keywords), count)
    micro = captured.micro_batching
    assert micro is not None and captured.micro_batches == count
    inputs = [*case.args, *case.targets]
    totals = totals_of(captured, values_of(captured, case, inputs))
    case.model.zero_grad()
    loss = torch.zeros(())
    for number in range(count):
        part = [
            value.chunk(count)[number] if cut else value
            for value, cut in zip(inputs, micro.split, strict=True)
        ]
        outputs = run(captured.graph_module, [*values_of(captured, case, part), *totals])
        share = outputs[micro.loss]
        share.backward()
        loss = loss + share.detach()
    gradients = {n: p.grad.clone() for n, p in case.model.named_parameters() if p.grad is not None}
    return loss, gradients


def assert_equal_to_whole(case: Case, count: int) -> None:
    """Loss and gradients, but for rounding."""
    loss, gradients = trained(case, count)
    case.model.zero_grad()
    expected = case.loss()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    for name, parameter in case.model.named_parameters():
        if parameter.grad is None:
            assert name not in gradients
            continue
        torch.testing.assert_close(
            gradients[name], parameter.grad, rtol=1e-8, atol=TOLERANCE, msg=lambda m, n=name: n + m
        )


def test_what_all_numbers_share_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make("gpt", torch.float64)
    captured = capture(case.model, case.args, **case.keywords)
    made: list[CapturedModel] = []
    with_counts = micro_batches.with_counts

    def watched(whole: CapturedModel) -> CapturedModel:
        made.append(whole)
        return with_counts(whole)

    monkeypatch.setattr(micro_batches, "with_counts", watched)
    splits = BatchSplits(captured)
    parts = {count: splits.of(count) for count in (2, 4)}
    assert len(made) == 1 and made[0] is captured
    assert splits.of(1) is captured
    for count, part in parts.items():
        alone = micro_batched(captured, count)
        assert part.batch is captured and part.micro_batches == count
        assert str(part.graph_module.graph) == str(alone.graph_module.graph)
        assert BatchSplits(part).of(1) is captured and BatchSplits(part).of(count) is part


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("model", IN_ONE)
def test_shares_add_up(model: str, count: int) -> None:
    assert model in CASES
    assert_equal_to_whole(make(model, torch.float64), count)


class Classifier(nn.Module):
    """Rows of numbers into five classes, with a loss of one's own."""

    def __init__(self, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.loss = loss

    def forward(self, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.loss(self.linear(x), target, weight)


def ignoring(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target, ignore_index=0)


def smoothed(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target, ignore_index=1, label_smoothing=0.1)


def weighted(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    classes = torch.arange(1, 6, dtype=logits.dtype)
    return F.cross_entropy(logits, target, weight=classes, ignore_index=2)


def negative_log(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(logits, dim=-1), target, ignore_index=3)


def by_row(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(logits, target, reduction="none")
    return (losses * weight).sum() / weight.sum()


def by_rows_above(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(logits, target, reduction="none")
    mask = (weight > 0.5).to(logits.dtype)
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def summed(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target, reduction="sum") + 0.5 * logits.square().mean()


def by_size(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(logits, target, reduction="none")
    return losses.sum() / logits.shape[0] + losses.mean() / 8


LOSSES = [
    ignoring,
    smoothed,
    weighted,
    negative_log,
    by_row,
    by_rows_above,
    summed,
    by_size,
]


def classifier(loss: Callable[..., torch.Tensor]) -> Case:
    torch.manual_seed(3)
    model = Classifier(loss).double()
    x, weight = torch.randn(8, 6, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    # One micro-batch has no valid target at all.
    target = torch.tensor([0, 0, 1, 2, 3, 4, 0, 1])
    return Case(model, (x, target, weight))


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_losses_of_several_kinds(loss: Callable[..., torch.Tensor], count: int) -> None:
    assert_equal_to_whole(classifier(loss), count)


class Normalised(nn.Module):
    """Batch normalisation, which mixes rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).square().mean()


class Counting(nn.Module):
    """Changes a buffer in every forward."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.linear(x).mean()


class Contrastive(nn.Module):
    """Every row is compared with all others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return (y @ y.T).softmax(dim=-1).square().mean()


class Root(nn.Module):
    """A loss that is no sum over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().mean().sqrt()


@pytest.mark.parametrize(
    ("model", "where"),
    [
        (Normalised, "batch_norm"),
        (Counting, "changes a buffer"),
        (Contrastive, "matmul"),
        (Root, "sqrt"),
    ],
)
def test_what_mixes_rows_is_refused(model: type[nn.Module], where: str) -> None:
    captured = capture(model(), (torch.randn(8, 4),))
    with pytest.raises(TensorOptError, match=where) as refused:
        micro_batched(captured, 2)
    assert "max_micro_batches=1" in str(refused.value)


def test_numbers_that_do_not_divide_are_refused() -> None:
    captured = capture(nn.Linear(4, 1), (torch.randn(6, 4),), loss_fn=torch.mean)
    with pytest.raises(TensorOptError, match="6 rows, which 4 does not divide"):
        micro_batched(captured, 4)


def test_a_model_without_loss_is_refused() -> None:
    captured = capture(nn.Linear(4, 4), (torch.randn(8, 4),))
    with pytest.raises(TensorOptError, match="no output is a loss"):
        micro_batched(captured, 2)


def test_the_graph_of_the_batch_can_be_had_again() -> None:
    captured = capture(nn.Linear(4, 1), (torch.randn(8, 4),), loss_fn=torch.mean)
    half = micro_batched(captured, 2)
    assert half.fingerprint == captured.fingerprint
    assert micro_batched(half, 2) is half
    assert micro_batched(half, 1) is captured
    assert micro_batched(half, 4).micro_batches == 4


def test_it_is_told_that_shares_are_too_small(caplog: pytest.LogCaptureFixture) -> None:
    with torch.device("meta"):
        model, x = torch.nn.Linear(4, 4), torch.zeros(4, 4)
    frontier = find_frontier(
        Example(model, (x,), loss_fn=lambda y: y.square().mean()),
        cluster="cpu",
        num_devices=4,
        inputs="sharded",
        max_micro_batches=2,
    )
    assert all(point.micro_batches == 1 for point in frontier)
    assert "no number of micro-batches is planned on 4 devices" in caplog.text
