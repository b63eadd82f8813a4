"""Steps of one process as one function: bit for bit those that run operator by operator, whatever
is asked of their backward."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

import tensoropt_torch
from tensoropt_torch.emit.boxed import BoxedStep
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.operators import OPS
from tests.distributed.harness import run_ranks
from tests.distributed.models import CASES, make

HERE = "tests.distributed.emit.test_boxed"
STEPS = 4


def parallel(model: nn.Module, *args: Any, **keywords: Any) -> ParallelModule:
    torch.manual_seed(1)
    plan = tensoropt_torch.find_strategy(
        model, args, cluster="cpu", num_devices=1, measure=False, **keywords
    )
    return tensoropt_torch.parallelize(model, plan, args, **keywords)


def boxed_of(module: ParallelModule) -> BoxedStep:
    found = programs_of(module).base.boxed
    assert found is not None
    return found


def one_by_one(module: ParallelModule) -> ParallelModule:
    """The same, operator by operator."""
    programs_of(module).base.boxed = None
    return module


def programs(module: ParallelModule) -> int:
    return len(boxed_of(module)._programs)


def both(make_model: Callable[[], nn.Module], *args: Any) -> list[ParallelModule]:
    torch.manual_seed(0)
    model = make_model()
    first = parallel(copy.deepcopy(model), *args)
    other = tensoropt_torch.parallelize(model, first.plan, args)
    return [first, one_by_one(other)]


def local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def state(module: nn.Module, *more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {n: local(t) for n, t in module.state_dict(keep_vars=True).items()}
    for name, p in module.named_parameters():
        found[f"{name}.grad"] = None if p.grad is None else local(p.grad)
        if p.grad is not None:
            found[f"{name}.strides"] = p.grad.to_local().stride()
    return found | {f"more{i}": m for i, m in enumerate(more)}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, found in one.items():
        expected = other[name]
        same = (
            torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected
        )
        assert same, (name, found, expected)


# --- Models


def train_case(job: tuple[str, torch.dtype, bool]) -> tuple[str, int]:
    """Whether it is boxed, and in how many programs."""
    name, dtype, autocast = job
    case = make(name, dtype)
    modules = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            modules.append(parallel(copy.deepcopy(case.model), *case.args, **case.keywords))
    one_by_one(modules[1])
    states = []
    for module in modules:
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        found = []
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = module(*case.args, *case.targets)
            loss.backward()
            found.append(state(module, loss.detach()))
            optimizer.step()
            optimizer.zero_grad()
        states.append(found)
    for one, other in zip(*states, strict=True):
        assert_same(one, other)
    boxed = programs_of(modules[0]).base.boxed
    if boxed is None:
        return "no step", 0
    return boxed.reason, len(boxed._programs)


# Those with operators that are no calls of ATen alone have no such step.
OTHERWISE = {
    "lstm": "no step",
    "gru": "no step",
    "texts": "no step",
    "routed_experts": "no step",
    "experts": "depends on values",
    "sorted_experts": "depends on values",
    "mixture": "follow from inputs that forward writes to",
}


@pytest.mark.parametrize("name", CASES)
def test_models_train_bit_for_bit_as_operator_by_operator(name: str) -> None:
    ((reason, count),) = run_ranks(1, f"{HERE}:train_case", (name, torch.float32, False))
    assert OTHERWISE.get(name, "") in reason
    assert count == (name not in OTHERWISE)


@pytest.mark.parametrize("name", ["gpt", "resnet", "llama"])
def test_casts_are_those_of_autocast(name: str) -> None:
    assert run_ranks(1, f"{HERE}:train_case", (name, torch.float32, True)) == [("", 1)]


# --- What is asked of backward


class Block(nn.Module):
    """With each of what may be held: inputs, views of parameters, results, masks."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.softplus(self.up(self.norm(x)))
        h = x + F.dropout(self.down(h), self.dropout, self.training)
        return torch.tanh(self.frozen(h)).square().mean()


