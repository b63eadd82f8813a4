"""Operators on tensors without elements, as partial rotary embeddings of no dims have
them. Dims of size 0 stay whole, others are split."""

from collections.abc import Iterator

import torch

from tests.rules.case import Case, Random, integers, real

RESHAPES = {
    "same": ((12, 4, 0), [12, 4, 0]),
    "merge": ((12, 4, 0), [48, 0]),
    "split": ((48, 0), [12, 4, 0]),
    "merge with it": ((12, 4, 0), [12, 0]),
    "split off": ((12, 0), [12, 0, 4]),
    "to the front": ((0, 8), [8, 0]),
    "to the end": ((8, 0), [0, 8]),
    "regroup": ((4, 6, 0), [8, 3, 0]),
    "other sizes": ((4, 0), [6, 0]),
    "flat": ((12, 0), [0]),
}


def empty_cases() -> Iterator[Case]:
    for build in (_views, _joins, _sums, _layers, _look_ups):
        for case in build():
            name = f"empty, {case.name}" if case.name else "empty"
            yield Case(case.target, case.args, case.kwargs, name)


def _views() -> Iterator[Case]:
    for target in ("reshape.default", "view.default"):
        for name, (shape, size) in RESHAPES.items():
            yield Case(f"aten.{target}", (real(*shape), size), name=name)
    yield Case("aten.reshape.default", (real(12, 0, 4), [-1, 4]), name="inferred")
    yield Case("aten.flatten.using_ints", (real(12, 4, 0), 1, 2))
    yield Case("aten.unflatten.int", (real(12, 0), 0, [-1, 2]))
    yield Case("aten.transpose.int", (real(12, 4, 0), 0, 2))
    yield Case("aten.permute.default", (real(12, 0, 4), [2, 0, 1]))
    yield Case("aten.unsqueeze.default", (real(12, 0), 1))
    yield Case("aten.squeeze.dim", (real(12, 1, 0), 1))
    yield Case("aten.expand.default", (real(12, 1, 0), [12, 4, 0]))
    yield Case("aten.expand.default", (real(12, 1), [12, 0]), name="from one")
    yield Case("aten.slice.Tensor", (real(12, 8), 1, 8), name="all cut off")
    yield Case("aten.slice.Tensor", (real(12, 0), 0, 0, 6))
    yield Case("aten.narrow.default", (real(12, 8), 1, 4, 0))
    yield Case("aten.split_with_sizes.default", (real(12, 8), [8, 0], 1))
    yield Case("aten.repeat.default", (real(12, 0), [2, 3]))


def _joins() -> Iterator[Case]:
    yield Case("aten.cat.default", ([real(12, 8), real(12, 0)], -1))
    yield Case("aten.cat.default", ([real(12, 0), real(12, 0)], -1), name="of nothing")
    yield Case("aten.stack.default", ([real(12, 0), real(12, 0)], 1))


def _sums() -> Iterator[Case]:
    yield Case("aten.mul.Tensor", (real(12, 4, 0), real(4, 1)))
    yield Case("aten.add.Tensor", (real(12, 4, 0), real(12, 4, 0)))
    yield Case("aten.neg.default", (real(12, 0),))
    yield Case("aten.sum.dim_IntList", (real(12, 4, 0), [1]), name="of others")
    yield Case("aten.sum.dim_IntList", (real(12, 4, 0), [2]), name="of none")
    yield Case("aten.sum.default", (real(12, 0),))
    yield Case("aten.mm.default", (real(12, 0), real(0, 8)), name="sums of none")
    yield Case("aten.mm.default", (real(12, 8), real(8, 0)))
    yield Case("aten.bmm.default", (real(0, 4, 6), real(0, 6, 4)))
    yield Case("aten.linear.default", (real(0, 8), real(12, 8), real(12)))
    yield Case("aten.linear.default", (real(12, 0), real(8, 0)), name="no inputs")


def _layers() -> Iterator[Case]:
    attention = "aten.scaled_dot_product_attention.default"
    yield Case(attention, tuple(real(0, 6, 4, 8) for _ in range(3)), name="no batch")
    yield Case(attention, tuple(real(4, 6, 4, 0) for _ in range(3)), name="no dims")
    yield Case("aten.softmax.int", (real(12, 0, 4), -1))
    yield Case("aten.layer_norm.default", (real(0, 12, 8), [8], real(8), real(8)))
    yield Case("aten.gelu.default", (real(12, 0),))


def _look_ups() -> Iterator[Case]:
    yield Case("aten.embedding.default", (real(12, 8), integers(12, 4, 0)))
    yield Case("aten.index_select.default", (real(12, 8), 0, integers(12, 0)))
    yield Case("aten.where.self", (Random((12, 0), 0, 2, torch.bool), real(12, 0), real(12, 0)))
