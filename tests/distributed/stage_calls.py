"""Calls of all kinds of models in stages, beside the same calls of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch import find_stages, parallelize
from tensoropt_torch.runtime.agreement import gather
from tests.distributed.models import Case
from tests.distributed.staged import differences, whole
from tests.stages.models import make, tokens


class Tells(nn.Module):
    """A tied language model that returns a dict: with targets of its loss and logits, without of
    logits and of a number of each row; positions are a buffer, and dropout is off."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.register_buffer("positions", torch.randn(6, 8))

    def forward(self, tokens: torch.Tensor, y: torch.Tensor | None = None) -> dict[str, Any]:
        h = self.table(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            h = h + F.dropout(layer(h).relu(), 0.0, self.training)
        logits = self.norm(h) @ self.table.weight.T
        if y is None:
            return {"logits": logits, "most": logits.argmax(-1), "none": None}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), y.flatten()), "logits": logits}


def tells(rows: int) -> Case:
    """Of a batch of so many texts."""
    torch.manual_seed(0)
    return Case(Tells().double(), tokens(rows))


@dataclass(frozen=True)
class Calls:
    """Of a model whose plan has these options; the example has ``rows`` rows."""

    model: str
    options: dict[str, Any]
    rows: int = 8
    other_rows: int = 6
    keywords: dict[str, Any] = field(default_factory=dict)


def compare_calls(several: list[Calls]) -> list[str]:
    """What differs from one process."""
    return [f"{calls}: {text}" for calls in several for text in _compared(calls)]


def _compared(calls: Calls) -> Iterator[str]:
    def case_of(rows: int) -> Case:
        return tells(rows) if calls.model == "tells" else make(calls.model, rows=rows)

    case = case_of(calls.rows)
    one = copy.deepcopy(case)
    given = {**case.keywords, **calls.keywords}
    plan = find_stages(case.model, case.args, measure=False, **given, **calls.options)
    parallel = parallelize(case.model, plan, case.args, **given)
    other = case_of(calls.other_rows)
    expected = _made(one.model, case, other, calls, is_parallel=False)
    got = _made(parallel, case, other, calls, is_parallel=True)
    yield from differences(gather(got), expected, 1e-8)


def _made(
    module: nn.Module, case: Case, other: Case, calls: Calls, *, is_parallel: bool
) -> dict[str, torch.Tensor]:
    """What calls of all kinds give, between steps of training."""
    found: dict[str, torch.Tensor] = {}
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    has_shares = is_parallel and calls.options.get("inputs") == "sharded"

    def own(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What this rank is given of a batch, whose rows the ranks may not divide."""
        if not has_shares:
            return [*tensors]
        return [t.tensor_split(dist.get_world_size())[dist.get_rank()] for t in tensors]

    def note(what: str, outputs: Any) -> None:
        for path, leaf in pytree.tree_leaves_with_path(outputs):
            if isinstance(leaf, torch.Tensor):
                value = leaf.detach().clone()
                if has_shares and leaf.dim():
                    value = torch.cat(gather(value))
                found[f"{what} {pytree.keystr(path)}"] = value

    def called(of: Case) -> Any:
        if is_parallel or of.loss_fn is None:
            return module(*own(of.args), *own(of.targets))
        return of.loss_fn(module(*of.args), *of.targets)

    def loss_of(outputs: Any) -> torch.Tensor:
        loss: torch.Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs
        return loss

    def step(what: str, of: Case) -> None:
        optimizer.zero_grad()
        outputs = called(of)
        loss_of(outputs).backward()
        optimizer.step()
        all_outputs = calls.keywords.get("outputs") == "all"
        note(what, outputs if all_outputs else loss_of(outputs))

    def evaluated(what: str, of: Case) -> None:
        with torch.no_grad():
            note(f"{what} with loss", called(of))
            if calls.model != "skips":
                inputs = of.args if of.targets else of.args[:1]
                if calls.model in ("tells", "mlp", "vgg"):
                    note(f"{what} without", module(*own(inputs)))

    kinds: list[Callable[[], None]] = [
        lambda: step("step 1", case),
        lambda: evaluated("no_grad", case),
        lambda: step("step of others", other),
        lambda: (module.eval(), evaluated("eval", case))[1],  # type: ignore[func-returns-value]
        lambda: evaluated("eval of others", other),
        lambda: note("eval with gradients", loss_of(called(other))),
        lambda: (module.train(), step("step 2", case))[1],  # type: ignore[func-returns-value]
    ]
    for kind in kinds:
        kind()
    for name, parameter in module.named_parameters():
        found[f"parameter {name}"] = whole(parameter)
        assert parameter.grad is not None, name
        found[f"gradient {name}"] = whole(parameter.grad)
    for name, buffer in module.named_buffers():
        found[f"buffer {name}"] = whole(buffer)
    return found
