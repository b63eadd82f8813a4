"""Which samples the batches of a data loader are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from tensoropt_torch.integrations.row_dims import Sampled


@dataclass(frozen=True)
class _Recording:
    """Collates, and gives the samples besides; also in processes of workers."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: Sequence[Any]) -> Sampled:
        kept = [dict(sample) if type(sample) is dict else sample for sample in samples]
        return Sampled(self.collate(list(samples)), kept, self.collate)


@contextmanager
def recording(loaders: Sequence[Any]) -> Iterator[None]:
    """Batches that are drawn inside of those that are ``DataLoader`` and make them of samples
    are ``Sampled``."""
    found = [base_of(loader) for loader in loaders if tells_samples(loader)]
    before = [loader.collate_fn for loader in found]
    for loader in found:
        _end_workers(loader)
        loader.collate_fn = _Recording(loader.collate_fn)
    try:
        yield
    finally:
        for loader, collate in zip(found, before, strict=True):
            loader.collate_fn = collate
            _end_workers(loader)


def base_of(loader: Any) -> Any:
    """Accelerate's loaders draw from another one."""
    return getattr(loader, "base_dataloader", loader)


def tells_samples(loader: Any) -> bool:
    """Whether each process collates its own batches, of samples. With ``dispatch_batches`` of
    Accelerate one does so for all."""
    base = base_of(loader)
    collates = isinstance(base, DataLoader) and base.batch_sampler is not None
    return collates and not hasattr(loader, "_fetch_batches")


def _end_workers(loader: DataLoader[Any]) -> None:
    """Those that are kept, which have the collator that the loader had."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None
