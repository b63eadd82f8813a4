"""State dicts that a model makes or reads in a way of its own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

import tensoropt_torch
from tensoropt_torch.module.parallel_module import ParallelModule
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.values.test_state_dict_habits"


class Renamed(nn.Module):
    """Registers the ways in which hooks may know their module."""

    way = "method"

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.read, self.written = nn.Linear(16, 16), 0, 0
        renames: dict[str, Callable[..., None]] = {
            "method": self.rename,
            "closure": lambda *args: self.rename(*args),
            "partial": functools.partial(Renamed.rename, self),
        }
        self._register_load_state_dict_pre_hook(renames[self.way])  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(Renamed.count_read)  # type: ignore[no-untyped-call]
        self.register_state_dict_post_hook(Renamed.add)  # type: ignore[no-untyped-call]

    def rename(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """An older file has the halves of the weight by themselves."""
        self.read += 1
        state.pop(prefix + "version", None)
        halves = [state.pop(prefix + f"half{i}", None) for i in (0, 1)]
        if halves[0] is not None:
            state[prefix + "inner.weight"] = torch.cat(halves)

    def count_read(self, _: Any) -> None:
        self.read += 10

    def add(self, state: dict[str, Any], prefix: str, _: Any) -> None:
        self.written += 1
        state[prefix + "version"] = torch.tensor(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class ByClosure(Renamed):
    way = "closure"


class ByPartial(Renamed):
    way = "partial"


class Overridden(nn.Linear):
    """Reads a transposed weight of older files."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        if prefix + "turned" in state:
            state[prefix + "weight"] = state.pop(prefix + "turned").t()
        super()._load_from_state_dict(state, prefix, *args)


class Model(nn.Module):
    """With an extra state, and state dicts of its own making."""

    def __init__(self, kind: type[nn.Module] = Renamed) -> None:
        super().__init__()
        self.first, self.last = kind(), Overridden(16, 8)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.seen = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.frozen(self.first(x)).tanh()).square().mean()

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        for name in [name for name in state if "frozen" in name]:
            del state[name]
        return state

    def load_state_dict(self, given: Any, strict: bool = True, assign: bool = False) -> Any:  # type: ignore[override]
        state = {name.removeprefix("model."): value for name, value in given.items()}
        own = {f"frozen.{name}": p.detach() for name, p in self.frozen.named_parameters()}
        return super().load_state_dict({**own, **state}, strict, assign)


def batch() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def parallel(model: nn.Module) -> ParallelModule:
    frontier = tensoropt_torch.find_frontier(model, (batch(),))
    return tensoropt_torch.parallelize(model, frontier.smallest.plan)


def older(model: nn.Module, prefix: str) -> dict[str, Any]:
    state = dict(model.state_dict())
    weight = state.pop(prefix + "first.inner.weight")
    state[prefix + "first.half0"], state[prefix + "first.half1"] = weight.chunk(2)
    state[prefix + "last.turned"] = state.pop(prefix + "last.weight").t().contiguous()
    return state


def equal(module: nn.Module, model: nn.Module) -> bool:
    theirs = dict(model.named_parameters())
    return all(torch.equal(whole(p), theirs[name]) for name, p in module.named_parameters())


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def check(_: None) -> list[str]:
    wrong = []
    for kind in (Renamed, ByClosure, ByPartial):
        model = Model(kind)
        module = parallel(model)
        assert any(whole(p).numel() > p.to_local().numel() for p in module.parameters())  # type: ignore[attr-defined]
        if set(module.state_dict()) != set(model.state_dict()):
            wrong.append(f"{kind.__name__}: names {sorted(module.state_dict())}")
        full = tensoropt_torch.full_state_dict(module)
        if dist.get_rank() == 0 and set(full) != set(model.state_dict()):
            wrong.append(f"{kind.__name__}: names of the whole one {sorted(full)}")
        other = Model(kind)
        other.frozen.load_state_dict(model.frozen.state_dict())
        other.seen = 8
        state = {f"model.{name}": value for name, value in other.state_dict().items()}
        before = module.first.read, model.first.read
        module.load_state_dict(state)
        if not equal(module, other) or module.seen != 8 or model.seen != 3:
            wrong.append(f"{kind.__name__}: its own")
        if (module.first.read, model.first.read) != (before[0] + 11, before[1]):
            wrong.append(f"{kind.__name__}: hooks acted on another module")
        newer = Model(kind)
        newer.frozen.load_state_dict(model.frozen.state_dict())
        module.load_state_dict(older(newer, ""))
        if not equal(module, newer):
            wrong.append(f"{kind.__name__}: an older one")
        module.first.load_state_dict(model.first.state_dict())
        if not equal(module.first, model.first):
            wrong.append(f"{kind.__name__}: a submodule's")
        Outer(module).load_state_dict(older(Outer(other), "inner."), strict=False)
        if not equal(module, other):
            wrong.append(f"{kind.__name__}: of an outer module")
        module(batch()).backward()
    return wrong


def test_state_dicts_go_the_ways_of_the_model() -> None:
    for wrong in run_ranks(2, f"{HERE}:check", None, 120):
        assert wrong == []


def errors(_: None) -> tuple[str, bool, str]:
    """Names of an older file that one rank alone has; a hook that is registered afterwards."""
    model = Model()
    module = parallel(model)
    before = copy.deepcopy({n: whole(p) for n, p in module.named_parameters()})
    state = older(model, "") if dist.get_rank() == 0 else model.state_dict()
    try:
        module.load_state_dict(state)
        text = ""
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    same = all(torch.equal(whole(p), before[n]) for n, p in module.named_parameters())

    def late(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        state[prefix + "first.inner.bias"] = state.pop(prefix + "late")

    module.register_load_state_dict_pre_hook(late)  # type: ignore[no-untyped-call]
    state = dict(model.state_dict())
    state["late"] = state.pop("first.inner.bias") + 1
    module.load_state_dict(state)
    moved = whole(module.first.inner.bias) - model.first.inner.bias  # type: ignore[union-attr, operator]
    return text, same, "" if torch.allclose(moved, torch.ones(16)) else "the late hook"


def test_ranks_agree_before_hooks_rename() -> None:
    for text, same, wrong in run_ranks(2, f"{HERE}:errors"):
        assert text.startswith("TensorOptError") and "first.inner.weight" in text
        assert same and not wrong


class WithExtra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 16)
        self.seen = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def through_checkpoints(folder: Path) -> list[str]:
    """DCP, state dicts from rank 0, and one file, of a root with an extra state."""
    wrong, model, other = [], WithExtra(), WithExtra()
    module, target = parallel(model), parallel(other)
    module.original.seen = 5
    dcp.save({"model": get_model_state_dict(module)}, checkpoint_id=folder / "dcp")
    state = {"model": get_model_state_dict(target)}
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_model_state_dict(target, state["model"])
    if not equal(target, model) or target.original.seen != 5:
        wrong.append("dcp")
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole_state = get_model_state_dict(module, options=options)
    third = parallel(WithExtra())
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(third, whole_state, options=options)
    if not equal(third, model) or third.original.seen != 5:
        wrong.append("from rank 0")
    tensoropt_torch.save(module.state_dict(), folder / "one.pt")
    fourth = parallel(WithExtra())
    fourth.load_state_dict(torch.load(folder / "one.pt", weights_only=False))
    if not equal(fourth, model) or fourth.original.seen != 5:
        wrong.append("one file")
    return wrong


def test_extra_states_of_the_root_are_in_checkpoints(tmp_path: Path) -> None:
    for wrong in run_ranks(2, f"{HERE}:through_checkpoints", tmp_path):
        assert wrong == []