class Held(Block):
    """Backward needs a part of what it gives; the other part has no gradient."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        h = self.down(torch.tanh(self.up(x))).exp()
        return h, h.detach().sum()


class TwoOutputs(Block):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        h = torch.tanh(self.up(x))
        return h, self.down(h).exp().sum()


def rows(seed: int = 5) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))


def step(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(x)
    loss.backward()
    return loss.detach()


def warmed(module: ParallelModule, x: torch.Tensor) -> ParallelModule:
    step(module, x)
    module.zero_grad()
    return module


def retained(module: ParallelModule) -> Any:
    loss = module(rows())
    loss.backward(retain_graph=True)
    first = [local(p.grad) for p in module.parameters() if p.grad is not None]
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return first


def accumulated(module: ParallelModule) -> Any:
    return [step(module, rows(seed)) for seed in range(3)]


def two_forwards(module: ParallelModule) -> Any:
    losses = [module(rows(seed)) for seed in range(2)]
    for loss in losses:
        loss.backward()
    return [loss.detach() for loss in losses]


def asked_for(module: ParallelModule) -> Any:
    found = torch.autograd.grad(module(rows()), [module.up.weight, module.norm.bias])
    assert all(p.grad is None for p in module.parameters())
    return [local(gradient) for gradient in found]


def second(module: ParallelModule) -> Any:
    x = rows().requires_grad_()
    (gradient,) = torch.autograd.grad(module(x), x, create_graph=True)
    gradient.square().sum().backward()
    return [gradient.detach(), x.grad]


def of_inputs(module: ParallelModule) -> Any:
    leaf = rows().requires_grad_()
    step(module, leaf * 2)
    return [leaf.grad]


def hooked(module: ParallelModule) -> Any:
    seen = []
    handle = module.up.weight.register_hook(lambda g: seen.append(local(g)))
    later = module.down.bias.register_post_accumulate_grad_hook(
        lambda p: seen.append(local(p.grad))
    )
    step(module, rows())
    handle.remove()
    later.remove()
    return seen


def saved(module: ParallelModule) -> Any:
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(rows())
    assert len(packed) > 5
    loss.backward()
    return []


def anomalous(module: ParallelModule) -> Any:
    with torch.autograd.detect_anomaly(check_nan=False):
        return [step(module, rows())]


def frozen_meanwhile(module: ParallelModule) -> Any:
    module.up.weight.requires_grad_(False)
    losses = [step(module, rows(seed)) for seed in (1, 2)]
    module.up.weight.requires_grad_(True)
    return [*losses, step(module, rows(3))]


def evaluated(module: ParallelModule) -> Any:
    with torch.no_grad():
        found = [module(rows())]
    module.eval()
    found.append(module(rows()).detach())
    return found


def other_rows(module: ParallelModule) -> Any:
    return [step(module, torch.cat([rows()] * count)) for count in (1, 2, 1, 3, 2)]


def strided(module: ParallelModule) -> Any:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).t()
    return [step(module, x), step(module, x)]


ASKED = [
    retained,
    accumulated,
    two_forwards,
    asked_for,
    second,
    of_inputs,
    hooked,
    saved,
    anomalous,
    frozen_meanwhile,
    evaluated,
    other_rows,
    strided,
]


def ask(dropout: float) -> None:
    """Each of them before and after the step was recorded."""
    torch.manual_seed(0)
    model = Block(dropout)
    plan = parallel(model, rows()).plan
    for function in ASKED:
        for warm in (False, True):
            copies = (copy.deepcopy(model) for _ in range(2))
            modules = [
                tensoropt_torch.parallelize(own, plan, (rows(),), check_capture=False)
                for own in copies
            ]
            one_by_one(modules[1])
            states = []
            for module in modules:
                torch.manual_seed(7)
                if warm:
                    warmed(module, rows())
                found = function(module)
                found += [step(module, rows()), step(module, rows())]
                states.append(state(module, *found))
            try:
                assert_same(*states)
                assert boxed_of(modules[0]).reason == ""
            except AssertionError as error:
                raise AssertionError(f"{function.__name__}, warm={warm}: {error}") from error


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_whatever_is_asked_is_what_operators_one_by_one_give(dropout: float) -> None:
    run_ranks(1, f"{HERE}:ask", dropout, 400)


def reversed_gradient(module: nn.Module, turn: int) -> list[Any]:
    """What is asked of two outputs, of which the second follows from the first."""
    h, loss = module(rows(turn))
    got: list[Any] = []
    if turn % 6 == 0:
        (h.sum() + loss).backward()
    elif turn % 6 == 1:
        loss.backward()
    elif turn % 6 == 2:
        (h * h).sum().backward()
    elif turn % 6 == 3:
        h.register_hook(lambda gradient: -gradient)
        loss.backward()
    elif turn % 6 == 4:
        h.retain_grad()
        loss.backward()
        got = [h.grad]
    else:
        loss.register_hook(lambda gradient: got.append(gradient.clone()))  # not called
        got = [*torch.autograd.grad((h.sum(), loss), h)]
    return [h.detach(), loss.detach(), *got]


def several_outputs(_: None) -> None:
    states = []
    for module in both(TwoOutputs, rows()):
        found: list[Any] = []
        for turn in range(12):
            found += [*reversed_gradient(module, turn), *state(module).values()]
            module.zero_grad()
        states.append({str(i): value for i, value in enumerate(found)})
    assert_same(*states)
    assert programs_of(parallel(TwoOutputs(), rows())).base.boxed is None


def casts(_: None) -> None:
    """Backward inside of autocast in some steps, and outside in others."""
    for begins_inside in (True, False):
        states = []
        for module in both(Block, rows()):
            found: list[Any] = []
            for turn in range(6):
                loss = module(rows(turn))
                inside = (turn < 2) == begins_inside
                with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                    loss.backward()
                found += state(module).values()
                module.zero_grad()
            states.append({str(i): value for i, value in enumerate(found)})
        assert_same(*states)


def test_backward_may_be_under_other_casts() -> None:
    run_ranks(1, f"{HERE}:casts")


def test_gradients_may_come_to_some_outputs_only() -> None:
    run_ranks(1, f"{HERE}:several_outputs")


# --- What is written to in between


def written(_: None) -> None:
    x = rows()
    module = warmed(parallel(Block(), x), x)
    loss = module(x)
    with torch.no_grad():
        module.up.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = module(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    module = parallel(Held(), x)
    for _ in range(2):
        module(x)[0].sum().backward()
        module.zero_grad()
    assert programs(module) == 1
    h, _ = module(x)
    h.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()
    h, total = module(x)
    total.mul_(2)  # exp() holds what it gives, the sum of it is not held
    h.sum().backward()


def test_what_backward_needs_and_somebody_writes_to_is_an_error() -> None:
    run_ranks(1, f"{HERE}:written")


# --- Memory


def freed(_: None) -> None:
    x = rows()
    module = parallel(Held(), x)
    for _ in range(3):
        module(x)[0].sum().backward()
        module.zero_grad()
    gc.disable()
    try:
        h, total = module(x)
        nodes = [weakref.ref(h.grad_fn.step)]
        del h, total
        assert nodes[0]() is None, "outputs and what made them hold each other"
    finally:
        gc.enable()


def test_outputs_that_nobody_has_hold_nothing() -> None:
    run_ranks(1, f"{HERE}:freed")


def most_live(module: ParallelModule, x: torch.Tensor) -> int:
    """The bytes that a step has at most of what it allocates."""
    OPS.count_allocations(True)
    OPS.reset_peak_allocated()
    step(module, x)
    peak: int = OPS.peak_allocated()
    OPS.count_allocations(False)
    return peak


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
            for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def peaks(_: None) -> tuple[int, int]:
    x = torch.randn(2048, 64)
    found = []
    for module in both(Deep, x):
        for _ in range(2):
            warmed(module, x)
        found.append(most_live(module, x))
    return found[0], found[1]


def test_a_step_takes_no_more_memory_than_operators_one_by_one() -> None:
    ((boxed, others),) = run_ranks(1, f"{HERE}:peaks")
    assert others > 6 * 2048 * 256 * 4
    assert boxed <= others
