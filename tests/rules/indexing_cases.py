"""Reading and writing at positions, sorting, counting."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Random, booleans, integers, positive, real, weights


def gather_cases() -> Iterator[Case]:
    x = real(12, 4, 6)
    for dim in (0, 1, -1):
        size = x.shape[dim]
        yield Case("aten.gather.default", (x, dim, integers(size, 12, 4, 6)), name=f"{dim}")
        yield Case("aten.index_select.default", (x, dim, integers(size, 12)), name=f"{dim}")
        along = integers(size, 12, 4, 6)
        yield Case("aten.take_along_dim.default", (x, along, dim), name=f"{dim}")
    yield Case("aten.gather.default", (x, 1, integers(4, 6, 12, 6)), name="fewer rows")
    yield Case("aten.gather.default", (real(12), 0, integers(12, 6)), name="1-D")
    yield Case("aten.gather.default", (integers(9, 12), 0, integers(12, 6)), name="integers")
    yield Case("aten.gather.default", (real(), 0, integers(1)), name="scalar")
    yield Case("aten.index_select.default", (real(12), 0, integers(12)), name="scalar index")
    broadcast = integers(4, 12, 12, 1)
    yield Case("aten.take_along_dim.default", (x, broadcast, 1), name="broadcast")
    yield Case("aten.take_along_dim.default", (x, integers(9, 12)), name="flat")


def scatter_cases() -> Iterator[Case]:
    x, positions = real(12, 4, 6), distinct(4, 12, 4, 6)
    for dim in (0, 1, 2):
        size = x.shape[dim]
        some = distinct(size, *(n if d != dim else n // 2 for d, n in enumerate(x.shape)), dim=dim)
        source = real(*some.shape)
        yield Case("aten.scatter.src", (x, dim, some, source), name=f"{dim}")
        for value in (0, 1.5, True):
            yield Case("aten.scatter.value", (x, dim, some, value), name=f"{dim}, {value}")
        many = integers(size, *(n if d != dim else 12 for d, n in enumerate(x.shape)))
        yield Case("aten.scatter_add.default", (x, dim, many, real(*many.shape)), name=f"{dim}")
    wide = weights(12, 6, 6)  # with a longer source PyTorch gets gradients wrong
    yield Case("aten.scatter.src", (x, 1, positions, wide), name="longer source")
    yield Case("aten.scatter_add.default", (x, 1, positions, wide), name="longer source")
    fewer = integers(4, 6, 4, 6)
    yield Case("aten.scatter_add.default", (x, 1, fewer, real(6, 4, 6)), name="fewer rows")
    many = integers(4, 12, 12, 6)
    source = positive(12, 12, 6)
    # scatter with a reduction has no derivative.
    product = {"reduce": "multiply"}
    flat = weights(12, 4, 6)
    args = (flat, 1, many, weights(12, 12, 6))
    yield Case("aten.scatter.reduce", args, {"reduce": "add"})
    yield Case("aten.scatter.reduce", args, product, "multiply")
    yield Case("aten.scatter.value_reduce", (flat, 1, many, 1.5), product)
    for how in ("sum", "amax", "mean", "prod"):
        args = (positive(12, 4, 6), 1, many, source)
        for include in (True, False):
            options = {"include_self": include}
            name = how if include else f"{how}, without self"
            yield Case("aten.scatter_reduce.two", (*args, how), options, name)


def row_cases() -> Iterator[Case]:
    x = real(12, 4, 6)
    for dim in (0, 1, -1):
        size = x.shape[dim]
        source = real(*(12 if d == dim % 3 else n for d, n in enumerate(x.shape)))
        many = integers(size, 12)
        yield Case("aten.index_add.default", (x, dim, many, source), name=f"{dim}")
        scaled = {"alpha": 0.5}
        yield Case("aten.index_add.default", (x, dim, many, source), scaled, f"{dim}, scaled")
        one = distinct(size, 1)
        single = real(*(1 if d == dim % 3 else n for d, n in enumerate(x.shape)))
        yield Case("aten.index_copy.default", (x, dim, one, single), name=f"{dim}")
        for value in (0, 1.5, True):
            args = (x, dim, many, value)
            yield Case("aten.index_fill.int_Scalar", args, name=f"{dim}, {value}")


INDICES = {
    "first": [(12, 12)],
    "first two": [(12, 12), (4, 12)],
    "matrix": [(12, 2, 12)],
    "middle": [None, (4, 12)],
    "last": [None, None, (6, 12)],
    "around": [(12, 12), None, (6, 12)],
    "broadcast": [(12, 12, 1), (4, 6)],
    "broadcast last": [None, (4, 12, 1), (6, 2)],
    "scalar": [(12,)],
}


def index_cases() -> Iterator[Case]:
    x = real(12, 4, 6)
    for name, indices in INDICES.items():
        given = [None if i is None else integers(*i) for i in indices]
        yield Case("aten.index.Tensor", (x, given), name=name)
        shape = torch.empty(12, 4, 6)[
            tuple(slice(None) if i is None else torch.zeros(i[1:], dtype=int) for i in indices)
        ].shape
        for values, label in ((real(*shape), ""), (real(), ", one value")):
            put = (x, given, values, True)
            yield Case("aten.index_put.default", put, name=f"{name}, added{label}")
    put = "aten.index_put.default"
    row = [integers(12, 1)]
    from_the_end = Random((2, 12), -12, 12, torch.int64)
    yield Case("aten.index.Tensor", (x, [from_the_end]), name="from the end")
    yield Case("aten.index.Tensor", (integers(9, 12, 4), [integers(12, 6)]), name="integers")
    yield Case("aten.index.Tensor", (real(12), [integers(12, 6)]), name="vector")
    yield Case(put, (x, row, real(1, 4, 6)), name="over")
    yield Case(put, (x, row, real(4, 1)), name="over, broadcast")
    yield Case(put, (x, [None, None, integers(6, 1)], real(12, 4, 1)), name="last, over")
    yield Case("aten._unsafe_index_put.default", (x, [integers(12, 12)], real(6), True))
    for shape in ((12, 4), (12, 4, 6)):
        label = f"mask {len(shape)}-D"
        yield Case(put, (x, [booleans(*shape)], real()), name=label)
    yield Case("aten.one_hot.default", (integers(4, 12), 4))
    yield Case("aten.one_hot.default", (integers(4, 12, 6), 4), name="2-D")


def search_cases() -> Iterator[Case]:
    edges = torch.linspace(-1, 1, 5, dtype=torch.float64)
    yield Case("aten.bucketize.Tensor", (weights(12, 4), edges))
    yield Case("aten.bucketize.Tensor", (weights(5), edges), name="of one size")
    yield Case("aten.searchsorted.Tensor", (edges, weights(12, 4)))
    rows = edges.expand(12, 5).contiguous()
    yield Case("aten.searchsorted.Tensor", (rows, weights(12, 4)), name="by row")


def order_cases() -> Iterator[Case]:
    x = real(12, 4, 6)
    for dim in (0, 1, -1):
        name = f"{dim}"
        yield Case("aten.topk.default", (x, 2, dim), name=name)
        yield Case("aten.kthvalue.default", (x, 2, dim), name=name)
        for op in ("sort.default", "argsort.default"):
            yield Case(f"aten.{op}", (x, dim, True), name=name)
        for op in ("sort.stable", "argsort.stable"):
            yield Case(f"aten.{op}", (integers(4, 12, 4, 6),), {"stable": True, "dim": dim}, name)
        for op in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
            yield Case(f"aten.{op}.default", (positive(12, 4, 6), dim), name=name)
        for op in ("median", "nanmedian"):
            yield Case(f"aten.{op}.dim", (x, dim, True), name=name)
        yield Case("aten.mode.default", (x, dim), name=name)
    yield Case("aten.median.default", (x,))


def counting_cases() -> Iterator[Case]:
    yield Case("aten.histc.default", (weights(12, 4), 6, 0.5, 2))
    yield Case("aten.histc.default", (weights(12), 6), name="no limits")
    some = integers(2, 12, 4)
    yield Case("aten.count_nonzero.default", (some,))
    for dim in (0, 1):
        yield Case("aten.count_nonzero.dim_IntList", (some, [dim]), name=f"{dim}")


def distinct(high: int, *shape: int, dim: int | None = None) -> torch.Tensor:
    """Positions along ``dim`` (by default the second, if there is one) without
    repetitions: what is written last there is not said."""
    dim = min(1, len(shape) - 1) if dim is None else dim
    random = torch.Generator().manual_seed(len(shape) + high)
    scores = torch.rand(*shape[:dim], high, *shape[dim + 1 :], generator=random)
    return scores.argsort(dim).narrow(dim, 0, shape[dim])


def masked_scatter_cases() -> Iterator[Case]:
    target, x = "aten.masked_scatter.default", real(12, 4)
    yield Case(target, (x, booleans(12, 4), real(48)))
    yield Case(target, (x, booleans(12, 1), real(12, 4)), name="rows")
    yield Case(target, (x, booleans(4), real(12, 4)), name="columns")
    yield Case(target, (real(12), booleans(12), real(3, 4)), name="1-D")


def indexing_cases() -> Iterator[Case]:
    yield from gather_cases()
    yield from scatter_cases()
    yield from row_cases()
    yield from index_cases()
    yield from search_cases()
    yield from order_cases()
    yield from counting_cases()
    yield from masked_scatter_cases()
