"""The simulation on meta tensors against that on fake tensors of a CPU, where every operator is
the CPU's: an operator whose meta kernel keeps other memory would be off without a word."""

from __future__ import annotations

import warnings

import pytest
import torch

from benchmarks.coverage.zoo import MODELS, make
from benchmarks.memory.job import random_plan
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan
from tensoropt_torch.simulate import StepSettings, simulate_step, simulated_rank

FEW = [
    "mlp",
    "dlrm",
    "lstm",
    "moe_index_add",
]
STEP = StepSettings(measure_workspaces=False)


def on_a_cpu(*_: object) -> bool:
    """In place of the choice."""
    return True


def check(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares what a random strategy takes."""
    example = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = capture(example.model, example.args, **example.keywords)
    plan = random_plan(captured, 4, seed, recompute=seed % 2 == 1)
    chosen = simulate_step(plan, captured, STEP)
    monkeypatch.setattr(simulated_rank, "_has_kernels_of_a_cpu", on_a_cpu)
    expected = simulate_step(plan, captured, STEP)
    assert chosen.peak_bytes == expected.peak_bytes, (name, seed)
    assert chosen.phase_peaks == expected.phase_peaks, (name, seed)
    assert chosen.categories == expected.categories, (name, seed)


def operators_of_a_cpu(plan: Plan, captured: CapturedModel) -> set[str]:
    """Those of a rank's graph."""
    graph = simulated_rank.SimulatedRank.of(RankPart(plan, captured, 0)).graph
    return {
        str(node.target)
        for node in graph.nodes
        if simulated_rank._has_kernels_of_a_cpu(node, "cpu")
    }


@pytest.mark.parametrize("name", FEW)
def test_meta_tensors_take_what_those_of_a_cpu_take(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, 0, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_meta_tensors_of_all_models_take_what_those_of_a_cpu_take(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, seed, monkeypatch)


class Layer(torch.nn.Module):
    """One layer and its loss."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, steps, 16) -> the loss."""
        return self.layer(x)[0].square().mean()


class Causal(torch.nn.Module):
    """Causal attention of one head."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """(batch, rows, 16) -> the same."""
        heads = x.unsqueeze(1)
        attention = torch.nn.functional.scaled_dot_product_attention
        return (attention(heads, heads, heads, is_causal=True).squeeze(1),)


class Projected(Causal):
    """Of what has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """(batch, rows, 16) -> the same."""
        return super().forward(self.up(x))


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (torch.nn.LSTM(16, 16, batch_first=True), "lstm"),
        (Projected(), "balanced_causal_attention"),
    ],
)
def test_what_the_meta_device_computes_otherwise_is_simulated_as_on_a_cpu(
    layer: torch.nn.Module, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some strategy the meta device's peak is another one, and is not taken."""
    captured = capture(Layer(layer), (torch.zeros(4, 32, 16),))
    differing = 0
    for seed in range(8):
        plan = random_plan(captured, 4, seed)
        found = [name for name in operators_of_a_cpu(plan, captured) if operator in name]
        chosen = simulate_step(plan, captured, STEP).peak_bytes
        with monkeypatch.context() as patched:
            patched.setattr(simulated_rank, "_has_kernels_of_a_cpu", on_a_cpu)
            assert simulate_step(plan, captured, STEP).peak_bytes == chosen, seed
            patched.setattr(simulated_rank, "_has_kernels_of_a_cpu", lambda *_: False)
            on_meta = simulate_step(plan, captured, STEP).peak_bytes
        assert found or on_meta == chosen, seed
        differing += on_meta != chosen
    assert differing > 0
