"""Contractions, attention, look-ups, normalisations and losses."""

from collections.abc import Iterator
from typing import Any

from tests.rules.case import Case, Checks, Random, booleans, integers, positive, real, weights

NONE, MEAN, SUM = 0, 1, 2
REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}
IGNORE = -100


def linear_cases() -> Iterator[Case]:
    weight, bias = real(6, 4), real(6)
    for name, shape in {"1-D": (4,), "2-D": (12, 4), "3-D": (12, 2, 4)}.items():
        yield Case("aten.linear.default", (real(*shape), weight), name=name)
        yield Case("aten.linear.default", (real(*shape), weight, bias), name=f"{name}, bias")
    yield Case("aten.linear.default", (real(12, 4), real(4)), name="vector")
    wide = (real(12, 24), real(12, 24), real(12))
    yield Case("aten.linear.default", wide, name="wide")


PRODUCTS = {
    "matrices": ((12, 4), (4, 6)),
    "batches": ((6, 12, 4), (6, 4, 2)),
    "batch, matrix": ((6, 12, 4), (4, 2)),
    "matrix, batch": ((12, 4), (6, 4, 2)),
    "broadcast": ((6, 1, 12, 4), (2, 4, 6)),
    "broadcast one": ((1, 12, 4), (6, 4, 2)),
    "dot": ((12,), (12,)),
    "matrix, vector": ((12, 4), (4,)),
    "vector, matrix": ((4,), (4, 12)),
    "batch, vector": ((6, 12, 4), (4,)),
    "vector, batch": ((4,), (6, 4, 12)),
}


def product_cases() -> Iterator[Case]:
    for name, (left, right) in PRODUCTS.items():
        yield Case("aten.matmul.default", (real(*left), real(*right)), name=name)
    yield Case("aten.mm.default", (real(12, 4), real(4, 6)))
    yield Case("aten.bmm.default", (real(6, 12, 4), real(6, 4, 2)))
    matrices, batches = (real(12, 4), real(4, 6)), (real(2, 12, 4), real(2, 4, 6))
    scales = {"beta": 0.5, "alpha": 2.0}
    for shape in ((6,), (12, 6), (12, 1), (1, 6), ()):
        bias, name = real(*shape), "x".join(map(str, shape)) or "scalar"
        yield Case("aten.addmm.default", (bias, *matrices), name=name)
        yield Case("aten.addmm.default", (bias, *matrices), scales, f"{name}, scaled")
    for shape in ((2, 12, 6), (12, 6), (2, 1, 6), (6,)):
        bias, name = real(*shape), "x".join(map(str, shape))
        yield Case("aten.baddbmm.default", (bias, *batches), name=name)
        yield Case("aten.baddbmm.default", (bias, *batches), scales, f"{name}, scaled")


def _attention(name: str, query: Random, key: Random, *args: Any, **kwargs: Any) -> Case:
    target = "aten.scaled_dot_product_attention.default"
    random = len(args) > 1 and args[1] > 0
    checks = Checks.REPLICAS if random else Checks.VALUES
    return Case(target, (query, key, key, *args), kwargs, name, checks=checks)


def attention_cases() -> Iterator[Case]:
    q = real(2, 12, 4, 6)
    yield _attention("plain", q, q)
    yield _attention("cross", q, real(2, 12, 8, 6))
    yield _attention("causal", q, q, None, 0.0, True)
    yield _attention("3-D", real(12, 4, 6), real(12, 8, 6))
    yield _attention("2-D", real(12, 6), real(8, 6))
    yield _attention("3-D causal", real(12, 4, 6), real(12, 4, 6), None, 0.0, True)
    yield _attention("scale", q, q, scale=0.3)
    group = real(2, 6, 4, 6)
    yield _attention("grouped", q, group, enable_gqa=True)
    yield _attention("grouped causal", q, group, None, 0.0, True, enable_gqa=True)
    mask = real(2, 12, 4, 4)
    yield _attention("grouped mask", q, group, mask, enable_gqa=True)
    yield _attention("one group", q, real(2, 1, 4, 6), enable_gqa=True)
    for shape in ((2, 12, 4, 4), (12, 4, 4), (4, 4), (2, 1, 1, 4), (1, 12, 4, 4)):
        name = "x".join(map(str, shape))
        yield _attention(f"mask {name}", q, q, real(*shape))
    yield _attention("mask 1x4", q, q, real(1, 4))
    yield _attention("boolean mask", q, q, booleans(2, 1, 4, 4))
    yield _attention("dropout", q, q, None, 0.5)
    yield from attention_broadcasts(q)


