"""Checkpoints of a parallel module: weights in and out, training that goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule
from tensoropt_torch.module.parallel_module import programs_of
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.checkpoint.test_checkpoints"
STEPS = 3  # of each job
TOLERANCE = 1e-10  # relative, float64; sums are taken in another order


class Small(nn.Module):
    """A tied weight, running statistics, and dropout if it is asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.norm(self.embed(tokens)))
        return F.cross_entropy(self.head(self.hidden(x).tanh()), targets)


def small(seed: int = 0, dropout: float = 0.0) -> Small:
    torch.manual_seed(seed)
    return Small(dropout).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 24, (2, 8), generator=torch.Generator().manual_seed(step))
    return tokens[0], tokens[1]


def parallel(model: nn.Module, point: str = "smallest") -> ParallelModule:
    """Under the plan of least memory, whose parameters are sharded, or of least time."""
    plan = getattr(tensoropt_torch.find_frontier(model, batch(0)), point).plan
    return tensoropt_torch.parallelize(model, plan)


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay, others without."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "lr": 1e-3, "weight_decay": 0.0},
    ]


OPTIMIZERS = {
    "adamw": lambda m: torch.optim.AdamW(groups_of(m), lr=1e-2, eps=1e-4),
    "sgd": lambda m: torch.optim.SGD(groups_of(m), lr=1e-1, momentum=0.9),
}


