"""Modules that draw random numbers in other ways than dropout, and tables with sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tests.distributed.kinds import Kind

Noise = Callable[[torch.Tensor], torch.Tensor]


class Noisy(nn.Module):
    """Two layers with noise in between, and again on the way to the loss."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(12, 16), nn.Linear(16, 6)
        self.noise = noise

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.noise(self.up(x).sin())
        return F.cross_entropy(self.noise(self.down(h)), y)


def dropped_rows(h: torch.Tensor) -> torch.Tensor:
    """Rows dropped as residual branches are."""
    kept = h.new_empty((h.shape[0], 1)).bernoulli_(0.6)
    return h * kept.div_(0.6)


def fills(h: torch.Tensor) -> torch.Tensor:
    """Each fill of memory that is new."""
    noise = torch.empty_like(h).normal_(0.1, 0.2) + torch.zeros_like(h).uniform_(-0.1, 0.3)
    noise = noise + 0.1 * torch.empty_like(h).exponential_(2.0).clamp(max=3)
    noise = noise + 0.01 * torch.empty_like(h).geometric_(0.4)
    noise = noise + 0.01 * torch.empty_like(h).log_normal_(0.0, 0.5)
    noise = noise + 0.01 * torch.empty_like(h).cauchy_().clamp(-3, 3)
    noise = noise + 0.01 * torch.empty_like(h).random_(-2, 5)
    kept = torch.empty_like(h).bernoulli_(torch.full((h.shape[-1],), 0.7, dtype=h.dtype))
    return h * kept + noise


def parts_filled(h: torch.Tensor) -> torch.Tensor:
    """A column of memory is filled through a view, and changed afterwards."""
    noise = torch.zeros_like(h)
    noise[:, 1].normal_().mul_(0.5)
    noise[:, 2:4].uniform_()
    return h + noise


def by_value(h: torch.Tensor) -> torch.Tensor:
    """As many draws as values say."""
    return F.rrelu(h, training=True) + 0.01 * torch.poisson(h.detach().exp())


def own_generators(h: torch.Tensor) -> torch.Tensor:
    """The same numbers in each call, from two seeds, in order."""
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(h.shape, generator=generator, dtype=h.dtype)
    noise = noise.mul_(0.1) + 0.1 * torch.rand(h.shape[-1:], generator=generator, dtype=h.dtype)
    generator.manual_seed(4)
    noise = noise + 0.1 * torch.empty_like(h).uniform_(generator=generator)
    return h[torch.randperm(len(h), generator=generator)] + noise


NOISES = {f.__name__: f for f in (dropped_rows, fills, parts_filled, by_value, own_generators)}


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, 12, generator=generator, dtype=torch.float64),
            torch.randint(0, 6, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def _seed(module: nn.Module, number: int) -> None:
    torch.manual_seed(number)


def noisy(name: str) -> Kind:
    """The numbers of one process, under every plan."""
    options = {"one_process_random": True}
    return Kind(partial(Noisy, NOISES[name]), batches(), between=_seed, options=options)


class Tables(nn.Module):
    """Looks up vectors and bags of them, with gradients that are sparse in one process."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, padding_idx=2, sparse=sparse)
        self.bags = nn.EmbeddingBag(20, 8, mode="mean", sparse=sparse)
        self.head = nn.Linear(16, 5)
        self.picks = sparse

    def forward(self, ids: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.cat([self.table(ids).mean(1), self.bags(ids)], -1)
        h = h + 0.1 * torch.gather(h, 1, ids[:, :1] % 16, sparse_grad=self.picks)
        return F.cross_entropy(self.head(h), y)


def table_batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, 9, (8, 6), generator=generator),
            torch.randint(0, 5, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def _dense_gradients(module: nn.Module) -> None:
    """Of the module of one process, to compare them."""
    if isinstance(module, Tables):
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(_to_dense)


def _to_dense(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def tables() -> Kind:
    return Kind(Tables, table_batches(), after=_dense_gradients)


def tables_with_adagrad() -> Kind:
    kind = tables()
    kind.optimizer = lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)
    return kind


rows_dropped = partial(noisy, "dropped_rows")
all_fills = partial(noisy, "fills")
filled_parts = partial(noisy, "parts_filled")
draws_by_value = partial(noisy, "by_value")
generators = partial(noisy, "own_generators")
