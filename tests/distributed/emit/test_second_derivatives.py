"""Gradients that are differentiated: penalties of gradients of inputs and of parameters, and
products with the Hessian, against one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.module import ParallelModule
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind

HERE = "tests.distributed.emit.test_second_derivatives"


# --- Modules ----------------------------------------------------------------------------------


class Critic(nn.Module):
    """Scores rows; ``scored`` is what the loss is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.down(F.softplus(self.mid(torch.tanh(self.up(x)))))
        return scores


class Images(nn.Module):
    """Convolutions, with a normalisation of each kind."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1, bias=False)
        self.norm = norm()
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.last = nn.Linear(8 * 4 * 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(self.norm(self.first(x)), 0.2)
        x = torch.tanh(self.second(x))
        scores: torch.Tensor = self.last(x.flatten(1))
        return scores


class Squares(nn.Module):
    """A loss that is a mean over rows, of the scores of a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = Critic()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x).square().mean()


class Classes(nn.Module):
    """Words, some of which count for nothing, are looked up and classified."""

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(24, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 24)
        self.smoothing = smoothing

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.down(F.softplus(self.up(torch.tanh(self.words(ids)))))
        return F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), label_smoothing=self.smoothing
        )


class Attention(nn.Module):
    """Queries, keys and values from one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (4, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2)).square().mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0]).square().mean()


# --- Steps ------------------------------------------------------------------------------------


def _of_all(loss: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """A mean over the rows of this rank as its part of that over all."""
    if not isinstance(module, ParallelModule) or module.plan.settings.inputs == "replicated":
        return loss
    own = loss / dist.get_world_size()
    whole = own.detach().clone()
    dist.all_reduce(whole)
    return own + (whole - own.detach())


def of_inputs(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """WGAN-GP."""
    x = x.detach().requires_grad_()
    scores = module(x)
    (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return _of_all(scores.mean() + 10 * penalty, module)


def by_backward(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """R1. The pass leaves gradients of parameters as well."""
    x = x.detach().requires_grad_()
    scores = module(x)
    scores.square().sum().backward(create_graph=True)
    assert x.grad is not None
    return scores.mean() + x.grad.square().mean()


def _wholes(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]


def of_parameters(module: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(*batch)
    gradients = torch.autograd.grad(loss.square(), list(module.parameters()), create_graph=True)
    return loss + sum(g.square().sum() for g in _wholes(gradients))


def of_norms(module: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
    """Norms of the gradients as they are."""
    loss: torch.Tensor = module(*batch)
    gradients = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
    return loss + sum(_wholes([torch.linalg.vector_norm(g) for g in gradients]))


def of_products(module: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
    """Products of the Hessian with ones, which are differentiated in turn."""
    loss: torch.Tensor = module(*batch)
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    total = sum(g.sum() for g in _wholes(gradients))
    products = torch.autograd.grad(total, parameters, create_graph=True)
    return loss + sum(p.square().sum() for p in _wholes(products))


# --- Kinds ------------------------------------------------------------------------------------


def _rows(*shape: int) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return [(x.requires_grad_(),) for x in made]


def _words() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    batches = []
    for _ in range(2):
        ids, target = torch.randint(0, 24, (2, 4, 3), generator=generator)
        target[0, 1] = -100
        batches.append((ids, target))
    return batches


def inputs_of_layers() -> Kind:
    return Kind(Critic, _rows(8, 12), step=of_inputs)


def inputs_of_shares() -> Kind:
    return Kind(Critic, _rows(8, 12), step=of_inputs, inputs="sharded")


def inputs_by_backward() -> Kind:
    return Kind(Critic, _rows(8, 12), step=by_backward)


def inputs_of_convolutions() -> Kind:
    return Kind(lambda: Images(lambda: nn.GroupNorm(2, 8)), _rows(4, 2, 8, 8), step=of_inputs)


def inputs_of_instances() -> Kind:
    return Kind(
        lambda: Images(lambda: nn.InstanceNorm2d(8, affine=True)), _rows(4, 2, 8, 8), step=of_inputs
    )


def inputs_of_layer_norm() -> Kind:
    return Kind(lambda: Images(lambda: nn.LayerNorm([8, 8, 8])), _rows(4, 2, 8, 8), step=of_inputs)


def inputs_of_batches() -> Kind:
    return Kind(lambda: Images(lambda: nn.BatchNorm2d(8)), _rows(4, 2, 8, 8), step=by_backward)


def parameters_of_layers() -> Kind:
    return Kind(Squares, _rows(8, 12), step=of_parameters)


def norms_of_layers() -> Kind:
    return Kind(Squares, _rows(8, 12), step=of_norms)


def products_of_layers() -> Kind:
    return Kind(Squares, _rows(8, 12), step=of_products)


def parameters_of_classes() -> Kind:
    return Kind(Classes, _words(), step=of_parameters)


def products_of_smooth_classes() -> Kind:
    return Kind(lambda: Classes(0.1), _words(), step=of_products)


def parameters_of_attention() -> Kind:
    return Kind(Attention, _rows(4, 6, 8), step=of_parameters)


KINDS = [
    inputs_of_layers,
    inputs_of_shares,
    inputs_by_backward,
    inputs_of_convolutions,
    inputs_of_instances,
    inputs_of_layer_norm,
    inputs_of_batches,
    parameters_of_layers,
    norms_of_layers,
    products_of_layers,
    parameters_of_classes,
    products_of_smooth_classes,
    parameters_of_attention,
]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_second_derivatives_are_those_of_one_process(kind: Callable[[], Kind], world: int) -> None:
    found = run_ranks(world, "tests.distributed.kinds:check", f"{HERE}:{kind.__name__}")
    assert found == [[]] * world
