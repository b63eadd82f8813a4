"""Whether calls look as if inputs had their rows elsewhere than the plan says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensoropt_torch.calls.call_kind import CallKind, TensorKind
from tensoropt_torch.calls.uneven import resized

NAME_THEM = "inputs={'state': 1, 'table': 'replicated'}"


def misplaced_rows(
    names: Sequence[str],
    example: CallKind,
    called: CallKind,
    dims: Sequence[int | None],
    ranks: int,
) -> Iterator[str]:
    """Inputs that have the shape of the example, but for a rank's part of another dim than that
    along which the plan shares them out, with what to name."""
    if ranks == 1 or example.spec != called.spec:
        return
    for name, own, found, dim in zip(names, example.inputs, called.inputs, dims, strict=True):
        if dim is None or not isinstance(own, TensorKind) or not isinstance(found, TensorKind):
            continue
        if dim >= len(own.shape):
            continue
        whole = resized(own.shape, dim, own.shape[dim] * ranks)
        for other, size in enumerate(whole):
            share = resized(whole, other, size // ranks)
            if other != dim and size % ranks == 0 and found.shape == share != whole:
                yield (
                    f"input '{name}' is {list(found.shape)} on each rank, which is a share of the "
                    f"example's {list(whole)} along dim {other}, but the plan joins the ranks' "
                    f"along dim {dim}: if its rows are there, plan with "
                    f"inputs={{'{name}': {other}}}"
                )


def shares_in_words(names: Sequence[str], called: CallKind, dims: Sequence[int | None]) -> str:
    """Along which dims the ranks' inputs were joined, and how to name others."""
    joined = [
        f"'{name}' {list(kind.shape)} along dim {dim}"
        for name, kind, dim in zip(names, called.inputs, dims, strict=True)
        if isinstance(kind, TensorKind) and kind.shape and dim is not None
    ]
    return (
        f"the ranks' shares of inputs were joined for it ({', '.join(joined)}); where that is "
        f"wrong, plan with the dims that have the rows: {NAME_THEM}"
    )
