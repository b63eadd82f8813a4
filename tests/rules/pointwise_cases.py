"""Element-wise operators, casts and constants."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Checks, booleans, integers, positive, real

UNARY = (
    *("neg", "clone", "gelu", "silu", "mish", "elu", "leaky_relu", "softplus"),
    *("hardtanh", "hardswish", "hardsigmoid", "log_sigmoid", "relu", "tanh"),
    *("sigmoid", "exp", "sin", "cos", "erf", "abs", "square", "sign", "floor"),
    *("round", "zeros_like", "ones_like", "alias", "contiguous", "detach"),
)
POSITIVE = ("sqrt", "rsqrt", "reciprocal", "log", "log1p")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
FLOAT32_TOLERANCE = 1e-5


def unary_cases() -> Iterator[Case]:
    for name in UNARY:
        yield Case(f"aten.{name}.default", (real(12, 4),))
    for name in POSITIVE:
        yield Case(f"aten.{name}.default", (positive(12, 4),))
    yield Case("aten.gelu.default", (real(12, 4),), {"approximate": "tanh"}, "tanh")
    yield Case("aten.relu.default", (real(),), name="scalar")
    yield Case("aten.neg.default", (integers(9, 12),), name="integers")
    yield Case("aten.logical_not.default", (booleans(12, 4),))
    yield Case("aten.bitwise_not.default", (booleans(12, 4),))
    yield Case("aten.full_like.default", (real(12, 4), 3.5))
    yield Case("aten.clamp.default", (real(12, 4), -0.5, 0.5))
    yield Case("aten.clamp.default", (real(12, 4), None, 0.5), name="max only")
    yield Case("aten.clamp_min.default", (real(12, 4), 0.5))
    yield Case("aten.clamp_max.default", (real(12, 4), 0.5))


def scalar_cases() -> Iterator[Case]:
    for name in COMPARISONS:
        yield Case(f"aten.{name}.Scalar", (integers(3, 12, 4), 1))
    for name in ("add", "sub", "rsub"):
        yield Case(f"aten.{name}.Scalar", (real(12, 4), 3, 2))
    for name in ("mul", "div", "remainder"):
        yield Case(f"aten.{name}.Scalar", (real(12, 4), 1.5))
    for exponent in (2, 3, 0.5):
        yield Case("aten.pow.Tensor_Scalar", (positive(12, 4), exponent), name=f"{exponent}")
    yield Case("aten.pow.Scalar", (2.5, real(12, 4)))
    for name in ("add", "sub", "mul", "div"):
        yield Case(f"aten.{name}.Tensor", (real(12, 4), 2.5), name="number")
    yield Case("aten.add.Tensor", (real(12, 4), 2.5), {"alpha": 2}, "number, alpha")


def binary_cases() -> Iterator[Case]:
    for name in COMPARISONS:
        yield Case(f"aten.{name}.Tensor", (integers(3, 12, 4), integers(3, 4)))
    for name in ("and", "or", "xor"):
        bools = (booleans(12, 4), booleans(12, 1))
        yield Case(f"aten.logical_{name}.default", bools)
        yield Case(f"aten.bitwise_{name}.Tensor", bools)
        yield Case(f"aten.__{name}__.Tensor", bools)
    for name in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"):
        yield from _broadcasts(f"aten.{name}")
    for name in ("maximum.default", "minimum.default", "pow.Tensor_Tensor"):
        yield from _broadcasts(f"aten.{name}")
    pair = (real(12, 4), positive(4))
    yield Case("aten.floor_divide.default", pair, checks=Checks.FORWARD)
    for name in ("add", "sub"):
        both = (real(12, 4), real(12, 4))
        yield Case(f"aten.{name}.Tensor", both, {"alpha": 0.5}, "alpha")
    yield Case("aten.mul.Tensor", (real(12, 4), booleans(12, 1)), name="mask")
    yield Case("aten.mul.Tensor", (integers(5, 12), real(4, 12)), name="integer first")
    yield Case("aten.add.Tensor", (integers(5, 12), integers(5, 12)), name="integers")


def _broadcasts(target: str) -> Iterator[Case]:
    shapes = {
        "equal": ((12, 4), (12, 4)),
        "row": ((12, 4), (4,)),
        "column": ((12, 4), (12, 1)),
        "both": ((12, 1), (1, 4)),
        "first smaller": ((4,), (12, 4)),
        "scalar": ((12, 4), ()),
        "three dims": ((6, 1, 4), (12, 1)),
    }
    for name, (left, right) in shapes.items():
        yield Case(target, (positive(*left), positive(*right)), name=name)


def masking_cases() -> Iterator[Case]:
    where = "aten.where.self"
    yield Case(where, (booleans(12, 4), real(12, 4), real(12, 4)))
    yield Case(where, (booleans(12, 1), real(4), real(12, 4)), name="broadcast")
    yield Case(where, (booleans(12, 4), real(12, 4), real()), name="scalar")
    fill = "aten.masked_fill.Scalar"
    for value in (0, 0.0, float("-inf"), -1e9):
        yield Case(fill, (real(12, 4), booleans(12, 4), value), name=f"{value!r}")
    yield Case(fill, (real(12, 4), booleans(4), 0), name="broadcast")
    yield Case(fill, (booleans(12, 4), booleans(12, 4), False), name="booleans")
    fill = "aten.masked_fill.Tensor"
    yield Case(fill, (real(12, 4), booleans(12, 4), real()))
    yield Case(fill, (real(12, 4), booleans(12, 1), real()), name="broadcast")


def cast_cases() -> Iterator[Case]:
    to32 = {"dtype": torch.float32}
    for target, args, kwargs in (
        ("to.dtype", (torch.float32,), {}),
        ("to.dtype_layout", (), to32),
        ("to.device", (torch.device("cpu"), torch.float32), {}),
        ("_to_copy.default", (), to32),
    ):
        given = (real(12, 4), *args)
        yield Case(f"aten.{target}", given, kwargs, "", FLOAT32_TOLERANCE)
        given = (integers(9, 12, 4), *args)
        yield Case(f"aten.{target}", given, kwargs, "from integers", FLOAT32_TOLERANCE)
    for target in ("to.other", "type_as.default"):
        for other in (integers(9, 12, 4), integers(9), integers(9, 4, 12, 4)):
            name = "like " + "x".join(map(str, other.shape))
            yield Case(f"aten.{target}", (real(12, 4), other), name=name)


def constant_cases() -> Iterator[Case]:
    yield Case("aten.arange.default", (6,))
    yield Case("aten.arange.start", (2, 6))
    yield Case("aten.arange.start_step", (2, 12, 3))
    yield Case("aten.zeros.default", ([12, 4],))
    yield Case("aten.ones.default", ([12, 4],))
    yield Case("aten.full.default", ([12, 4], 2.5))
    yield Case("aten.empty.memory_format", ([12, 4],), checks=Checks.SHAPES)
    yield Case("aten.scalar_tensor.default", (2.5,))
    yield Case("aten.eye.default", (4,))
    yield Case("aten.linspace.default", (0, 1, 12))
    yield Case("aten.lift_fresh_copy.default", (integers(9, 12),))


def random_cases() -> Iterator[Case]:
    """Dropout draws other masks on shards; test_rules.py checks these."""
    dropout = "aten.dropout.default"
    train = (positive(12, 8), 0.5, True)
    yield Case(dropout, train, name="train", checks=Checks.REPLICAS)
    yield Case(dropout, (real(12, 8), 0.5, False), name="eval")


def pointwise_cases() -> Iterator[Case]:
    yield from unary_cases()
    yield from scalar_cases()
    yield from binary_cases()
    yield from masking_cases()
    yield from cast_cases()
    yield from constant_cases()
    yield from random_cases()
