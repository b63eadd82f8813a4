"""Losses of classes, elements and rows."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Random, fraction, integers, positive, real, weights

NONE, MEAN, SUM = 0, 1, 2
REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}
IGNORE = -100


def sign(*shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(len(shape))
    return 2 * torch.randint(0, 2, shape, generator=random, dtype=torch.float64) - 1


def _cross_entropy(
    name: str,
    logits: Random,
    target: Random,
    weight: Random | None = None,
    ignore_index: int = IGNORE,
    smoothing: float = 0.0,
) -> Iterator[Case]:
    for reduction, code in REDUCTIONS.items():
        args = (logits, target, weight, code, ignore_index, smoothing)
        yield Case("aten.cross_entropy_loss.default", args, name=f"{name}, {reduction}")


def cross_entropy_cases() -> Iterator[Case]:
    flat, grid = real(12, 24), real(4, 12, 2, 6)
    index = integers(24, 12)
    probabilities = positive(12, 24)
    yield from _cross_entropy("2-D", flat, index)
    yield from _cross_entropy("4-D", grid, integers(12, 4, 2, 6))
    yield from _cross_entropy("3-D", real(4, 6, 12), integers(6, 4, 12))
    yield from _cross_entropy("1-D", real(12), integers(12))
    # Few classes, so that many targets are the ignored one.
    few = integers(3, 12)
    yield from _cross_entropy("ignore", flat, few, None, 1)
    yield from _cross_entropy("ignore 3-D", real(12, 6, 2), integers(3, 12, 2), None, 1)
    yield from _cross_entropy("smoothing", flat, index, None, IGNORE, 0.1)
    yield from _cross_entropy("smoothing, ignore", flat, few, None, 1, 0.1)
    yield from _cross_entropy("weights", flat, index, weights(24))
    all_three = (weights(24), 1, 0.1)
    yield from _cross_entropy("weights, ignore, smoothing", flat, few, *all_three)
    yield from _cross_entropy("weights 4-D", grid, integers(12, 4, 2, 6), weights(12))
    yield from _cross_entropy("probabilities", flat, probabilities)
    yield from _cross_entropy("probabilities 4-D", grid, positive(4, 12, 2, 6))
    yield from _cross_entropy("probabilities 1-D", real(12), positive(12))
    smoothed = (None, IGNORE, 0.1)
    yield from _cross_entropy("probabilities, smoothing", flat, probabilities, *smoothed)
    yield from _cross_entropy("probabilities, weights", flat, probabilities, weights(24))


def nll_cases() -> Iterator[Case]:
    for reduction, code in REDUCTIONS.items():
        args = (real(12, 6), integers(6, 12), None, code)
        for target in ("aten.nll_loss.default", "aten.nll_loss_nd.default"):
            yield Case(target, args, name=f"2-D, {reduction}")
            ignored = (real(12, 6), integers(3, 12), None, code, 1)
            yield Case(target, ignored, name=f"ignore, {reduction}")
            weighted = (real(12, 6), integers(6, 12), weights(6), code)
            yield Case(target, weighted, name=f"weights, {reduction}")
        args = (real(4, 6, 2, 12), integers(6, 4, 2, 12), None, code)
        yield Case("aten.nll_loss_nd.default", args, name=f"4-D, {reduction}")
        args = (real(6), integers(6), None, code)
        yield Case("aten.nll_loss_nd.default", args, name=f"1-D, {reduction}")


def pointwise_loss_cases() -> Iterator[Case]:
    shapes = {
        "equal": ((12, 4), (12, 4)),
        "row": ((12, 4), (4,)),
        "column": ((12, 4), (12, 1)),
        "scalar": ((), ()),
    }
    for name, (left, right) in shapes.items():
        for reduction, code in REDUCTIONS.items():
            pair = (real(*left), real(*right), code)
            label = f"{name}, {reduction}"
            for target in ("mse_loss", "l1_loss"):
                yield Case(f"aten.{target}.default", pair, name=label)
            for target in ("smooth_l1_loss", "huber_loss"):
                yield Case(f"aten.{target}.default", (*pair, 0.7), name=label)
    first = (real(12, 1), real(12, 4))
    yield Case("aten.mse_loss.default", first, name="first smaller")


def binary_cases() -> Iterator[Case]:
    with_logits = "aten.binary_cross_entropy_with_logits.default"
    for reduction, code in REDUCTIONS.items():
        x, y = real(12, 4), fraction(12, 4)
        for name, weight in {"": None, "weight": weights(12, 4), "row": weights(4)}.items():
            label = f"{name} {reduction}".strip()
            args = (fraction(12, 4), y, weight, code)
            yield Case("aten.binary_cross_entropy.default", args, name=label)
            yield Case(with_logits, (x, y, weight, None, code), name=label)
        label = f"weight of positives {reduction}"
        yield Case(with_logits, (x, y, weights(12, 1), weights(4), code), name=label)


def other_loss_cases() -> Iterator[Case]:
    x, y, signs = real(12, 4), real(12, 4), sign(12, 4)
    for name, code in REDUCTIONS.items():
        for log_target in (False, True):
            target = y if log_target else fraction(12, 4)
            options, label = {"log_target": log_target}, f"{name}, log {log_target}"
            yield Case("aten.kl_div.default", (x, target, code), options, label)
        yield Case("aten.soft_margin_loss.default", (x, signs, code), name=name)
        yield Case("aten.hinge_embedding_loss.default", (x, signs, 0.5, code), name=name)
        args = (x, positive(12, 4), True, False, 1e-8, code)
        yield Case("aten.poisson_nll_loss.default", args, name=name)
        args = (real(12), real(12), sign(12), 0.5, code)
        yield Case("aten.margin_ranking_loss.default", args, name=name)
        args = (x, y, sign(12), 0.1, code)
        yield Case("aten.cosine_embedding_loss.default", args, name=name)
        args = (real(4), real(4), sign(), 0.1, code)
        yield Case("aten.cosine_embedding_loss.default", args, name=f"one pair, {name}")
        args = (x, y, real(12, 4), 1.0, 2.0, 1e-6, False, code)
        yield Case("aten.triplet_margin_loss.default", args, name=name)
        for label, weight in {name: None, f"weights, {name}": weights(12)}.items():
            args = (real(12, 12), integers(12, 12), 1, 1, weight, code)
            yield Case("aten.multi_margin_loss.default", args, name=label)
        args = (x, integers(4, 12, 4), code)
        yield Case("aten.multilabel_margin_loss.default", args, name=name)


def sequence_cases() -> Iterator[Case]:
    target, lengths = "tensoropt.ctc_losses.default", torch.tensor([9, 8, 7] * 4)
    short, labels = torch.tensor([4, 3, 2, 1] * 3), Random((12, 4), 1, 5, torch.int64)
    yield Case(target, (real(9, 12, 5), labels, lengths, short, 0, False))
    yield Case(target, (real(9, 12, 5), labels, lengths - 6, short, 0, True), name="no way")


def loss_cases() -> Iterator[Case]:
    yield from cross_entropy_cases()
    yield from nll_cases()
    yield from pointwise_loss_cases()
    yield from binary_cases()
    yield from other_loss_cases()
    yield from sequence_cases()
