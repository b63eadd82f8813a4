"""Which dims of a step's inputs have the rows of the batch, found by trying.

The step is run up to its call of the module with the samples of the first batch, and with one
and two samples more, which repeat the first: so no length changes. A dim that has as many
entries as there are samples each time has the rows. Nothing is guessed: what grows in another
way is refused, with the way to name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError

Dims = dict[str, int | None]  # by the name of the input; None: all ranks have all of it

MORE = (0, 1, 2)  # samples than the first batch has


@dataclass(frozen=True)
class Sampled:
    """A batch with what it was made of.

    Attributes:
        batch: as the loader gives it.
        samples: what it was collated of.
        collate: makes batches of samples.
    """

    batch: Any
    samples: Sequence[Any]
    collate: Callable[[list[Any]], Any]

    def with_more(self, more: int) -> Any:
        """A batch of these samples and ``more``, which repeat the first."""
        samples = [*self.samples, *[self.samples[0]] * more]
        return self.collate([_copied(sample) for sample in samples])


def first_batch(drawn: Any) -> Any:
    """The batch of what was drawn, in which there may be several ``Sampled``."""
    return _mapped(drawn, lambda found: found.batch)


def batch_with_more(drawn: Any, more: int) -> tuple[Any, set[int]]:
    """The batch with so many samples more, and of how many samples it is made, of each loader.

    Raises:
        TensorOptError: the loader does not tell samples, and the batch has no dim for them.
    """
    counts: set[int] = set()

    def of(found: Sampled) -> Any:
        counts.add(len(found.samples) + more)
        return found.with_more(more)

    batch = _mapped(drawn, of)
    if counts:
        return batch, counts
    return _repeated(drawn, more)


def rows_of_trials(
    names: Sequence[str], trials: Sequence[Sequence[Any]], counts: Sequence[set[int]]
) -> Dims:
    """Where tensors have their rows.

    Args:
        names: of what is in each trial.
        trials: the same arguments, for ``MORE`` samples.
        counts: the numbers of samples of each trial.

    Raises:
        TensorOptError: it does not follow from the trials; says how to name it.
    """
    if any(len(trial) != len(names) for trial in trials):
        raise TensorOptError(
            "the step calls the module with other arguments when the batch has other numbers of "
            f"samples, so it cannot be seen where they have their rows; {_NAME_THEM}"
        )
    found: Dims = {}
    for name, *values in zip(names, *trials, strict=True):
        if isinstance(values[0], torch.Tensor):
            found[name] = _rows_of(name, [tuple(value.shape) for value in values], counts)
        else:
            _check_number(name, values, counts)
    if not any(dim is not None for dim in found.values()):
        raise TensorOptError(
            f"no input of the module has as many entries in a dim as there are samples "
            f"({', '.join(found) or 'there is no tensor'}), so ranks cannot share them out; "
            f"{_NAME_THEM}"
        )
    return found


_NAME_THEM = (
    "name the dim of each input that has the rows, or 'replicated' where every rank has all of "
    "it: inputs={'x': 0, 'hidden': 1, 'table': 'replicated'}"
)


def _rows_of(
    name: str, shapes: Sequence[tuple[int, ...]], counts: Sequence[set[int]]
) -> int | None:
    if len({len(shape) for shape in shapes}) != 1:
        raise _unclear(name, shapes, counts, "has other dims each time")
    rows: list[int] = []
    others: list[int] = []
    for dim, sizes in enumerate(zip(*shapes, strict=True)):
        if len(set(sizes)) > 1:
            (rows if _are_rows(sizes, counts) else others).append(dim)
    if len(rows) == 1 and not any(_grows([s[dim] for s in shapes]) for dim in others):
        return rows[0]
    if not rows and not others:
        return None
    if len(rows) > 1:
        raise _unclear(name, shapes, counts, f"has as many entries in each of dims {rows}")
    raise _unclear(name, shapes, counts, f"grows along dim {others[0]} by another number")


def _are_rows(sizes: Sequence[int], counts: Sequence[set[int]]) -> bool:
    return all(size in count for size, count in zip(sizes, counts, strict=True))


def _grows(sizes: Sequence[int]) -> bool:
    """By the same number each time: not as lengths that are drawn do."""
    steps = {after - before for before, after in pairwise(sizes)}
    return len(steps) == 1 and steps != {0}


def _unclear(
    name: str, shapes: Sequence[tuple[int, ...]], counts: Sequence[set[int]], why: str
) -> TensorOptError:
    seen = "; ".join(
        f"{_words(count)} samples give {list(shape)}"
        for count, shape in zip(counts, shapes, strict=True)
    )
    return TensorOptError(
        f"input '{name}' {why} ({seen}), so it cannot be seen where it has the rows of the batch. "
        "Positions in other inputs, as those of edges of graphs, cannot be joined: let the module "
        f"take them for each sample by itself. Otherwise {_NAME_THEM}"
    )


def _check_number(name: str, values: Sequence[Any], counts: Sequence[set[int]]) -> None:
    """Raises TensorOptError for a number that is that of the samples: the batch has more."""
    if all(type(value) is int for value in values) and _grows(values) and _are_rows(values, counts):
        raise TensorOptError(
            f"argument '{name}' is the number of samples of a process ({values[0]}), but the "
            "module computes the batch of all of them: take the size of an input in forward, "
            "x.shape[0], in its place"
        )


def _words(counts: set[int]) -> str:
    return " and ".join(map(str, sorted(counts)))


# --- Batches --------------------------------------------------------------------------------


def _is_sampled(value: Any) -> bool:
    return isinstance(value, Sampled)


def _mapped(drawn: Any, change: Callable[[Sampled], Any]) -> Any:
    return pytree.tree_map_only(Sampled, change, drawn, is_leaf=_is_sampled)


def _copied(sample: Any) -> Any:
    """Some collators take entries out of the samples."""
    return dict(sample) if type(sample) is dict else sample


def _repeated(batch: Any, more: int) -> tuple[Any, set[int]]:
    """The batch with its first row once more, where all tensors have as many rows in dim 0."""
    tensors = [t for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor) and t.dim()]
    sizes = {len(tensor) for tensor in tensors}
    if len(sizes) != 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise TensorOptError(
            f"the loader does not tell the samples of a batch, and its tensors ({shapes}) have no "
            f"dim 0 in common, so it cannot be seen where inputs have their rows; {_NAME_THEM}"
        )

    def longer(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, *[tensor[:1]] * more]) if tensor.dim() and more else tensor

    (count,) = sizes
    return pytree.tree_map_only(torch.Tensor, longer, batch), {count + more}


def modes_of(dims: Mapping[str, int | None]) -> dict[str, Any]:
    """The same as ``PlanningOptions.inputs`` takes it."""
    return {name: "replicated" if dim is None else dim for name, dim in dims.items()}
