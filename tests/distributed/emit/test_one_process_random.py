"""With ``one_process_random`` every strategy draws what the model draws on one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks
from tests.distributed.parity import Trace, differences, labels, train, train_alone

HERE = "tests.distributed.emit.test_one_process_random"
SEED = 7
CPU = torch.device("cpu")


class Dropped(nn.Module):
    """All kinds of random operators: of elements, channels and attention, of tensors
    that are transposed or expanded, and numbers that no operand has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.qkv = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)
        self.head = nn.Linear(16, 12)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """(b, s, 16) -> (b, s, 16), 4 heads."""
        query, key, value = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in self.qkv)
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=0.3, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(b, s) tokens and targets -> the loss."""
        x = F.dropout(self.embedding(tokens), 0.2)
        x = x + F.dropout(self.attention(x).transpose(0, 1), 0.2).transpose(0, 1)
        x = x + F.dropout1d(self.down(F.alpha_dropout(self.up(x), 0.1, True)), 0.2)
        x = x + 0.1 * torch.rand_like(x) + 0.1 * torch.randn(4, 1, 16, dtype=x.dtype)
        x = x + F.dropout(x.mean(1, keepdim=True).expand_as(x), 0.3)
        return F.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.randint(0, 12, (2, 4, 8), generator=torch.Generator().manual_seed(1))
    return first, second


def seeded_training(module: nn.Module) -> Trace:
    torch.manual_seed(SEED)
    return train(module, lambda: module(*tokens()))


def check_strategies(count: int) -> list[str]:
    """What differs from the model itself, with random strategies."""
    torch.manual_seed(0)
    model = Dropped().double()
    expected = train_alone(model, lambda module: module(*tokens()), 1e-10, seed=SEED)
    captured = capture(model, tokens())
    settings = PlanningTask(captured, load_cluster("cpu")).settings(dist.get_world_size())
    space = make_space(captured, settings)
    context = RankContext.make([size for size, _ in settings.mesh_axes], CPU)
    wrong = []
    for seed in range(count):
        plan = Plan.of(space, settings, captured, space.random_strategy(seed))
        module = parallelize(model, captured, plan, CPU, context, one_process_random=True)
        found = list(differences(seeded_training(module), expected, 1e-10))
        if found:
            wrong.append(f"random strategy, seed {seed}: {found[:3]} under {labels(plan, 'net')}")
    return wrong


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_random_strategies_draw_what_the_model_draws(world_size: int) -> None:
    for wrong in run_ranks(world_size, f"{HERE}:check_strategies", 6, 300):
        assert not wrong, wrong[0]


def check_modes(_: None) -> tuple[float, float, float]:
    """The loss of the model, with its numbers, and with numbers of shards."""
    torch.manual_seed(0)
    model = Dropped().double()
    losses = []
    for make in (
        lambda: model,
        lambda: tensoropt_torch.auto_parallel(
            model, tokens(), measure=False, one_process_random=True
        ),
        lambda: tensoropt_torch.auto_parallel(model, tokens(), measure=False),
    ):
        module = make()
        torch.manual_seed(SEED)
        losses.append(float(module(*tokens()).detach()))
    return losses[0], losses[1], losses[2]


def test_auto_parallel_has_both_modes() -> None:
    for own, same, other in run_ranks(2, f"{HERE}:check_modes", None, 120):
        assert same == pytest.approx(own, rel=1e-10)
        assert abs(other - own) > 1e-6


def seed_by_rank(_: None) -> str:
    parallel = tensoropt_torch.auto_parallel(
        Dropped(), tokens(), measure=False, one_process_random=True
    )
    torch.manual_seed(dist.get_rank())
    with pytest.raises(tensoropt_torch.TensorOptError) as error:
        parallel(*tokens())
    return str(error.value)


def test_ranks_with_other_seeds_are_refused() -> None:
    for message in run_ranks(2, f"{HERE}:seed_by_rank", None, 60):
        assert "state of the random generators differs between ranks" in message
        assert "torch.manual_seed" in message
