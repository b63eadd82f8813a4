"""Stages of a graph, one after the other in one process, against the graph itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.stages import After, Before, StageGraph, cut_graph, cut_points, even_cuts
from tensoropt_torch.stages.cut import tied_parameters
from tensoropt_torch.stages.places import even_places
from tests.distributed.models import Case
from tests.stages.models import KNOWN, OWN, Masked, Normalised, Skips, make, tokens

Run = tuple[torch.Tensor, dict[str, torch.Tensor]]


def captured_of(case: Case, count: int = 1) -> CapturedModel:
    return micro_batched(capture(case.model, case.args, **case.keywords), count)


def values_of(
    captured: CapturedModel, state: dict[str, torch.Tensor], inputs: Sequence[Any], totals: Any
) -> list[Any]:
    """Of all sources; inputs and totals in their order."""
    rest, of_batch = iter(inputs), iter(totals)
    values = []
    for source in captured.sources:
        if source.kind == "total":
            values.append(next(of_batch))
        elif source.kind in ("input", "literal"):
            values.append(next(rest))
        else:
            values.append(source.as_seen(state[source.names[0]]))
    return values


def state_of(case: Case, captured: CapturedModel) -> dict[str, torch.Tensor]:
    """Parameters, and copies of what the graph has besides."""
    found = {name: tensor.clone() for name, tensor in captured.constants.items()}
    found |= {n: b.clone() for n, b in case.model.named_buffers(remove_duplicate=False)}
    return found | dict(case.model.named_parameters(remove_duplicate=False))


def parts_of(case: Case, captured: CapturedModel, number: int) -> list[Any]:
    """The inputs of a micro-batch."""
    inputs = [*case.args, *case.targets]
    micro = captured.micro_batching
    if micro is None:
        return inputs
    pairs = zip(inputs, micro.split, strict=True)
    return [value.chunk(micro.count)[number] if cut else value for value, cut in pairs]


def totals_of(case: Case, captured: CapturedModel, state: dict[str, torch.Tensor]) -> Any:
    micro = captured.micro_batching
    if micro is None or micro.totals is None:
        return ()
    whole = captured.batch
    assert whole is not None
    values = values_of(whole, state, [*case.args, *case.targets], ())
    return micro.totals.forward(*(values[number] for number in micro.total_sources))


def run_whole(case: Case, captured: CapturedModel) -> Run:
    state = state_of(case, captured)
    totals = totals_of(case, captured, state)
    loss = torch.zeros((), dtype=torch.float64)
    torch.manual_seed(1)
    for number in range(captured.micro_batches):
        values = values_of(captured, state, parts_of(case, captured, number), totals)
        share = captured.graph_module.forward(*values)[0]
        share.backward()
        loss = loss + share.detach()
    return loss, taken(case, state)


def taken(case: Case, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients, which are cleared, and buffers."""
    found = {f"buffer {n}": state[n] for n, _ in case.model.named_buffers()}
    for name, parameter in case.model.named_parameters():
        if parameter.grad is not None:
            found[f"gradient {name}"] = parameter.grad
            parameter.grad = None
    return found


def forward_of(
    stages: Sequence[StageGraph], case: Case, captured: CapturedModel, state: Any, number: int
) -> tuple[torch.Tensor, list[tuple[list[torch.Tensor], list[torch.Tensor]]]]:
    """The loss of a micro-batch, and by stage what it has sent and received."""
    inputs, totals = parts_of(case, captured, number), totals_of(case, captured, state)
    memory: list[torch.Tensor] = []
    passed = []
    for stage in stages:
        received = [c.unpacked(m) for c, m in zip(stage.received, memory, strict=True)]
        for crossing, tensor in zip(stage.received, received, strict=True):
            assert (tuple(tensor.shape), tensor.dtype) == (crossing.shape, crossing.dtype)
            tensor.requires_grad_(crossing.has_gradient)
        own = [inputs[index] for index in stage.inputs]
        values = values_of(stage.captured, state, [*own, *received], totals)
        outputs = stage.captured.graph_module.forward(*values)
        sent = list(outputs[len(stage.outputs) :])
        memory = [c.packed(t.detach()) for c, t in zip(stage.sent, sent, strict=True)]
        passed.append((sent, received))
    assert stages[-1].outputs[0] == 0
    return outputs[0], passed


