"""Whatever capture loses of a module is an error of the first training call, on all ranks."""

from __future__ import annotations

import logging
import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import TensorOptError
from tensoropt_torch.calls import batch_comparison
from tests.distributed import models
from tests.distributed.faulty import EDITS, LOST, Everything, batch, broken, made
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.frontend.test_capture_check"


@contextmanager
def new_home() -> Iterator[None]:
    """Nothing is known of earlier jobs inside."""
    home = [tempfile.mkdtemp()]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(home, 0)
    with patch.dict(os.environ, {"TENSOROPT_HOME": home[0]}):
        yield


def parallel_of(model: nn.Module, args: tuple[Any, ...], **keywords: Any) -> nn.Module:
    """Under a plan of no measuring."""
    options = {k: keywords.pop(k) for k in ("check_capture",) if k in keywords}
    plan = tensoropt_torch.find_strategy(model, args, measure=False, **keywords)
    return tensoropt_torch.parallelize(model, plan, **options)


def first_call(module: nn.Module, args: tuple[Any, ...]) -> str:
    """The error of a step, or nothing."""
    try:
        module(*args).backward()
    except TensorOptError as error:
        return str(error)
    return ""


def share(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.chunk(dist.get_world_size())[dist.get_rank()] for x in args)


# Faults


def faults(few_rows: bool) -> dict[str, str]:
    """By the name of each fault the error that it gives; "none" is none."""
    quick = 0 if few_rows else batch_comparison.QUICK_BYTES_PER_CALL
    found = {}
    with patch.object(batch_comparison, "QUICK_BYTES_PER_CALL", quick), new_home():
        found["none"] = one_fault(made(), nullcontext(), few_rows)
        for name, (edit, _) in EDITS.items():
            found[name] = one_fault(made(), broken(edit), few_rows)
        for name in LOST:
            found[name] = one_fault(made(lost=name), nullcontext(), few_rows)
    return found


def one_fault(model: Everything, fault: Any, few_rows: bool) -> str:
    with fault:
        if not few_rows:
            return first_call(parallel_of(model, batch()), batch())
        parallel = parallel_of(model, batch(), inputs="sharded")
        return first_call(parallel, share(batch()))


@pytest.mark.parametrize("few_rows", [False, True])
def test_each_fault_of_capture_is_an_error_on_all_ranks(few_rows: bool) -> None:
    first, second = run_ranks(2, f"{HERE}:faults", few_rows, 300)
    assert first == second
    assert first.pop("none") == ""
    rows = "on 4 rows of the first batch" if few_rows else "on 12 rows of the first batch"
    for name, text in first.items():
        wrong = EDITS[name][1] if name in EDITS else LOST[name]
        assert "does not compute what the module computes" in text, (name, text)
        assert rows in text, (name, text)
        assert "check_capture=False" in text
        assert wrong in text or "others" in text, (name, text)
    assert len(first) >= 10


# Right models


def right_models(dtype: torch.dtype) -> dict[str, list[str]]:
    """Of each model what was logged of the comparison, or warned of it, on the first rank."""
    with new_home():
        return {name: messages_of(name, dtype) for name in models.CASES}


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def messages_of(name: str, dtype: torch.dtype) -> list[str]:
    case = models.make(name, dtype)
    log = logging.getLogger("tensoropt_torch")
    handler = _Messages()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    args = (*case.args, *case.targets)
    keywords = {"loss_fn": case.loss_fn, "targets": case.targets}
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            plan = tensoropt_torch.find_strategy(case.model, case.args, measure=False, **keywords)
            parallel = tensoropt_torch.parallelize(case.model, plan)
            error = first_call(parallel, args)
    finally:
        log.removeHandler(handler)
    texts = [*handler.texts, *(str(w.message) for w in warned), error]
    return [text for text in texts if "captured graph" in text]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_model_is_refused_that_is_captured_rightly(dtype: torch.dtype) -> None:
    (first,) = run_ranks(1, f"{HERE}:right_models", dtype, 400)
    for name, texts in first.items():
        assert len(texts) == 1, (name, texts)
        assert "computes what the module does" in texts[0], (name, texts)


