"""Convolutions, pooling, and the normalisations that go with them."""

from collections.abc import Iterator

from tests.rules.case import Case, integers, real, weights

SPATIAL = {1: (6,), 2: (6, 5), 3: (4, 3, 4)}
DIRECT = {1: "conv1d.default", 2: "conv2d.default", 3: "conv3d.default"}
TRANSPOSED = {
    1: "conv_transpose1d.default",
    2: "conv_transpose2d.input",
    3: "conv_transpose3d.input",
}


def direct_cases() -> Iterator[Case]:
    for rank, size in SPATIAL.items():
        target, kernel = f"aten.{DIRECT[rank]}", (3, 2, 3)[:rank]
        x, weight, bias = real(12, 6, *size), real(24, 6, *kernel), real(24)
        one, two = [1] * rank, [2] * rank
        yield Case(target, (x, weight), name="plain")
        yield Case(target, (x, weight, bias, two, one), name="bias, stride, padding")
        yield Case(target, (real(6, *size), weight, bias), name="no batch")
        dilated = (x, weight, bias, one, one, two)
        yield Case(target, dilated, name="dilation")
        for groups in (2, 6, 12):
            grouped = real(2, 12, *size), real(24, 12 // groups, *kernel), bias
            yield Case(target, (*grouped, one, one, one, groups), name=f"{groups} groups")
        depthwise = (real(12, *size), real(12, 1, *kernel), None, one, one, one, 12)
        yield Case(target, depthwise, name="depthwise, no batch")
        same = f"aten.conv{rank}d.padding"
        yield Case(same, (x, weight, bias, one, "same"), name="same")
        yield Case(same, (x, weight, None, one, "valid"), name="valid")
        yield Case(same, (*grouped, one, "same", one, 12), name="same, groups")


def spatial_cases() -> Iterator[Case]:
    """Sizes that divide into parts which are as long as the borders."""
    target = "aten.conv2d.default"
    x, bias = real(2, 4, 24, 48), real(3)
    for kernel, stride, padding, dilation in (
        ((3, 3), (1, 1), (1, 1), (1, 1)),
        ((3, 1), (2, 2), (1, 0), (1, 1)),
        ((7, 2), (2, 2), (3, 0), (1, 1)),
        ((3, 5), (1, 1), (2, 4), (2, 2)),
        ((2, 3), (1, 1), (0, 0), (1, 1)),
    ):
        args = (x, real(3, 4, *kernel), bias, [*stride], [*padding], [*dilation])
        yield Case(target, args, name=f"spatial, {kernel} by {stride}")
    grouped = (x, real(4, 2, 3, 3), None, [1], [1], [1], 2)
    yield Case(target, grouped, name="spatial, groups")
    yield Case(
        "aten.conv1d.default", (real(1, 2, 24), real(2, 2, 3), None, [2], [1]), name="spatial"
    )
    for pool in ("max_pool2d", "avg_pool2d"):
        for args in (([2, 2],), ([3, 3], [2, 2], [1, 1]), ([3, 1], [1, 1], [1, 0])):
            yield Case(f"aten.{pool}.default", (x, *args), name=f"spatial, {args}")
    not_counted = (x, [3, 3], [1, 1], [1, 1], False, False)
    yield Case("aten.avg_pool2d.default", not_counted, name="spatial, padding not counted")
    yield Case("aten.adaptive_avg_pool2d.default", (x, [1, 1]), name="spatial")
    images = (real(2, 2, 12, 24), real(2), real(2), weights(2), weights(2), True, 0.3, 1e-3, False)
    yield Case("aten.batch_norm.default", images, name="spatial")


def transposed_cases() -> Iterator[Case]:
    for rank, size in SPATIAL.items():
        target, kernel = f"aten.{TRANSPOSED[rank]}", (3, 2, 3)[:rank]
        x, weight, bias = real(12, 6, *size), real(6, 24, *kernel), real(24)
        none, one, two = [0] * rank, [1] * rank, [2] * rank
        yield Case(target, (x, weight), name="plain")
        yield Case(target, (x, weight, bias, two, one, one), name="bias, stride, padding")
        yield Case(target, (real(6, *size), weight, bias), name="no batch")
        for groups in (2, 6):
            grouped = real(2, 12, *size), real(12, 24 // groups, *kernel), bias
            yield Case(target, (*grouped, one, none, none, groups), name=f"{groups} groups")


def any_convolution_cases() -> Iterator[Case]:
    target, x, bias = "aten.convolution.default", real(12, 6, 5), real(24)
    for transposed in (False, True):
        name = "transposed" if transposed else "direct"
        weight = real(6, 24, 3) if transposed else real(24, 6, 3)
        args = (x, weight, bias, [1], [1], [1], transposed, [0])
        yield Case(target, (*args, 1), name=name)
        weight = real(6, 12, 3) if transposed else real(24, 3, 3)
        grouped = (x, weight, *args[2:], 2)
        yield Case(target, grouped, name=f"{name}, groups")


def _pool(target: str, rank: int, *args: list[int], label: str = "") -> Iterator[Case]:
    target, size = f"aten.{target.format(rank)}.default", SPATIAL[rank]
    yield Case(target, (real(12, 6, *size), *args), name=f"{label} batch".strip())
    yield Case(target, (real(12, *size), *args), name=f"{label} no batch".strip())


def pooling_cases() -> Iterator[Case]:
    for rank in SPATIAL:
        one, two, three = [1] * rank, [2] * rank, [3] * rank
        for name in ("max_pool{}d", "max_pool{}d_with_indices"):
            yield from _pool(name, rank, two)
            yield from _pool(name, rank, three, one, one, label="overlapping")
        yield from _pool("avg_pool{}d", rank, two)
        yield from _pool("avg_pool{}d", rank, three, two, one, label="padded")
        for name in ("adaptive_avg_pool{}d", "adaptive_max_pool{}d"):
            yield from _pool(name, rank, two)
            yield from _pool(name, rank, one, label="to one")


def batch_norm_cases() -> Iterator[Case]:
    target, x = "aten.batch_norm.default", real(12, 24, 2)
    affine, running = (real(24), real(24)), (weights(24), weights(24))
    for training in (True, False):
        last = (training, 0.3, 1e-3, False)
        mode = "training" if training else "evaluation"
        yield Case(target, (x, *affine, *running, *last), name=mode)
        yield Case(target, (x, None, None, *running, *last), name=f"{mode}, not affine")
        yield Case(target, (real(12, 24), *affine, *running, *last), name=f"{mode}, 2-D")
    last = (True, 0.3, 1e-3, False)
    yield Case(target, (x, *affine, None, None, *last), name="no running statistics")
    yield Case(target, (x, None, None, None, None, *last), name="nothing but the input")
    yield Case(target, (x, None, affine[1], *running, *last), name="bias only")
    images = (real(12, 12, 2, 3), real(12), real(12), weights(12), weights(12))
    yield Case(target, (*images, *last), name="images")


def batch_norm_groups_cases() -> Iterator[Case]:
    target, x = "tensoropt.batch_norm_groups.default", real(12, 24, 2)
    affine, running = (real(24), real(24)), (weights(24), weights(24))
    for groups in (1, 2, 4, 6, 5):
        yield Case(target, (x, *affine, *running, 0.3, 1e-3, groups), name=f"{groups} groups")
    last = (0.3, 1e-3, 4)
    yield Case(target, (x, None, None, *running, *last), name="not affine")
    yield Case(target, (x, *affine, None, None, *last), name="no running statistics")
    yield Case(target, (x, None, affine[1], None, None, *last), name="bias only")
    yield Case(target, (real(12, 24), *affine, *running, *last), name="2-D")
    images = (real(12, 12, 2, 3), real(12), real(12), weights(12), weights(12))
    yield Case(target, (*images, *last), name="images")
    odd = (real(12, 7, 2), real(7), real(7), weights(7), weights(7))
    yield Case(target, (*odd, *last), name="odd channels")


def group_norm_cases() -> Iterator[Case]:
    x, weight, bias = real(12, 24, 2), real(24), real(24)
    yield Case("aten.group_norm.default", (x, 12), name="plain")
    yield Case("aten.group_norm.default", (x, 12, weight, bias), name="both")


def instance_norm_cases() -> Iterator[Case]:
    target, x = "aten.instance_norm.default", real(12, 24, 3)
    for name, affine in {"plain": (None, None), "affine": (real(24), real(24))}.items():
        yield Case(target, (x, *affine, None, None, True, 0.1, 1e-5, False), name=name)
        running = (weights(24), weights(24))
        for own in (True, False):
            label = f"{name}, {'updated' if own else 'given'} statistics"
            yield Case(target, (x, *affine, *running, own, 0.1, 1e-5, False), name=label)


def weight_norm_cases() -> Iterator[Case]:
    for dim, length in {0: (12, 1, 1), 1: (1, 6, 1), 2: (1, 1, 4)}.items():
        args = (real(12, 6, 4), real(*length), dim)
        yield Case("aten._weight_norm.default", args, name=f"{dim}")


def write_cases() -> Iterator[Case]:
    """Buffers stay whole."""
    target = "aten.copy_.default"
    yield Case(target, (weights(12), weights(12)))
    yield Case(target, (integers(9), integers(9)), name="count")


def convolution_cases() -> Iterator[Case]:
    yield from direct_cases()
    yield from spatial_cases()
    yield from transposed_cases()
    yield from any_convolution_cases()
    yield from pooling_cases()
    yield from batch_norm_cases()
    yield from batch_norm_groups_cases()
    yield from group_norm_cases()
    yield from instance_norm_cases()
    yield from weight_norm_cases()
    yield from write_cases()