def run_stages(stages: Sequence[StageGraph], case: Case, captured: CapturedModel) -> Run:
    """As ``run_whole``, one stage after the other, and back."""
    state = state_of(case, captured)
    total = torch.zeros((), dtype=torch.float64)
    torch.manual_seed(1)
    for number in range(captured.micro_batches):
        loss, passed = forward_of(stages, case, captured, state, number)
        loss.backward()
        for stage, (_, received), (sent, _) in reversed(
            [*zip(stages[1:], passed[1:], passed[:-1], strict=True)]
        ):
            pairs = [
                (tensor, value.grad)
                for crossing, tensor, value in zip(stage.received, sent, received, strict=True)
                if crossing.has_gradient
            ]
            if pairs:
                torch.autograd.backward([a for a, _ in pairs], [b for _, b in pairs])
        total = total + loss.detach()
    return total, taken(case, state)


def assert_equal(case: Case, captured: CapturedModel, cuts: Sequence[int], label: str) -> None:
    stages = cut_graph(captured, cuts)
    expected, got = run_whole(case, captured), run_stages(stages, case, captured)
    assert torch.equal(got[0], expected[0]), f"{label}: {got[0]} instead of {expected[0]}"
    assert got[1].keys() == expected[1].keys(), label
    # What is added up in another order is rounded in another way.
    rtol = 1e-5 if label.startswith("mixed") else 1e-11
    for name, tensor in expected[1].items():
        found = got[1][name]
        close = torch.allclose(found, tensor, rtol=rtol, atol=rtol * float(tensor.abs().max()))
        assert close, f"{label}: {name} is off by {(found - tensor).abs().max()}"


@pytest.mark.parametrize("name", [*OWN, *KNOWN])
def test_random_cuts_compute_what_the_graph_does(name: str) -> None:
    case = make(name)
    captured = captured_of(case)
    seed = random.randrange(2**32)
    chosen = random.Random(seed)
    done = 0
    for trial in range(8):
        count = chosen.randint(2, 4)
        cuts = sorted(chosen.sample(range(1, captured.num_calls), count - 1))
        try:
            cut_graph(captured, cuts)
        except TensorOptError:  # within the parts of a call, or behind the loss
            continue
        done += 1
        assert_equal(case, captured, cuts, f"{name}, seed {seed}, trial {trial}, cuts {cuts}")
    assert done >= 2, f"seed {seed}: nearly all cuts are refused"


@pytest.mark.parametrize("name", ["skips", "drops", "masked", "gpt_tied", "llama"])
def test_micro_batches_in_stages(name: str) -> None:
    case = make(name)
    captured = captured_of(case, 4)
    for count in (2, 3, 4):
        assert_equal(case, captured, even_cuts(captured, count), f"{name} in {count}")


def test_what_is_cheap_is_made_again() -> None:
    captured = captured_of(make("masked"))
    first, second = cut_graph(captured, cut_points(captured, ["layers.2"]))
    # The value of the trunk, and the classes that it was detached for.
    assert len(second.received) == 2
    assert [c.has_gradient for c in second.received].count(True) == 1
    assert first.sent == second.received
    assert tied_parameters([first, second]) == {"scale": (0, 1)}
    assert len(second.inputs) == 2 and len(first.inputs) == 1


def test_skips_pass_through_stages_between() -> None:
    captured = captured_of(make("skips"))
    stages = cut_graph(captured, cut_points(captured, ["down.1", "down.2", "up.1", "up.2"]))
    assert [len(stage.received) for stage in stages] == [0, 1, 2, 2, 1]
    assert all(a.sent == b.received for a, b in itertools.pairwise(stages))


