"""Texts among the arguments that are others in every call: only what forward reads of them makes
variants."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.variant_maker import VariantMaker
from tests.distributed.harness import run_ranks
from tests.distributed.parity import whole

HERE = "tests.distributed.calls.test_texts"
STEPS = 24  # more than max_variants

Read = Callable[[torch.Tensor, str, Any], torch.Tensor]
Argument = Callable[[int], dict[str, Any]]


class Net(nn.Module):
    """What ``read`` makes of its texts is between two layers."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.read = read
        self.note = ""

    def forward(self, x: torch.Tensor, name: str = "", info: Any = None) -> torch.Tensor:
        return self.last(self.read(self.first(x).relu(), name, info)).square().mean()


class Noting(Net):
    """Keeps the text in an attribute."""

    def forward(self, x: torch.Tensor, name: str = "", info: Any = None) -> torch.Tensor:
        self.note = f"at {name}"
        return super().forward(x)


def unread(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return h


def compared(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return h * 2 if name == "twice" or name in ("double", "2") else h


def asked(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return h * (2 if name.startswith("1") else 1) * (3 if "0" in name else 1) * len(name)


def kind_and_scale(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return h * info["scale"] if info["kind"] == "scaled" else h


def looked_up(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return h * {"0": 1.0, "1": 2.0}[name]


def given_to_pytorch(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return nn.functional.gelu(h, approximate=name)


def passed_to_c(h: torch.Tensor, name: str, info: Any) -> torch.Tensor:
    return h * float(name)


def _info(step: int) -> dict[str, Any]:
    kind = "scaled" if step % 4 else "plain"
    return {"info": {"kind": kind, "scale": 1 + step / 64, "path": f"image{step}.png"}}


# What reads the texts, what they are, and how many captures there may be.
CASES: dict[str, tuple[Read, Argument, int]] = {
    "never read": (unread, lambda i: {"name": f"image{i}.png"}, 1),
    "captions": (unread, lambda i: {"info": [f"cat {i + j}" for j in range(4)]}, 1),
    "compared": (compared, lambda i: {"name": "twice" if i % 5 == 2 else f"{i}"}, 4),
    "asked": (asked, lambda i: {"name": f"{i}"}, 8),
    "kind and scale": (kind_and_scale, _info, 3),
    "looked up": (looked_up, lambda i: {"name": f"{i % 2}"}, 2),
    "given to PyTorch": (
        given_to_pytorch,
        lambda i: {"name": "tanh" if i % 3 else "none"},
        2,
    ),
    "passed to C": (passed_to_c, lambda i: {"name": f"1.{i % 3}"}, 3),
}


def train_all(_: None) -> list[str]:
    wrong = []
    for name, (read, argument, most) in CASES.items():
        with pytest.MonkeyPatch.context() as patch:
            captures = _counted(patch)
            difference = _trained(Net(read), argument)
        if difference > 1e-6 or len(captures) > most:
            wrong.append(f"{name}: {difference}, {len(captures)} captures")
    return wrong


def _counted(patch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    make = VariantMaker.make

    def counted(*args: Any) -> Any:
        calls.append(None)
        return make(*args)

    patch.setattr(VariantMaker, "make", counted)
    return calls


def _trained(model: Net, argument: Argument) -> float:
    """By how much parameters differ from those of one process."""
    one = copy.deepcopy(model)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    parallel = tensoropt_torch.auto_parallel(model, (x,), argument(0), measure=False)
    for network in (one, parallel):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for step in range(STEPS):
            network(x, **argument(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    pairs = zip(one.parameters(), parallel.parameters(), strict=True)
    return max(float((a - whole(b)).abs().max()) for a, b in pairs)


def note_texts(_: None) -> list[str]:
    """What is in the attribute after each call, and the error after too many."""
    x = torch.ones(16, 8)
    parallel: Any = tensoropt_torch.auto_parallel(
        Noting(unread), (x,), {"name": "0"}, measure=False
    )
    notes = []

    def go_on() -> None:
        for step in range(3, STEPS):
            parallel(x, name=f"{step}")

    for step in range(3):
        parallel(x, name=f"{step}")
        notes.append(parallel.note)
    with pytest.raises(TensorOptError, match=r"text 'name' is another one .* give a tensor"):
        go_on()
    return notes


def test_variants_are_made_for_what_is_read_of_texts() -> None:
    for wrong in run_ranks(2, f"{HERE}:train_all", None, 300):
        assert wrong == []


def test_texts_in_attributes_are_those_of_the_call() -> None:
    for notes in run_ranks(2, f"{HERE}:note_texts"):
        assert notes == ["at 0", "at 1", "at 2"]
