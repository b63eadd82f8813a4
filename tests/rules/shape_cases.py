"""Views, joining and cutting, reductions."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, booleans, integers, positive, real

EVERYTHING = 2**63 - 1  # the end of x[:]

RESHAPES = {
    "merge": ((12, 4, 2), [48, 2]),
    "split": ((48, 2), [12, 4, 2]),
    "merge last": ((2, 12, 4), [2, 48]),
    "regroup": ((4, 6), [2, 12]),
    "regroup to larger": ((4, 6), [8, 3]),
    "two groups": ((4, 6, 12, 2), [24, 24]),
    "same": ((12, 4), [12, 4]),
    "ones in": ((1, 12, 1, 4, 1), [12, 4]),
    "ones out": ((12, 4), [1, 12, 1, 4, 1]),
    "ones moved": ((1, 12, 4), [12, 1, 4]),
    "ones and merge": ((1, 12, 4), [48, 1]),
    "ones and split": ((1, 48), [12, 4]),
    "one inside a group": ((2, 1, 6), [1, 12]),
    "inferred": ((12, 4), [-1, 2]),
    "heads": ((4, 6, 24), [4, 6, 12, 2]),
    "to scalar": ((1, 1), []),
    "from scalar": ((), [1, 1]),
    "coprime": ((4, 3), [3, 4]),
}


def reshape_cases() -> Iterator[Case]:
    for target in ("reshape.default", "view.default", "_unsafe_view.default"):
        for name, (shape, size) in RESHAPES.items():
            yield Case(f"aten.{target}", (real(*shape), size), name=name)
    flatten = "aten.flatten.using_ints"
    yield Case(flatten, (real(12, 4, 2),), name="all")
    yield Case(flatten, (real(2, 12, 4), 1, 2), name="last two")
    yield Case(flatten, (real(12, 4, 2), 0, -2), name="first two")
    yield Case("aten.ravel.default", (real(12, 4),))
    for target in ("view_as", "reshape_as"):
        for name in ("merge", "split", "ones out"):
            shape, size = RESHAPES[name]
            yield Case(f"aten.{target}.default", (real(*shape), real(*size)), name=name)
    unflatten = "aten.unflatten.int"
    yield Case(unflatten, (real(2, 48), 1, [12, 4]))
    yield Case(unflatten, (real(48, 2), -2, [-1, 4]), name="inferred")


def squeeze_cases() -> Iterator[Case]:
    """Dims that are 1 on a shard but not on the whole must stay."""
    squeeze = "aten.squeeze"
    for size in (2, 3, 4, 6):
        shape = real(size, 1, 12)
        yield Case(f"{squeeze}.default", (shape,), name=f"beside {size}")
        yield Case(f"{squeeze}.dim", (shape, 0), name=f"not of {size}")
        yield Case(f"{squeeze}.dims", (shape, [0, 1]), name=f"not of {size}")
    yield Case(f"{squeeze}.dim", (real(12, 1, 4), 1))
    yield Case(f"{squeeze}.dim", (real(12, 4, 1), -1), name="last")
    yield Case(f"{squeeze}.dims", (real(1, 12, 1, 4), [0, -2]))
    for dim in (0, 1, -1):
        yield Case("aten.unsqueeze.default", (real(12, 4), dim), name=f"{dim}")


def permutation_cases() -> Iterator[Case]:
    yield Case("aten.transpose.int", (real(12, 4, 2), 0, 1))
    yield Case("aten.transpose.int", (real(12, 4, 2), -1, 0), name="last")
    yield Case("aten.permute.default", (real(12, 4, 2), [2, 0, 1]))
    yield Case("aten.permute.default", (real(12, 4, 2), [0, -1, 1]), name="negative")
    for target in ("swapdims", "swapaxes"):
        yield Case(f"aten.{target}.default", (real(12, 4, 2), 0, -1))
    yield Case("aten.mT.default", (real(12, 4, 6),))
    for target in ("movedim", "moveaxis"):
        yield Case(f"aten.{target}.int", (real(12, 4, 2), 0, 2))
        yield Case(f"aten.{target}.intlist", (real(12, 4, 2, 6), [0, -1], [1, 0]))
    for target in ("t", "numpy_T"):
        yield Case(f"aten.{target}.default", (real(12, 4),))
        yield Case(f"aten.{target}.default", (real(12),), name="vector")
    yield from expand_cases()


def expand_cases() -> Iterator[Case]:
    for target in ("expand", "broadcast_to"):
        expand = f"aten.{target}.default"
        yield Case(expand, (real(12, 1), [12, 4]))
        yield Case(expand, (real(1, 4), [12, -1]), name="kept size")
        yield Case(expand, (real(4), [6, 12, 4]), name="new dims")
        yield Case(expand, (real(), [12]), name="scalar")
    yield Case("aten.expand_as.default", (real(12, 1), real(12, 4)))
    yield Case("aten.expand_as.default", (real(4), real(6, 12, 4)), name="new dims")
    for rank in (1, 2, 3):
        target = f"aten.atleast_{rank}d.default"
        for shape in ((), (12,), (12, 4), (12, 4, 6)):
            yield Case(target, (real(*shape),), name=f"{len(shape)}-D")


def joining_cases() -> Iterator[Case]:
    for target in ("cat", "stack"):
        op = f"aten.{target}.default"
        three = [real(12, 4), real(12, 4), real(12, 4)]
        for dim in (0, 1, -1):
            yield Case(op, (three, dim), name=f"{dim}")
        yield Case(op, ([real(12, 4)],), name="single")
    yield Case("aten.cat.default", ([real(12, 4), real(12, 2)], 1), name="unequal")
    whole = [integers(9, 12), integers(9, 12)]
    yield Case("aten.cat.default", (whole,), name="integers")
    yield Case("aten.stack.default", ([real(), real()],), name="scalars")
    for shape in ((12,), (12, 4), (12, 4, 6)):
        both, name = [real(*shape), real(*shape)], f"{len(shape)}-D"
        yield Case("aten.hstack.default", (both,), name=name)
        yield Case("aten.vstack.default", (both,), name=name)


def cutting_cases() -> Iterator[Case]:
    for dim in (0, -1):
        x = real(12, 4, 6)
        name = f"{dim}"
        for op in ("split.Tensor", "unsafe_split.Tensor"):
            yield Case(f"aten.{op}", (x, 2, dim), name=name)
            yield Case(f"aten.{op}", (x, 5, dim), name=f"{name}, uneven")
        sizes = [2, 4, 6] if dim == 0 else [1, 3, 2]
        for op in ("split_with_sizes.default", "unsafe_split_with_sizes.default", "split.sizes"):
            yield Case(f"aten.{op}", (x, sizes, dim), name=name)
        for op in ("chunk.default", "unsafe_chunk.default", "tensor_split.sections"):
            yield Case(f"aten.{op}", (x, 3, dim), name=name)
        yield Case("aten.tensor_split.indices", (x, [1, 4], dim), name=name)
        yield Case("aten.unfold.default", (x, dim, 3, 2), name=name)
        part = real(2, 4, 6) if dim == 0 else real(12, 4, 2)
        yield Case("aten.slice_scatter.default", (x, part, dim, 1, 3), name=name)
        part = real(4, 6) if dim == 0 else real(12, 4)
        yield Case("aten.select_scatter.default", (x, part, dim, 1), name=name)
        yield Case("aten.unbind.int", (x, dim), name=name)
        yield Case("aten.select.int", (x, dim, 1), name=name)
        yield Case("aten.select.int", (x, dim, -1), name=f"{name}, from the end")
        yield Case("aten.slice.Tensor", (x, dim, 1, 3), name=name)
        yield Case("aten.slice.Tensor", (x, dim, None, -2), name=f"{name}, end")
        yield Case("aten.slice.Tensor", (x, dim, 0, EVERYTHING, 2), name=f"{name}, step")
        yield Case("aten.narrow.default", (x, dim, 1, 2), name=name)
    x = real(12, 4)
    yield Case("aten.slice.Tensor", (x, 0, 0, EVERYTHING), name="whole")
    yield Case("aten.slice.Tensor", (x, 0, 0, 12), name="whole by size")
    yield Case("aten.slice.Tensor", (x, 0, -12, 12), name="whole from the end")
    yield Case("aten.narrow.default", (x, 0, 0, 12), name="whole")
    yield Case("aten.narrow.default", (x, -1, -4, 4), name="whole from the end")


def moving_cases() -> Iterator[Case]:
    for target in ("tril", "triu"):
        yield Case(f"aten.{target}.default", (real(12, 4, 4),))
        yield Case(f"aten.{target}.default", (real(12, 6), 1), name="matrix")
        yield Case(f"aten.{target}.default", (real(12, 12), -2), name="square")
    for offset in (0, 1, -1):
        yield Case("aten.diagonal.default", (real(12, 4, 6), offset), name=f"{offset}")
        yield Case("aten.diagonal.default", (real(4, 12, 6), offset, 0, -1), name=f"{offset}, last")
        yield Case("aten.diag_embed.default", (real(12, 4), offset), name=f"{offset}")
        yield Case("aten.diag_embed.default", (real(12, 4), offset, 0, 2), name=f"{offset}, first")
    for dims in ([], [0], [0, -1]):
        shifts = [5] * max(1, len(dims))
        yield Case("aten.roll.default", (real(12, 4, 6), shifts, dims), name=f"{dims}")
    for dim in (0, 1, -1):
        yield Case("aten.diff.default", (real(12, 4, 6), 1, dim), name=f"{dim}")
        yield Case("aten.diff.default", (integers(9, 12, 4, 6), 2, dim), name=f"{dim}, twice")
    ends = (real(12, 1), real(12, 2))
    yield Case("aten.diff.default", (real(12, 4), 1, -1, *ends), name="with ends")
    yield from repeat_cases()
    yield Case("aten.flip.default", (real(12, 4, 6), [0]))
    yield Case("aten.flip.default", (real(12, 4, 6), [-1, 1]), name="two dims")
    for target in ("pad", "constant_pad_nd"):
        op = f"aten.{target}.default"
        yield Case(op, (real(12, 4), [1, 2]), name="last")
        yield Case(op, (real(12, 4), [0, 0, 1, 0]), name="first")
        yield Case(op, (real(12, 4), [-1, 0]), name="cropped")
    yield Case("aten.pad.default", (real(12, 4), [1, 1], "constant", 2.5), name="2.5")
    yield Case("aten.constant_pad_nd.default", (real(12, 4), [1, 1], 2.5), name="2.5")
    for mode in ("reflect", "replicate", "circular"):
        yield Case("aten.pad.default", (real(12, 4, 6), [1, 1], mode), name=mode)


def repeat_cases() -> Iterator[Case]:
    repeats = {
        "rows": ((4, 6), [12, 1]),
        "both": ((2, 6), [6, 12]),
        "new dims": ((12, 4), [6, 1, 2]),
        "of one": ((1, 12), [12, 1]),
        "once": ((12, 4), [1, 1]),
        "scalar": ((), [12]),
    }
    for name, (shape, counts) in repeats.items():
        yield Case("aten.repeat.default", (real(*shape), counts), name=name)
        yield Case("aten.tile.default", (real(*shape), counts), name=name)
    yield Case("aten.tile.default", (real(12, 4), [6]), name="fewer dims")
    op = "aten.repeat_interleave.self_int"
    for dim in (0, 1, -1, None):
        yield Case(op, (real(12, 4, 6), 3, dim), name=f"{dim}")
    yield Case(op, (real(12, 4), 2, 0), {"output_size": 24}, "size given")


def sum_cases() -> Iterator[Case]:
    x = real(12, 4, 6)
    for target in ("sum", "mean"):
        yield Case(f"aten.{target}.default", (x,))
        yield Case(f"aten.{target}.default", (real(),), name="scalar")
        dims = "aten.sum.dim_IntList" if target == "sum" else "aten.mean.dim"
        for dim in ([0], [1], [-1], [0, 2], [0, 1, 2], [], None):
            yield Case(dims, (x, dim), name=f"{dim}")
            yield Case(dims, (x, dim, True), name=f"{dim}, kept")
        yield Case(dims, (real(), [0]), name="of scalar")
    yield Case("aten.sum.default", (integers(9, 12, 4),), name="integers")
    yield Case("aten.sum.default", (booleans(12, 4),), name="booleans")
    yield Case("aten.nansum.default", (x, [1]))
    yield Case("aten.nansum.default", (x,), name="all")


def selection_cases() -> Iterator[Case]:
    x = real(12, 4, 6)
    for keep in (False, True):
        name = "kept" if keep else ""
        for op in ("amax", "amin", "logsumexp"):
            yield Case(f"aten.{op}.default", (x, [1], keep), name=f"1 {name}")
            yield Case(f"aten.{op}.default", (x, [0, -1], keep), name=f"0, -1 {name}")
        for op in ("max", "min"):
            for dim in (0, -1):
                yield Case(f"aten.{op}.dim", (x, dim, keep), name=f"{dim} {name}")
        for op in ("argmax", "argmin"):
            yield Case(f"aten.{op}.default", (x, 1, keep), name=f"1 {name}")
        for op in ("any", "all"):
            yield Case(f"aten.{op}.dim", (booleans(12, 4), 1, keep), name=f"1 {name}")
        for op in ("var", "std"):
            options = {"correction": 0, "keepdim": keep}
            yield Case(f"aten.{op}.correction", (x, [1]), options, f"1 {name}")
            yield Case(f"aten.{op}.dim", (x, [0, 2], True, keep), name=f"0, 2 {name}")
        yield Case("aten.prod.dim_int", (positive(12, 4), -1, keep), name=f"-1 {name}")
        for op in ("var_mean", "std_mean"):
            options = {"correction": 1, "keepdim": keep}
            yield Case(f"aten.{op}.correction", (x, [1]), options, f"1 {name}")
        for order in (1, 2, 3.5, float("inf")):
            args = (x, order, [1], keep)
            yield Case("aten.linalg_vector_norm.default", args, name=f"{order} {name}")
        yield Case("aten.norm.ScalarOpt_dim", (x, 2, [0], keep), name=f"0 {name}")
        dtype = {"dtype": torch.float64}
        yield Case("aten.norm.ScalarOpt_dim_dtype", (x, 2, [0], keep), dtype, f"0 {name}")
        yield Case("aten.aminmax.default", (x,), {"dim": 1, "keepdim": keep}, name=f"1 {name}")
        for op in ("any", "all"):
            args = (booleans(12, 4, 2), [1, 2], keep)
            yield Case(f"aten.{op}.dims", args, name=f"1, 2 {name}")
    for op in ("amax", "amin", "max", "min", "argmax", "argmin", "var", "std"):
        yield Case(f"aten.{op}.default", (x,), name="all")
    yield Case("aten.prod.default", (positive(12, 4),), name="all")
    yield Case("aten.norm.Scalar", (x,), name="all")
    yield Case("aten.linalg_vector_norm.default", (x,), name="all")
    for op in ("any", "all"):
        yield Case(f"aten.{op}.default", (booleans(12, 4),), name="all")
    yield Case("aten.var.correction", (x,), name="all")


def shape_cases() -> Iterator[Case]:
    yield from reshape_cases()
    yield from squeeze_cases()
    yield from permutation_cases()
    yield from joining_cases()
    yield from cutting_cases()
    yield from moving_cases()
    yield from sum_cases()
    yield from selection_cases()