def train(
    module: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int
) -> list[float]:
    losses = []
    for step in range(first, last):
        loss = module(*batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@dataclass
class Job:
    """Goes on with the training that a folder holds, and keeps it there."""

    folder: Path
    number: int
    point: str

    def run(self, name: str) -> list[float]:
        module = parallel(small(seed=self.number), self.point)
        optimizer = OPTIMIZERS[name](module)
        begin, end = self.number * STEPS, (self.number + 1) * STEPS
        if self.number:
            resume(module, optimizer, self.folder / f"{name}{begin}")
        losses = train(module, optimizer, begin, end)
        dcp.save(state_of(module, optimizer), checkpoint_id=self.folder / f"{name}{end}")
        return losses


def state_of(module: ParallelModule, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(module, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, **random_of(module)}


def random_of(module: ParallelModule) -> dict[str, Any]:
    return {"random": tensoropt_torch.RandomState(module)}


def resume(module: ParallelModule, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    state = state_of(module, optimizer)
    dcp.load(state, checkpoint_id=folder)
    parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
    set_state_dict(module, optimizer, **parts)


def run_job(job: Job) -> dict[str, list[float]]:
    return {name: job.run(name) for name in OPTIMIZERS}


def test_training_goes_on_under_another_plan_and_on_other_numbers_of_devices(
    tmp_path: Path,
) -> None:
    jobs = [(4, "smallest"), (2, "fastest"), (4, "fastest")]
    got: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    for number, (world_size, point) in enumerate(jobs):
        results = run_ranks(world_size, f"{HERE}:run_job", Job(tmp_path, number, point), 90)
        for name, losses in results[0].items():
            assert all(r[name] == losses for r in results)
            got[name] += losses
    for name, build in OPTIMIZERS.items():
        model = small()
        expected = train(model, build(model), 0, len(jobs) * STEPS)
        assert got[name] == pytest.approx(expected, rel=TOLERANCE), name


FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
WHOLE = StateDictOptions(full_state_dict=True)
FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def whole_states(_: None) -> None:
    for build in OPTIMIZERS.values():
        check_whole_states(build)


def check_whole_states(build: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    plain = small()
    plain_optimizer = build(plain)
    module = parallel(small())
    optimizer = build(module)
    assert train(module, optimizer, 0, STEPS) == pytest.approx(
        train(plain, plain_optimizer, 0, STEPS), rel=TOLERANCE
    )
    state = get_state_dict(module, optimizer, options=FULL)
    expected = copy.deepcopy(get_state_dict(plain, plain_optimizer))
    if dist.get_rank() == 0:
        assert state[1]["param_groups"] == expected[1]["param_groups"]
        for got, wanted in ((state[0], expected[0]), (state[1]["state"], expected[1]["state"])):
            torch.testing.assert_close(dict(got), dict(wanted), rtol=0, atol=TOLERANCE)
    else:
        assert state == ({}, {})
    losses = train(plain, plain_optimizer, STEPS, 2 * STEPS)
    for source, options in ((state, FROM_FIRST), (expected, WHOLE)):
        other = parallel(small(seed=1), "fastest")
        other_optimizer = build(other)
        set_model_state_dict(other, dict(source[0]), options=options)
        set_optimizer_state_dict(other, other_optimizer, source[1], options=options)
        got = train(other, other_optimizer, STEPS, 2 * STEPS)
        assert got == pytest.approx(losses, rel=TOLERANCE)


def test_whole_states_are_those_of_one_process_and_go_on_under_another_plan() -> None:
    run_ranks(4, f"{HERE}:whole_states", None, 90)


def equal(module: nn.Module, model: nn.Module) -> bool:
    """Whether parameters and buffers have the same bits."""
    own = {name: _full(t) for name, t in module.state_dict().items()}
    return own.keys() == model.state_dict().keys() and all(
        torch.equal(own[name], t) for name, t in model.state_dict().items()
    )


def plain(module: nn.Module) -> nn.Module:
    """A model of the same values."""
    model = small()
    model.load_state_dict({name: _full(t) for name, t in module.state_dict().items()})
    return model


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def on_line(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole tensors as DTensors on a mesh that no plan has."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = model.state_dict()
    return {n: distribute_tensor(t, mesh, [Shard(0)]) if t.dim() else t for n, t in state.items()}


def load_all(_: None) -> list[str]:
    """The kinds of state dicts that do not arrive."""
    module = parallel(small())
    assert any(p.to_local().numel() < p.numel() for p in module.parameters())
    parameters = dict(module.named_parameters())
    kinds: dict[str, Callable[[nn.Module], Any]] = {
        "plain": lambda m: module.load_state_dict(m.state_dict()),
        "in float32": lambda m: module.load_state_dict(m.float().state_dict()),
        "of another plan": lambda m: module.load_state_dict(parallel(m, "fastest").state_dict()),
        "of another mesh": lambda m: module.load_state_dict(on_line(m)),
        "of an outer module": lambda m: Outer(module).load_state_dict(Outer(m).state_dict()),
        "by name": lambda m: [
            module.load_state_dict({name: tensor}, strict=False)
            for name, tensor in m.state_dict().items()
        ],
    }
    wrong = []
    for seed, (kind, load) in enumerate(kinds.items(), start=1):
        model = small(seed)
        model.norm.running_mean.fill_(seed)
        load(model)
        if not equal(module, model.double()):
            wrong.append(kind)
    assert dict(module.named_parameters()).items() <= parameters.items()
    assert parameters["embed.weight"] is module.get_parameter("head.weight")
    return wrong


def test_state_dicts_of_any_layout_are_loaded() -> None:
    for wrong in run_ranks(4, f"{HERE}:load_all", None, 60):
        assert wrong == []


def changed(**values: Any) -> dict[str, Any]:
    state = {**small().state_dict(), **{k.replace("__", "."): v for k, v in values.items()}}
    return {name: value for name, value in state.items() if value is not None}


def only_first(value: Any, other: Any = None) -> Any:
    return value if dist.get_rank() == 0 else other


WRONG: dict[str, tuple[Callable[[ParallelModule], Any], list[str]]] = {
    "another model": (
        lambda m: m.load_state_dict(nn.Linear(2, 2).state_dict()),
        ["RuntimeError", 'Missing key(s) in state_dict: "embed.weight"', "Unexpected", '"bias"'],
    ),
    "a shape": (
        lambda m: m.load_state_dict(changed(hidden__bias=torch.ones(3))),
        ["RuntimeError", "size mismatch for hidden.bias", "[3]", "[16]"],
    ),
    "no tensor": (
        lambda m: m.load_state_dict(changed(hidden__bias="x")),
        ["RuntimeError", '"hidden.bias"', "str"],
    ),
    "assign": (
        lambda m: m.load_state_dict(small().state_dict(), assign=True),
        ["TensorOptError", "assign=True", "without assign"],
    ),
    "only rank 0 has it": (
        lambda m: m.load_state_dict(only_first(small().state_dict(), {})),
        ["TensorOptError", "rank 1", "'embed.weight' is missing", "broadcast_from_rank0"],
    ),
    "a shape of one rank": (
        lambda m: m.load_state_dict(changed(hidden__bias=torch.ones(only_first(16, 3)))),
        ["TensorOptError", "rank 1: 'hidden.bias' is (3,)", "(16,) in that of rank 0"],
    ),
    "a name of one rank": (
        lambda m: m.load_state_dict(changed(more=only_first(torch.ones(1)))),
        ["RuntimeError", 'Unexpected key(s) in state_dict: "more"'],
    ),
}


def errors_of(_: None) -> dict[str, str]:
    module = parallel(small())
    errors = dict.fromkeys(WRONG, "no error")
    for name, (load, _words) in WRONG.items():
        try:
            load(module)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    assert train(module, OPTIMIZERS["sgd"](module), 0, 1)  # nobody is left behind
    return errors


def test_what_cannot_be_loaded_is_one_clear_error_on_all_ranks() -> None:
    for errors in run_ranks(2, f"{HERE}:errors_of", None, 60):
        for name, (_, words) in WRONG.items():
            for word in words:
                assert word in errors[name], f"{name}: {errors[name]}"


def with_dropout(seed: int) -> tuple[ParallelModule, torch.optim.Optimizer]:
    module = parallel(small(seed, dropout=0.5))
    return module, OPTIMIZERS["adamw"](module)


def resume_with_dropout(folder: Path) -> None:
    """A run that goes on from a folder has the losses, weights and random numbers of the
    run that kept itself there and went on."""
    module, optimizer = with_dropout(seed=0)
    train(module, optimizer, 0, 1)
    dcp.save(random_of(module), checkpoint_id=folder / "alike")
    torch.rand(dist.get_rank())  # generators of ranks differ
    dcp.save(state_of(module, optimizer), checkpoint_id=folder)
    noise, losses = torch.rand(3), train(module, optimizer, 1, STEPS)
    again, its_optimizer = with_dropout(seed=1)
    resume(again, its_optimizer, folder)
    assert torch.equal(torch.rand(3), noise)
    assert train(again, its_optimizer, 1, STEPS) == losses
    assert equal(again, plain(module))


def draw_from(folder: Path) -> tuple[torch.Tensor, ...]:
    """What the rank's own generator and the stream of the module draw after loading; the
    first also where the generators of all ranks were kept alike."""
    module, optimizer = with_dropout(seed=2)
    torch.manual_seed(7)
    resume(module, optimizer, folder)
    own = torch.rand(3)
    seeds = programs_of(module).seeds
    assert seeds is not None
    stream = torch.rand(3, generator=seeds)
    dcp.load(random_of(module), checkpoint_id=folder / "alike")
    return own, stream, torch.rand(3)


def test_a_resumed_run_with_dropout_has_the_bits_of_one_that_was_not_interrupted(
    tmp_path: Path,
) -> None:
    run_ranks(2, f"{HERE}:resume_with_dropout", tmp_path, 60)
    torch.manual_seed(7)
    fresh = torch.rand(3)
    two, four = (run_ranks(n, f"{HERE}:draw_from", tmp_path, 60) for n in (2, 4))
    first, second = (own for own, _, _ in two)
    assert not any(torch.equal(a, b) for a, b in ((first, second), (first, fresh)))
    for expected, (own, stream, alike) in zip((first, second, fresh, fresh), four, strict=True):
        assert torch.equal(own, expected)
        assert torch.equal(stream, two[0][1])
        assert torch.equal(alike, two[0][2])
