"""What training loops do with the module besides a step: what one process does."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.module import parallelize
from tests.distributed.accumulation import (
    CPU,
    Job,
    Strategy,
    differences,
    on_ranks,
    one_process,
    strategies,
)
from tests.distributed.harness import run_ranks
from tests.distributed.models import Case
from tests.distributed.parity import whole
from tests.distributed.training_loops import LOOPS

HERE = "tests.distributed.module.test_training_loops"
TOLERANCE = 1e-9  # of float64
MOST_WARNINGS = 2


def check(strategy: Strategy, case: Case) -> Iterator[str]:
    ours, theirs = on_ranks(strategy.module, case), one_process(case)
    for name, loop in LOOPS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop(ours)
        loop(theirs)
        wrong = list(differences(strategy.module, theirs.module, TOLERANCE))
        if len(caught) > MOST_WARNINGS:
            wrong.append(f"{len(caught)} warnings, {caught[0].message}")
        for a, b in zip(ours.figures, theirs.figures, strict=True):
            wrong += [f"{a} instead of {b}"] if abs(whole(a) - b) > TOLERANCE * abs(b) else []
        ours.figures, theirs.figures = [], []
        if wrong:
            yield f"{strategy.name}, {name}: {wrong}"


def check_all(jobs: list[Job]) -> list[str]:
    """Runs on every rank: what was wrong."""
    wrong = []
    for job in jobs:
        case = job.case()
        for strategy in strategies(case, job):
            wrong += list(check(strategy, case))
    return wrong


@pytest.mark.parametrize(("ranks", "models"), [(2, ["tied", "lora"]), (4, ["tied"])])
def test_loops_equal_one_process(ranks: int, models: list[str]) -> None:
    start = random.randrange(1000)
    print(f"first seed {start}")
    jobs = [Job(model, range(start, start + 2)) for model in models]
    for wrong in run_ranks(ranks, f"{HERE}:check_all", jobs):
        assert not wrong, "\n".join(wrong[:8])


class Heads(nn.Module):
    """Two losses; one parameter that nothing uses, one whose use nobody sees."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.unused = nn.Parameter(torch.ones(4))
        self.unseen = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x).tanh()
        self.unseen(x).sum()
        first, second = (head(x).square().mean() for head in self.heads)
        return first, second


def reach_some(_: None) -> list[str]:
    """Passes that reach some of the parameters, kept or not."""
    torch.manual_seed(0)
    case = Case(Heads().double(), (torch.randn(8, 8, dtype=torch.float64),))
    wrong = []
    for strategy in strategies(case, Job("", range(6))):
        theirs = copy.deepcopy(case.model)
        for kept in (None, 0, 1):
            for index in (0, 1, 1):
                strategy.module.requires_gradient_sync = index != kept
                strategy.module(*case.args)[index].backward()
                theirs(*case.args)[index].backward()
                found = list(differences_of_gradients(strategy.module, theirs))
                wrong += [f"{strategy.name}, head {index}, kept {kept}: {found}"] if found else []
            strategy.module.requires_gradient_sync = True
            wrong += list(differences(strategy.module, theirs, TOLERANCE))
    return wrong


def differences_of_gradients(ours: nn.Module, theirs: nn.Module) -> Iterator[str]:
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if (p.grad is None) != (q.grad is None):
            yield f"one gradient of '{name}' is None"
        elif p.grad is not None and (whole(p.grad) - q.grad).abs().max() > TOLERANCE:
            yield f"gradient of '{name}' is off"


def test_parameters_that_no_loss_reaches_have_no_gradient() -> None:
    for wrong in run_ranks(2, f"{HERE}:reach_some"):
        assert not wrong, "\n".join(wrong[:8])


def thaw(_: None) -> tuple[str, float, float]:
    case = Job("lora", range(1)).case()
    plan = tensoropt_torch.find_strategy(case.model, case.args, measure=False)
    assert plan.captured is not None
    module = parallelize(case.model, plan.captured, plan, CPU)
    frozen = next(p for p in module.parameters() if not p.requires_grad)
    frozen.requires_grad_(True)
    with pytest.raises(tensoropt_torch.TensorOptError) as error:
        module(*case.args)
    with torch.no_grad():
        without = module(*case.args)
    frozen.requires_grad_(False)
    loss = module(*case.args)
    loss.backward()
    return str(error.value), float(without), float(loss.detach())


def test_parameters_frozen_at_capture_are_not_trained() -> None:
    for message, without, loss in run_ranks(2, f"{HERE}:thaw"):
        assert "'scale' was frozen" in message
        assert "requires_grad_(False)" in message
        assert without == loss


def language_model(kind: str) -> nn.Module:
    import transformers

    if kind == "gpt2":
        sizes = {"n_layer": 1, "n_head": 4, "n_embd": 16, "vocab_size": 32, "n_positions": 8}
        drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config: Any = transformers.GPT2Config(**sizes, **drops)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=32,
        max_position_embeddings=8,
    )
    return transformers.LlamaForCausalLM(config)


def train_adapters(_: None) -> dict[str, list[str]]:
    import peft

    wrong = {}
    for kind, targets in {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj"]}.items():
        torch.manual_seed(0)
        lora = peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
        model = peft.get_peft_model(language_model(kind), lora).double()
        tokens = torch.randint(0, 32, (4, 8))
        batch = {"input_ids": tokens, "labels": tokens}
        frontier = tensoropt_torch.find_frontier(model, (), batch)
        for plan in (frontier.smallest.plan, frontier.fastest.plan):
            theirs = copy.deepcopy(model)
            ours = tensoropt_torch.parallelize(model, plan)
            for module in (ours, theirs):
                train_adapter(module, batch)
            wrong[f"{kind}, {plan.origin}"] = list(differences(ours, theirs, TOLERANCE))
    return wrong


def train_adapter(module: nn.Module, batch: dict[str, torch.Tensor]) -> None:
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, eps=1e-4)
    for _ in range(3):
        for _ in range(2):
            module(**batch).loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


def test_adapters_of_peft_are_trained_as_in_one_process() -> None:
    for wrong in run_ranks(2, f"{HERE}:train_adapters"):
        assert len(wrong) >= 3  # plans may be the same
        for name, found in wrong.items():
            assert not found, f"{name}: {found}"
