"""Element-wise operators and casts."""

from collections.abc import Iterator

import torch

from tests.rules.case import (
    Case,
    Checks,
    Random,
    booleans,
    fraction,
    integers,
    positive,
    real,
    weights,
)

UNARY = (
    *("neg", "negative", "clone", "gelu", "silu", "mish", "elu", "selu", "celu"),
    *("leaky_relu", "relu6", "softplus", "hardtanh", "hardswish", "hardsigmoid"),
    *("hardshrink", "softshrink", "log_sigmoid", "relu", "tanh", "sigmoid", "exp"),
    *("expm1", "exp2", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh"),
    *("sinc", "erf", "erfc", "abs", "absolute", "square", "sign", "sgn", "floor"),
    *("ceil", "round", "trunc", "frac", "nan_to_num", "isnan", "isinf"),
    *("isfinite", "signbit", "alias", "contiguous", "detach", "lift_fresh", "lift_fresh_copy"),
)
POSITIVE = (
    *("sqrt", "rsqrt", "reciprocal", "log", "log1p", "log2", "log10", "lgamma"),
    "digamma",
)
FRACTIONS = ("asin", "acos", "atanh", "erfinv", "logit")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
FLOAT32_TOLERANCE = 1e-5


def unary_cases() -> Iterator[Case]:
    for name in UNARY:
        yield Case(f"aten.{name}.default", (real(12, 4),))
    for name in POSITIVE:
        yield Case(f"aten.{name}.default", (positive(12, 4),))
    for name in FRACTIONS:
        yield Case(f"aten.{name}.default", (fraction(12, 4),))
    yield Case("aten.acosh.default", (Random((12, 4), 1.5, 3, torch.float64, True),))
    yield Case("aten.threshold.default", (real(12, 4), 0.5, 0.25))
    yield Case("aten.round.decimals", (real(12, 4),), {"decimals": 1})
    yield Case("aten.gelu.default", (real(12, 4),), {"approximate": "tanh"}, "tanh")
    yield Case("aten.relu.default", (real(),), name="scalar")
    yield Case("aten.neg.default", (integers(9, 12),), name="integers")
    yield Case("aten.logical_not.default", (booleans(12, 4),))
    yield Case("aten.bitwise_not.default", (booleans(12, 4),))
    for name in ("clamp", "clip"):
        yield Case(f"aten.{name}.default", (real(12, 4), -0.5, 0.5))
    yield Case("aten.clamp.default", (real(12, 4), None, 0.5), name="max only")
    yield Case("aten.clamp_min.default", (real(12, 4), 0.5))
    yield Case("aten.clamp_max.default", (real(12, 4), 0.5))


def scalar_cases() -> Iterator[Case]:
    for name in COMPARISONS:
        yield Case(f"aten.{name}.Scalar", (integers(3, 12, 4), 1))
    for name in ("add", "sub", "rsub"):
        yield Case(f"aten.{name}.Scalar", (real(12, 4), 3, 2))
    for name in ("mul", "div", "remainder", "fmod"):
        yield Case(f"aten.{name}.Scalar", (real(12, 4), 1.5))
    forward = Checks.FORWARD
    yield Case("aten.floor_divide.Scalar", (real(12, 4), 1.5), checks=forward)
    yield Case("aten.div.Scalar_mode", (real(12, 4), 1.5), {"rounding_mode": "floor"})
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"):
        yield Case(f"aten.{name}.Scalar", (integers(9, 12, 4), 3))
    for name in ("__lshift__", "__rshift__"):
        yield Case(f"aten.{name}.Scalar", (integers(9, 12, 4), 2))
    yield Case("aten.float_power.Tensor_Scalar", (positive(12, 4), 1.5))
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
    for name in ("add", "sub", "mul", "div", "multiply", "divide", "true_divide", "subtract"):
        yield from _broadcasts(f"aten.{name}.Tensor")
    for name in ("maximum.default", "minimum.default", "pow.Tensor_Tensor"):
        yield from _broadcasts(f"aten.{name}")
    for name in (
        *("rsub.Tensor", "atan2.default", "hypot.default", "copysign.Tensor", "xlogy.Tensor"),
        *("logaddexp.default", "logaddexp2.default", "max.other", "min.other", "fmax.default"),
        *("fmin.default", "fmod.Tensor", "remainder.Tensor", "clamp_min.Tensor"),
        "clamp_max.Tensor",
    ):
        yield Case(f"aten.{name}", (real(12, 4), positive(12, 4)), name="equal")
        yield Case(f"aten.{name}", (real(12, 1), positive(4)), name="both")
    yield Case("aten.clamp.Tensor", (real(12, 4), weights(12, 1), weights(4)))
    yield Case("aten.clamp.Tensor", (real(12, 4), None, weights(4)), name="max only")
    mode = {"rounding_mode": "trunc"}
    yield Case("aten.div.Tensor_mode", (real(12, 4), positive(4)), mode)
    yield Case("aten.heaviside.default", (real(12, 4), real(4)), checks=Checks.FORWARD)
    yield Case("aten.isclose.default", (real(12, 4), real(4), 0.5, 0.5))
    yield from ternary_cases()
    pair = (real(12, 4), positive(4))
    yield Case("aten.floor_divide.default", pair, checks=Checks.FORWARD)
    for name in ("add", "sub"):
        both = (real(12, 4), real(12, 4))
        yield Case(f"aten.{name}.Tensor", both, {"alpha": 0.5}, "alpha")
    yield Case("aten.mul.Tensor", (real(12, 4), booleans(12, 1)), name="mask")
    yield Case("aten.mul.Tensor", (integers(5, 12), real(4, 12)), name="integer first")
    yield Case("aten.add.Tensor", (integers(5, 12), integers(5, 12)), name="integers")


def ternary_cases() -> Iterator[Case]:
    x, y, z = real(12, 4), real(12, 1), positive(4)
    yield Case("aten.lerp.Scalar", (x, y, 0.3))
    yield Case("aten.lerp.Tensor", (x, y, z))
    for name in ("addcmul", "addcdiv"):
        for label, operands in {"broadcast": (x, y, z), "equal": (x, x, positive(12, 4))}.items():
            yield Case(f"aten.{name}.default", operands, {"value": 0.7}, label)
    for name, shape in {"one": (1,), "channels": (6,)}.items():
        yield Case("aten.prelu.default", (real(12, 6, 2), real(*shape)), name=name)
    yield Case("aten.prelu.default", (real(12), real(1)), name="1-D")
    for dim in (0, 1, -1):
        yield Case("aten.glu.default", (real(12, 4, 6), dim), name=f"{dim}")


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
    for target, args in {
        "where.ScalarOther": (real(12, 1), 0),
        "where.ScalarSelf": (0.5, real(12, 4)),
        "where.Scalar": (0.5, 2),
    }.items():
        yield Case(f"aten.{target}", (booleans(12, 4), *args))
    yield Case("aten.where.ScalarOther", (booleans(12, 4), real(12, 4), 1.5), name="1.5")
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


def pointwise_cases() -> Iterator[Case]:
    yield from unary_cases()
    yield from scalar_cases()
    yield from binary_cases()
    yield from masking_cases()
    yield from cast_cases()