# What stays as it was


class Noisy(Everything):
    """Counts its calls, keeps what it has seen, draws numbers of Python, has gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting():
            self.calls += 1
            self.kept.append(self.calls)
            random.random()
        return super().forward(x, y, ids)


def traces(_: None) -> list[str]:
    """What the comparison has changed."""
    with new_home():
        model = Noisy()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        parallel = parallel_of(model, batch())
        before = state_of(model)
        random.seed(3)
        torch.manual_seed(3)
        expected = random.Random(3).random(), torch.Generator().manual_seed(3)
        parallel(*batch())
        wrong = [name for name, value in state_of(model).items() if not same(value, before[name])]
        if random.random() != expected[0]:
            wrong.append("random numbers of Python")
        if not torch.equal(torch.rand(3), torch.rand(3, generator=expected[1])):
            wrong.append("random numbers of PyTorch")
        return wrong


def state_of(model: Noisy) -> dict[str, Any]:
    state: dict[str, Any] = {n: t.clone() for n, t in model.state_dict().items()}
    state |= {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
    state |= {"calls": model.calls, "kept": list(model.kept)}
    return state | {"modes": [module.training for module in model.modules()]}


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def test_comparing_leaves_nothing_behind() -> None:
    assert run_ranks(2, f"{HERE}:traces", None) == [[], []]


# When it is compared


def occasions(_: None) -> dict[str, Any]:
    """How often the module itself ran, by occasion; and whether rank 0 still has it."""
    counts: dict[str, Any] = {}
    real = batch_comparison.differences
    with new_home(), patch.object(batch_comparison, "differences") as compare:
        compare.side_effect = real

        def count(name: str) -> None:
            counts[name] = compare.call_count
            compare.reset_mock()

        parallel = parallel_of(made(), batch(), check_capture=False)
        parallel(*batch())
        count("turned off")
        parallel = parallel_of(made(), batch())
        parallel.eval()
        with torch.no_grad():
            parallel(*batch())
        count("evaluation")
        parallel.train()
        parallel(*batch())
        parallel(*batch())
        parallel(*batch(8))
        count("training")
        parallel_of(made(), batch())(*batch())
        count("a later start")
        model = made()
        model.drop.p = 0.25
        parallel_of(model, batch())(*batch())
        count("another number")
        with torch.device("meta"):
            model = nn.Linear(6, 1)
        parallel_of(model, batch()[:1])(batch()[0])
        count("without values")
    return counts


def test_the_first_training_call_is_compared_and_remembered() -> None:
    first, second = run_ranks(2, f"{HERE}:occasions", None)
    assert second == dict.fromkeys(first, 0)
    assert first == {
        "turned off": 0,
        "evaluation": 0,
        "training": 1,
        "a later start": 0,
        "another number": 1,
        "without values": 0,
    }


# What cannot be compared


class Sized(nn.Module):
    """Takes batches of one size only."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) != self.rows and not torch.compiler.is_exporting():
            raise ValueError(f"give {self.rows} rows")
        return self.inner(x).square().mean()


def sizes(_: None) -> list[list[str]]:
    """What is warned of where only the whole batch works, and where nothing does."""
    found = []
    for rows, quick in ((16, 0), (17, 0)):
        with (
            new_home(),
            patch.object(batch_comparison, "QUICK_BYTES_PER_CALL", quick),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            parallel = parallel_of(Sized(rows), (torch.ones(16, 4),))
            parallel(torch.ones(16, 4)).backward()
            found.append([str(w.message) for w in warned if "not compared" in str(w.message)])
    return found


def test_what_cannot_be_compared_is_said_once_and_trained() -> None:
    first, second = run_ranks(2, f"{HERE}:sizes", None)
    assert second == [[], []]
    assert first[0] == []
    (text,) = first[1]
    assert "give 17 rows" in text
    assert "check_capture=False" in text
