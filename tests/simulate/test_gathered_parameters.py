"""Copies of parameters that computing needs are told from activations."""

from __future__ import annotations

import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import simulate_memory
from tensoropt_torch.simulate import MemoryProfile
from tests.distributed.models import make

WIDTH, LAYERS, BATCH = 512, 3, 8192
WHOLE = 2 * LAYERS * WIDTH * WIDTH  # bytes of all weights in bfloat16


class Layers(nn.Module):
    """Linear layers without biases, in bfloat16 under autocast."""

    def __init__(self, autocast: bool) -> None:
        super().__init__()
        self.autocast = autocast
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, False) for _ in range(LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, width) -> the loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return self.layers(x).float().square().mean()


def profiles(autocast: bool, devices: int) -> list[MemoryProfile]:
    """Of all points of the frontier, for a batch so large that the peak is where backward
    begins."""
    with torch.device("meta"):
        model, args = Layers(autocast), (torch.zeros(BATCH, WIDTH),)
    frontier = tensoropt_torch.find_frontier(model, args, cluster="h100-8", num_devices=devices)
    return [simulate_memory(model, point.plan, args) for point in frontier]


def test_casts_of_whole_parameters_are_no_activations() -> None:
    """What is saved is the input of each layer in bfloat16, and that of the loss in float32. The
    first weight is not: the input needs no gradient."""
    (profile,) = profiles(autocast=True, devices=1)
    assert profile.phase == "backward"
    assert profile.categories["gathered parameters"] == WHOLE * (LAYERS - 1) // LAYERS
    saved = 2 * LAYERS * BATCH * WIDTH + 4 * BATCH * WIDTH
    assert abs(profile.categories["activations"] - saved) <= 4  # and the loss


def test_gathered_parameters_that_outlive_forward_are_no_activations() -> None:
    seen = 0
    for profile in profiles(autocast=True, devices=8):
        assert sum(profile.categories.values()) == profile.peak_bytes
        gathered = [u for u in profile.usages if u.node.startswith("reshard_parameter")]
        assert all(usage.category == "gathered parameters" for usage in gathered), profile
        seen = max(seen, sum(usage.num_bytes for usage in gathered))
    assert seen > 0


def test_whole_parameters_that_are_not_cast_have_no_copies() -> None:
    (profile,) = profiles(autocast=False, devices=1)
    assert profile.categories["gathered parameters"] == 0


def test_parameters_that_backward_gathers_again_are_no_buffers_of_reshards() -> None:
    """At the peak, where the last gradient begins, backward has all weights whole again."""
    with torch.device("meta"):
        model, args = Layers(autocast=False), (torch.zeros(1024, WIDTH),)
    frontier = tensoropt_torch.find_frontier(model, args, cluster="h100-8", recompute=True)
    profile = simulate_memory(model, frontier.smallest.plan, args, device="cuda")
    assert profile.phase == "backward"
    again = [u for u in profile.usages if u.operator in ("begin_gathers", "take_value")]
    assert {usage.category for usage in again} == {"gathered parameters"}, profile
    assert sum(u.num_bytes for u in again if u.operator == "take_value") == 2 * WHOLE


def test_parameters_of_a_bucket_are_gathered_where_the_first_is_taken() -> None:
    case = make("gpt_tied", torch.float32)
    example = case.model, case.args
    frontier = tensoropt_torch.find_frontier(
        *example, **case.keywords, cluster="h100-8", num_devices=8, recompute=True
    )
    taken = 0
    for point in frontier:
        plan, step = point.plan, {"device": "cuda", "measure_workspaces": False}
        profile = simulate_memory(case.model, plan, case.args, **case.keywords, **step)
        found = [u for u in profile.usages if u.node.startswith("reshard_parameter")]
        assert {usage.category for usage in found} <= {"gathered parameters"}, profile.usages
        taken += sum(usage.operator == "take_value" for usage in found)
        if taken:
            return
    raise AssertionError("at no peak a value of a bucket is in memory")
