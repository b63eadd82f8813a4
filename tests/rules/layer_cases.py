"""Contractions, attention, look-ups, normalisations and recurrent layers."""

from collections.abc import Iterator
from typing import Any

import torch

from tests.rules.case import Case, Checks, Random, booleans, integers, real


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
    yield _attention("cross causal", q, real(2, 12, 2, 6), None, 0.0, True)
    yield _attention("causal, dropout", q, q, None, 0.5, True)
    yield _attention("causal, scale", q, q, None, 0.0, True, scale=0.3)
    yield _attention("causal, long", real(2, 2, 12, 6), real(2, 2, 12, 6), None, 0.0, True)
    yield _attention("3-D causal", real(12, 4, 6), real(12, 4, 6), None, 0.0, True)
    yield _attention("scale", q, q, scale=0.3)
    group = real(2, 6, 4, 6)
    yield _attention("grouped", q, group, enable_gqa=True)
    yield _attention("grouped causal", q, group, None, 0.0, True, enable_gqa=True)
    mask = real(2, 12, 4, 4)
    yield _attention("grouped mask", q, group, mask, enable_gqa=True)
    yield _attention("one group", q, real(2, 1, 4, 6), enable_gqa=True)
    for shape in ((2, 12, 4, 4), (12, 4, 4), (4, 4), (2, 1, 1, 4), (1, 12, 4, 4), (1, 1, 4, 4)):
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
    yield from bag_cases()


def bag_cases() -> Iterator[Case]:
    """12 bags of 0 to 5 indices."""
    table, indices = real(24, 12), integers(24, 30)
    offsets = torch.tensor([0, 2, 2, 6, 9, 9, 12, 17, 20, 22, 27, 29])
    target, old = "aten.embedding_bag.padding_idx", "aten.embedding_bag.default"
    for mode, name in enumerate(("sum", "mean", "max")):
        args = (table, indices, offsets, False, mode, False, None)
        yield Case(old, (*args, False), name=name, used=1)
        yield Case(target, (*args, False, None), name=name, used=1)
        yield Case(target, (*args, False, 3), name=f"{name}, padding", used=1)
        yield Case(target, (*args, False, -2), name=f"{name}, padding from the end", used=1)
        last = (table, indices, torch.cat([offsets, torch.tensor([30])]), *args[3:])
        yield Case(target, (*last, True, None), name=f"{name}, last offset", used=1)
    weighted = (table, indices, offsets, False, 0, False, real(30))
    yield Case(target, (*weighted, False, None), name="weights", used=1)
    yield Case(target, (*args, False, None), name="all outputs")
    yield from bags_of_rows_cases()


def bags_of_rows_cases() -> Iterator[Case]:
    target = "tensoropt.embedding_bag_rows.default"
    table, indices = real(24, 12), integers(24, 12, 4)
    for mode, name in enumerate(("sum", "mean", "max")):
        yield Case(target, (table, indices, None, mode, -1), name=name)
        yield Case(target, (table, indices, None, mode, 3), name=f"{name}, padding")
    yield Case(target, (table, indices, real(12, 4), 0, -1), name="weights")


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
        native = (x, shape, weight, bias, 1e-5)
        yield Case("aten.native_layer_norm.default", native, name=name)
    for target in ("softmax.int", "log_softmax.int", "_safe_softmax.default"):
        for dim in (0, 1, -1):
            yield Case(f"aten.{target}", (x, dim), name=f"{dim}")
    dtype = (x, -1, torch.float32)
    yield Case("aten.softmax.int", dtype, name="float32", tolerance=1e-5)
    for target in ("_softmax.default", "_log_softmax.default"):
        for dim in (0, -1):
            yield Case(f"aten.{target}", (x, dim, False), name=f"{dim}")


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


def _by_gates(cell: str, name: str, biases: bool = True, batch_first: bool = False) -> Case:
    """4 steps of a batch of 6, 3 features, 12 units."""
    gates, states = (4, 2) if cell == "lstm" else (3, 1)
    weights = real(gates, 12, 3), real(gates, 12, 12)
    given = (real(gates, 12), real(gates, 12)) if biases else (None, None)
    x = real(6, 4, 3) if batch_first else real(4, 6, 3)
    hx = [real(1, 6, 12) for _ in range(states)]
    args = (x, *hx, *weights, *given, batch_first, True)
    return Case(f"tensoropt.{cell}.default", args, name=name)


def recurrent_cases() -> Iterator[Case]:
    for cell in ("lstm", "gru"):
        yield _by_gates(cell, "biases")
        yield _by_gates(cell, "no biases", biases=False)
        yield _by_gates(cell, "batch first", batch_first=True)
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
