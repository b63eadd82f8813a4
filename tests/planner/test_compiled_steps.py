"""What compilers fuse is read and written once, and started once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

ROWS, WIDTH = 8, 32
ONE = ROWS * WIDTH * 4.0  # bytes of an activation


class Block(nn.Module):
    """A residual block, with a view between what is fused."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(x)
        hidden = self.up(self.norm(x))
        hidden = torch.tanh(torch.nn.functional.gelu(hidden).view(ROWS, 4, WIDTH // 4))
        return (x + self.down(hidden.view(ROWS, WIDTH))).exp()


def calls(compiled: bool) -> dict[str, tuple[float, float]]:
    """Bytes and launches of each operator, on one device."""
    with torch.device("meta"):
        captured = capture(Block(), (torch.zeros(ROWS, WIDTH),), loss_fn=torch.sum)
    task = PlanningTask(captured, load_cluster("h100-8"), compiled=compiled)
    space = make_space(captured, task.settings(1))
    strategy = space.random_strategy(0)
    found = {}
    for row in space.estimates(strategy):
        call = space.local_call(row.node, strategy.config[row.node])
        found[row.name] = call.work.bytes / ONE, call.work.launches
    return found


def test_what_stays_in_a_kernel_is_not_moved() -> None:
    found = calls(compiled=True)
    # The norm has it from sin, whose output the sum reads behind two products: it is written.
    assert found["sin"] == (2, 1)
    assert found["norm.layer_norm"] == (1, 0)
    assert found["gelu"] == (1, 1)  # reads what the product has made
    assert found["tanh"] == (1, 0)  # writes what the next one reads
    assert found["add"] == (2, 1)  # both are from before the product
    assert found["exp"][1] == 0 and found["exp"][0] == 0  # the loss takes it at once


def test_products_and_steps_that_are_not_compiled_are_as_before() -> None:
    plain, compiled = calls(compiled=False), calls(compiled=True)
    for name in plain:
        if "linear" in name:
            assert plain[name] == compiled[name]
    assert plain["norm.layer_norm"] == plain["gelu"] == plain["tanh"] == (2, 1)
    assert plain["add"] == (3, 1)


@pytest.mark.parametrize("cluster", ["h100-8", "cpu"])
def test_compiled_steps_are_predicted_to_be_faster(cluster: str) -> None:
    with torch.device("meta"):
        captured = capture(Block(), (torch.zeros(ROWS, WIDTH),), loss_fn=torch.sum)
    task = PlanningTask(captured, load_cluster(cluster))
    times = []
    for compiled in (False, True):
        own = replace(task, compiled=compiled)
        found = own.search.run(make_space(captured, own.settings(4)))
        times.append(found.points[-1][1])
    assert times[1] < times[0]
