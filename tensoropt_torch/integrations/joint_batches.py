"""Batches whose lengths are those of the batch of all ranks.

A collator that pads makes each rank's batch as long as its own longest sample, but the ranks
compute one batch. So where ranks have batches of different shapes, each of them collates the
samples of all ranks, as one process would, and takes the rows of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import default_collate
from transformers import DefaultDataCollator, default_data_collator

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.integrations.loaders import base_of, tells_samples
from tensoropt_torch.integrations.row_dims import MORE, Dims, Sampled, rows_of_trials
from tensoropt_torch.integrations.shares import kept_random_states
from tensoropt_torch.runtime.agreement import CallAgreement, gather, on_all_ranks
from tensoropt_torch.runtime.meshes import backend_of_job

SAMPLES = "tensoropt_samples"  # in a batch

LITTLE = 1 << 20  # bytes of a batch
LOOKED_AT = 16  # samples of a data set, for their lengths

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class _Kept:
    """What a batch was made of; no container, so that nothing looks into it."""

    samples: list[Any]


@dataclass(frozen=True)
class _Keeping:
    """Collates, and leaves the samples in the batch; also in processes of workers."""

    collate: Collate

    def __call__(self, samples: Sequence[Any]) -> Any:
        kept = _Kept(_copies(samples))
        batch = self.collate(list(samples))
        if isinstance(batch, MutableMapping):
            batch[SAMPLES] = kept
        return batch


class JointBatches:
    """Those of one collator, whose batches are mappings.

    ::

        joint.keep(loader)              # its batches have their samples
        batch = joint.of_all(batch)     # of each, in every step, on all ranks
    """

    def __init__(self, collate: Collate) -> None:
        self._collate = collate
        self._dims: Dims | None = None

    def keep(self, loader: Any) -> None:
        """From now on batches of the loader are made by the collator and have their samples."""
        base = base_of(loader)
        if tells_samples(loader) and not isinstance(base.collate_fn, _Keeping):
            base.collate_fn = _Keeping(base.collate_fn)

    def of_all(self, batch: Any) -> Any:
        """The batch without its samples, as long as those of all ranks. Collective.

        Raises:
            TensorOptError: on every rank; a batch of all samples cannot be made, or it cannot
                be seen which are its rows.
        """
        kept = batch.pop(SAMPLES, None) if isinstance(batch, MutableMapping) else None
        if kept is None:
            return batch
        if shapes_are_equal(_shapes(batch)):
            return batch
        return self.rows_of(kept.samples)

    def first(self, drawn: Sampled) -> Sampled:
        """The first batch likewise. Collective."""
        return replace(drawn, batch=self.rows_of(list(drawn.samples)))

    def rows_of(self, samples: list[Any]) -> Any:
        """The rank's rows of a batch of the samples of all ranks. Collective."""
        ranks = gather(samples)
        return on_all_ranks(lambda: self._own_rows(ranks))

    def _own_rows(self, ranks: Sequence[Sequence[Any]]) -> Any:
        together = [sample for samples in ranks for sample in samples]
        if self._dims is None:
            self._dims = self._found(together)
        batch = self._made(together)
        rank = dist.get_rank()
        start, count = sum(map(len, ranks[:rank])), len(ranks[rank])
        for name, dim in self._dims.items():
            value = batch[name]
            if isinstance(value, list):
                batch[name] = value[start : start + count]
            elif dim is not None:
                batch[name] = value.narrow(dim, start, count).contiguous()
        return batch

    def _found(self, samples: list[Any]) -> Dims:
        """Where the entries of a batch have a row for each sample."""
        with kept_random_states():
            counts = [len(samples) + more for more in MORE]
            batches = [self._made([*samples, *[samples[0]] * more]) for more in MORE]
        names = list(batches[0])
        if any(list(batch) != names for batch in batches):
            raise _refusal("its batches have other entries when they have other numbers of samples")
        values = [[batch[name] for name in names] for batch in batches]
        tensors = [isinstance(value, torch.Tensor) for value in values[0]]
        found = rows_of_trials(
            [name for name, is_tensor in zip(names, tensors, strict=True) if is_tensor],
            [[v for v, t in zip(row, tensors, strict=True) if t] for row in values],
            [{count} for count in counts],
        )
        for name, *lists in zip(names, *values, strict=True):
            if isinstance(lists[0], list) and [len(entry) for entry in lists] == counts:
                found[name] = 0
        return found

    def _made(self, samples: Sequence[Any]) -> MutableMapping[str, Any]:
        batch = self._collate(_copies(samples))
        if not isinstance(batch, MutableMapping):
            raise _refusal(f"it makes a {type(batch).__name__}, and not a dict of tensors")
        return batch


def lengths_seen(drawn: Sampled, dataset: Any = None) -> list[dict[str, tuple[int, ...]]]:
    """Of which shapes are batches of one sample twice: of those of the first batch, and of some
    that are spread over the data set, if it has places. Ranks that see several have lengths."""
    samples = list(drawn.samples)
    with kept_random_states():
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            step = max(1, len(dataset) // LOOKED_AT)
            samples += [dataset[index] for index in range(0, len(dataset), step)]
        alone = [drawn.collate(_copies([sample, sample])) for sample in samples]
    found: list[dict[str, tuple[int, ...]]] = []
    for shapes in (_shapes(batch) for batch in alone if isinstance(batch, Mapping)):
        if shapes not in found:
            found.append(shapes)
    return found


def may_differ(drawn: Sampled) -> bool:
    """Whether later batches may have other shapes, though those that were looked at have not,
    and it takes little to be ready for that: where a collator of the user's, or one that pads,
    makes a dict of little."""
    stacks = drawn.collate in (default_collate, default_data_collator)
    stacks = stacks or isinstance(drawn.collate, DefaultDataCollator)
    return not stacks and isinstance(drawn.batch, MutableMapping) and _bytes(drawn.batch) <= LITTLE


def shapes_are_equal(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether those of all ranks are. Collective."""
    if not cpu_tensors_are_served():
        return all(other == shapes for other in gather(shapes))
    digest = hashlib.sha256(repr(sorted(shapes.items())).encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> 2
    return CallAgreement(dist.group.WORLD).begin(number).is_reached()


def cpu_tensors_are_served() -> bool:
    """Whether the job's own group exchanges tensors of CPUs, for which no device is waited."""
    try:
        backend_of_job("cpu")
    except RuntimeError:
        return False
    return True


def _bytes(batch: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in batch.values() if isinstance(value, torch.Tensor))


def _shapes(batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    tensors = ((name, value) for name, value in batch.items() if isinstance(value, torch.Tensor))
    return {name: tuple(value.shape) for name, value in tensors}


def _copies(samples: Sequence[Any]) -> list[Any]:
    """Some collators take entries out of the samples."""
    return [dict(sample) if type(sample) is dict else sample for sample in samples]


def _refusal(why: str) -> TensorOptError:
    return TensorOptError(
        f"the processes have batches of other lengths, and the collator cannot pad them together: "
        f"{why}; pad to one length for all (padding='max_length')"
    )
