"""Calls whose inputs have their rows elsewhere than the plan says."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.calls.call_kind import CallKind, TensorKind
from tensoropt_torch.calls.row_hints import misplaced_rows
from tensoropt_torch.frontend.call_context import TRAINING

EXAMPLE = (3, 8, 5)  # on each of 2 ranks, of 6, 8, 5


def hints(shape: tuple[int, ...], dim: int | None = 0, ranks: int = 2) -> list[str]:
    spec = pytree.tree_structure(((1,), {}))
    kind = CallKind((), (), spec, (TensorKind(EXAMPLE, torch.float32),), TRAINING)
    called = replace(kind, inputs=(TensorKind(shape, torch.float32),))
    return list(misplaced_rows(["x"], kind, called, [dim], ranks))


def test_a_share_along_another_dim_is_told() -> None:
    (hint,) = hints((6, 4, 5))
    assert "'x' is [6, 4, 5]" in hint and "[6, 8, 5] along dim 1" in hint
    assert "inputs={'x': 1}" in hint


def test_other_batches_are_not() -> None:
    for shape in ((3, 8, 5), (2, 8, 5), (6, 8, 5), (3, 4, 5), (6, 4, 7), (6, 4)):
        assert not hints(shape), shape
    assert not hints((6, 4, 5), dim=None)
    assert not hints((3, 4, 5), ranks=1)
