"""Operators that make tensors, of nothing or at random."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Checks, Random, integers, positive, real, weights


def constant_cases() -> Iterator[Case]:
    """Made of nothing: whole on every device."""
    yield Case("aten.arange.default", (6,))
    yield Case("aten.arange.start", (2, 6))
    yield Case("aten.arange.start_step", (2, 12, 3))
    yield Case("aten.scalar_tensor.default", (2.5,))
    yield Case("aten.eye.default", (4,))
    yield Case("aten.eye.m", (4, 6))
    yield Case("aten.linspace.default", (0, 1, 12))
    yield Case("aten.logspace.default", (0, 1, 12))
    yield Case("aten.tril_indices.default", (4, 6))
    yield Case("aten.triu_indices.default", (4, 6))


def sized_cases() -> Iterator[Case]:
    """Made of nothing, each part by itself."""
    yield Case("aten.zeros.default", ([12, 4],))
    yield Case("aten.ones.default", ([12, 4],))
    yield Case("aten.full.default", ([12, 4], 2.5))
    yield Case("aten.empty.memory_format", ([12, 4],), checks=Checks.SHAPES)
    for target, args in {
        "rand.default": ([12, 8],),
        "randn.default": ([12, 8],),
        "randint.default": (9, [12, 8]),
        "randint.low": (3, 9, [12, 8]),
    }.items():
        yield Case(f"aten.{target}", args, checks=Checks.REPLICAS)


def filled_cases() -> Iterator[Case]:
    x, number = real(12, 4), {"full": (2.5,)}
    for name in ("zeros", "ones", "full", "empty"):
        fill = number.get(name, ())
        checks = Checks.SHAPES if name == "empty" else Checks.VALUES
        yield Case(f"aten.{name}_like.default", (x, *fill), checks=checks)
        for shape in ([12, 4], [12], [6, 4], [12, 6, 4]):
            label = "x".join(map(str, shape))
            yield Case(f"aten.new_{name}.default", (x, shape, *fill), name=label, checks=checks)
    yield Case("aten.fill.Scalar", (x, 2.5))
    yield Case("aten.fill.Tensor", (x, real()))
    dtype = {"dtype": torch.int64}
    yield Case("aten.zeros_like.default", (x,), dtype, "integers")
    yield Case("aten.new_zeros.default", (integers(9, 12), [12, 4]), name="of a vector")


def random_cases() -> Iterator[Case]:
    """Shards draw other numbers; test_rules.py checks which for dropout."""
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        for train in (True, False):
            args, label = (positive(12, 8, 2), 0.5, train), "train" if train else "eval"
            checks = Checks.REPLICAS if train else Checks.VALUES
            yield Case(f"aten.{name}.default", args, name=label, checks=checks)
    x = weights(12, 8)
    for target, args in {
        "native_dropout.default": (real(12, 8), 0.5, True),
        "rrelu.default": (real(12, 8), 0.1, 0.3, True),
        "bernoulli.default": (Random((12, 8), 0, 1, torch.float64),),
        "bernoulli.p": (x, 0.3),
        "exponential.default": (x,),
        "uniform.default": (x, 0.0, 2.0),
        "normal_functional.default": (x, 1.0, 2.0),
        "geometric.default": (x, 0.3),
        "cauchy.default": (x,),
        "log_normal.default": (x,),
        "random.default": (x,),
        "random.to": (x, 9),
        "random.from": (x, 3, 9),
        "bernoulli.Tensor": (x, Random((8,), 0, 1, torch.float64)),
        "rand_like.default": (x,),
        "randn_like.default": (x,),
        "randint_like.default": (x, 9),
        "randint_like.low_dtype": (x, 3, 9),
        "multinomial.default": (x, 3),
    }.items():
        yield Case(f"aten.{target}", args, checks=Checks.REPLICAS)


def creation_cases() -> Iterator[Case]:
    yield from constant_cases()
    yield from sized_cases()
    yield from filled_cases()
    yield from random_cases()