def test_tied_weights_are_in_both_stages() -> None:
    captured = captured_of(make("gpt_tied"))
    stages = cut_graph(captured, even_cuts(captured, 2))
    assert len(tied_parameters(stages)) == 1
    names = [set(stage.parameters) for stage in stages]
    assert names[0] | names[1] == {source.names[0] for source in captured.parameters}


def nodes_of(stage: StageGraph) -> Sequence[Any]:
    return list(stage.captured.graph_module.graph.nodes)


def test_stages_of_equal_work() -> None:
    captured = captured_of(Case(Masked(), tokens(4)))
    for count in (2, 4):
        stages = cut_graph(captured, even_cuts(captured, count))
        calls = [
            sum(node.target is torch.ops.aten.linear.default for node in nodes_of(stage))
            for stage in stages
        ]
        assert sum(calls) == 5 and min(calls) >= 1


@pytest.mark.parametrize("frozen", [range(3), range(3, 6), range(1, 5)], ids=str)
def test_each_stage_has_parameters_that_are_trained(frozen: range) -> None:
    case = Case(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), (torch.randn(4, 8),))
    for number in frozen:
        case.model.get_submodule(str(number)).requires_grad_(False)
    case = Case(case.model, case.args, nn.functional.mse_loss, (torch.randn(4, 8),))
    captured = captured_of(case)
    trained = [number for number in range(6) if number not in frozen]
    for count in range(2, len(trained) + 1):
        stages = cut_graph(captured, even_cuts(captured, count))
        for stage in stages:
            assert any(int(name.split(".")[0]) in trained for name in stage.parameters)
    with pytest.raises(TensorOptError, match=f"{len(trained)} calls take parameters that are"):
        even_cuts(captured, len(trained) + 1)


def test_a_buffer_that_changes_is_in_one_stage() -> None:
    shared = nn.BatchNorm1d(8)
    layers = [nn.Linear(8, 8), shared, nn.Linear(8, 8), nn.Linear(8, 8), shared, nn.Linear(8, 8)]
    x = torch.randn(4, 8)
    case = Case(nn.Sequential(*layers), (x,), nn.functional.mse_loss, (x,))
    captured = captured_of(case)
    first, second = cut_graph(captured, even_cuts(captured, 2))
    assert "1.weight" in {*first.parameters} ^ {*second.parameters}


class Reused(nn.Module):
    """Layers, and one with a buffer that changes behind several of them."""

    def __init__(self, layers: int, used_after: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.norm = nn.BatchNorm1d(8)
        self.used_after = used_after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers, 1):
            x = layer(x).tanh()
            if number in self.used_after:
                x = self.norm(x)
        return x


def reused(layers: int, used_after: Sequence[int]) -> CapturedModel:
    x = torch.randn(4, 8)
    case = Case(Reused(layers, used_after), (x,), nn.functional.mse_loss, (x,))
    return captured_of(case)


@pytest.mark.parametrize("used_after", [(5, 12), (1, 8), (3, 10)], ids=str)
def test_cuts_keep_clear_of_a_buffer_that_is_used_far_apart(used_after: Sequence[int]) -> None:
    captured = reused(12, used_after)
    for count in (2, 3, 4):
        stages = cut_graph(captured, even_cuts(captured, count))
        assert len(stages) == count and all(stage.parameters for stage in stages)


def test_there_are_even_cuts_where_there_are_any_of_random_models() -> None:
    seed = random.randrange(2**32)
    chosen = random.Random(seed)
    for trial in range(6):
        layers = chosen.randint(2, 4)
        used_after = sorted(chosen.sample(range(1, layers + 1), 2))
        captured, count = reused(layers, used_after), chosen.randint(2, 4)
        label = f"seed {seed}, trial {trial}: {layers} layers, {used_after}, {count} stages"
        cuts = itertools.combinations(range(1, captured.num_calls), count - 1)
        possible = any(owns_all(captured, places) for places in cuts)
        try:
            assert owns_all(captured, even_cuts(captured, count)), label
            assert possible, label
        except TensorOptError:
            assert not possible, label