def attention_broadcasts(q: Random) -> Iterator[Case]:
    """Operands whose batch dims differ."""
    target = "aten.scaled_dot_product_attention.default"
    yield Case(target, (q, q, real(2, 12, 4, 8)), name="wide values")
    others = {
        "one value": (q, q, real(1, 12, 4, 6)),
        "one key head": (q, real(2, 1, 4, 6), q),
        "one query": (real(1, 12, 4, 6), q, q),
        "3-D query": (real(12, 4, 6), q, q),
        "2-D query": (real(4, 6), q, q),
    }
    for name, operands in others.items():
        yield Case(target, operands, name=name)
    one = (q, real(2, 6, 4, 6), real(2, 1, 4, 6))
    yield Case(target, one, {"enable_gqa": True}, "grouped, one value head")


def embedding_cases() -> Iterator[Case]:
    table, embedding = real(24, 12), "aten.embedding.default"
    yield Case(embedding, (table, integers(24, 12)), name="1-D")
    yield Case(embedding, (table, integers(24, 4, 6)), name="2-D")
    yield Case(embedding, (table, integers(24)), name="scalar")
    yield Case(embedding, (table, integers(3, 12), 1), name="padding")
    yield Case(embedding, (table, integers(3, 12), 0), name="padding 0")
    yield Case(embedding, (table, integers(3, 12), -1, True), name="by frequency")


def normalization_cases() -> Iterator[Case]:
    x = real(12, 2, 6)
    for shape in ([6], [2, 6]):
        weight, bias = real(*shape), real(*shape)
        name = "x".join(map(str, shape))
        norm = "aten.layer_norm.default"
        yield Case(norm, (x, shape), name=name)
        yield Case(norm, (x, shape, weight), name=f"{name}, weight")
        yield Case(norm, (x, shape, None, bias), name=f"{name}, bias")
        yield Case(norm, (x, shape, weight, bias), name=f"{name}, both")
        yield Case("aten.rms_norm.default", (x, shape), name=name)
        yield Case("aten.rms_norm.default", (x, shape, weight, 1e-6), name=f"{name}, weight")
    for target in ("softmax.int", "log_softmax.int"):
        for dim in (0, 1, -1):
            yield Case(f"aten.{target}", (x, dim), name=f"{dim}")
    for target in ("_softmax.default", "_log_softmax.default"):
        for dim in (0, -1):
            yield Case(f"aten.{target}", (x, dim, False), name=f"{dim}")


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


def _recurrent(
    cell: str,
    name: str,
    biases: bool = True,
    batch_first: bool = False,
    layers: int = 1,
    bidirectional: bool = False,
    projected: int = 0,
) -> Case:
    """4 steps of a batch of 12, 3 features, 12 units."""
    gates, states = (4, 2) if cell == "lstm" else (3, 1)
    directions = 2 if bidirectional else 1
    out = projected or 12
    weights = []
    for layer in range(layers):
        for _ in range(directions):
            features = 3 if layer == 0 else directions * out
            weights += [real(12 * gates, features), real(12 * gates, out)]
            weights += [real(12 * gates)] * (2 if biases else 0)
            weights += [real(projected, 12)] if projected else []
    x = real(12, 4, 3) if batch_first else real(4, 12, 3)
    hx = [real(layers * directions, 12, out), real(layers * directions, 12, 12)][:states]
    args = (x, hx[0] if states == 1 else hx, weights)
    options = (biases, layers, 0.0, True, bidirectional, batch_first)
    return Case(f"aten.{cell}.input", (*args, *options), name=name)


def recurrent_cases() -> Iterator[Case]:
    for cell in ("lstm", "gru"):
        yield _recurrent(cell, "biases")
        yield _recurrent(cell, "no biases", biases=False)
        yield _recurrent(cell, "batch first", batch_first=True)
        yield _recurrent(cell, "two layers", layers=2)
        yield _recurrent(cell, "bidirectional", bidirectional=True)
    yield _recurrent("lstm", "projected", projected=6)


def layer_cases() -> Iterator[Case]:
    yield from linear_cases()
    yield from product_cases()
    yield from attention_cases()
    yield from embedding_cases()
    yield from normalization_cases()
    yield from recurrent_cases()
    yield from cross_entropy_cases()
    yield from nll_cases()
    yield from pointwise_loss_cases()