def owns_all(captured: CapturedModel, cuts: Sequence[int]) -> bool:
    """Whether it can be cut so, and each stage has parameters."""
    try:
        return all(stage.parameters for stage in cut_graph(captured, cuts))
    except TensorOptError:
        return False


def test_there_are_even_places_exactly_where_some_fit() -> None:
    seed = random.randrange(2**32)
    chosen, outcomes = random.Random(seed), {True: 0, False: 0}
    for trial in range(2000):
        calls, count = chosen.randint(1, 9), chosen.randint(2, 5)
        owns = [chosen.random() < 0.6 for _ in range(calls)]
        places = [n for n in range(1, calls) if chosen.random() < 0.6]
        sizes = [chosen.choice([0.0, 1.0, 1.0, 9.0]) for _ in range(calls)]
        bytes_at = [chosen.randint(0, 3) for _ in range(calls + 1)]
        work, owning = (list(itertools.accumulate(s)) for s in (sizes, map(int, owns)))
        found = even_places(work, bytes_at, owning, places, count)
        fitting = [
            list(cuts)
            for cuts in itertools.combinations(places, count - 1)
            if all(any(owns[a:b]) for a, b in itertools.pairwise([0, *cuts, calls]))
        ]
        label = f"seed {seed}, trial {trial}: {owns} at {places} into {count}"
        assert found in fitting if fitting else found is None, f"{label} gives {found}"
        outcomes[bool(fitting)] += 1
    assert min(outcomes.values()) > 100, f"seed {seed}: {outcomes}"


def test_after_is_behind_the_last_call() -> None:
    captured = captured_of(make("skips"))
    after, before = (
        cut_points(captured, [After("down.0")]),
        cut_points(captured, [Before("down.1")]),
    )
    assert after[0] == before[0] - 1  # of relu, which is the model's


def test_a_module_that_is_not_there() -> None:
    captured = captured_of(make("skips"))
    with pytest.raises(TensorOptError, match=r"did you mean 'down\.1'"):
        cut_points(captured, ["down1"])
    with pytest.raises(TensorOptError, match="does not run after it"):
        cut_points(captured, ["up.0", "down.1"])
    with pytest.raises(TensorOptError, match="leaves nothing"):
        cut_points(captured, ["down.0"])


def test_cuts_are_numbers_of_calls() -> None:
    captured = captured_of(make("skips"))
    for cuts in ([0], [3, 3], [captured.num_calls]):
        with pytest.raises(TensorOptError, match="ascending order"):
            cut_graph(captured, cuts)


class Twice(nn.Module):
    """A buffer that forward changes in one place, and reads in another."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x - self.mean)
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return (self.second(x) - self.mean).square().mean()


def test_a_buffer_that_changes_belongs_to_one_stage() -> None:
    captured = captured_of(Case(Twice(), (torch.randn(4, 8),)))
    with pytest.raises(TensorOptError, match="buffer"):
        cut_graph(captured, cut_points(captured, [After("first")]))


def test_losses_are_needed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    captured = capture(model, (torch.randn(2, 4),))
    with pytest.raises(TensorOptError, match="no loss"):
        cut_graph(captured, [1])


def test_parts_of_a_call_stay_together() -> None:
    captured = captured_of(make("normalised"))
    assert isinstance(make("normalised").model, Normalised)
    assert isinstance(make("skips").model, Skips)
    stages = cut_graph(captured, cut_points(captured, ["layers.3"]))
    names = [
        {s.names[0] for s in stage.captured.sources if s.kind == "constant"} for stage in stages
    ]
    assert {"layers.1.running_mean", "layers.1.num_batches_tracked"} <= names[0]
    assert {"layers.4.running_mean", "layers.4.num_batches_tracked"} <= names[1]
