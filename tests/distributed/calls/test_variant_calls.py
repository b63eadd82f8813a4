"""Calls of all kinds of one parallel module: modes, literals, casts, gradients of inputs, rows
that ranks have unequal numbers of; and what the module shows of its model."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule, Plan, TensorOptError
from tensoropt_torch.planner.search_settings import SearchSettings
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.calls.test_variant_calls"


class Net(nn.Module):
    """A layer of each kind that evaluation changes, a tensor that is no buffer, and a ``train``
    that keeps one module in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)
        self.frozen_norm = nn.BatchNorm1d(32)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(32, 4)
        self.shift = torch.tensor([0.1, 0.2, 0.3, 0.4])
        self.config = {"width": 32}

    def train(self, mode: bool = True) -> Net:
        """The statistics of one layer stay as they are."""
        super().train(mode)
        self.frozen_norm.eval()
        return self

    def forward(self, x: torch.Tensor, scale: float = 1.0, mask: Any = None) -> torch.Tensor:
        """(b, 16) -> (b, 4)."""
        y = self.frozen_norm(self.norm(self.body(x)))
        y = self.head(self.drop(y.relu())) * scale + self.shift
        return y if mask is None else y * mask


@dataclass
class Pair:
    """A parallel module, and the same model on one process."""

    ours: ParallelModule
    theirs: nn.Module
    x: torch.Tensor
    y: torch.Tensor


def pair(**options: Any) -> Pair:
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(8, 16), torch.randn(8, 4)
    model.train()
    theirs = copy.deepcopy(model)
    ours = tensoropt_torch.auto_parallel(
        model, (x,), loss_fn=F.mse_loss, targets=(y,), measure=False, **options
    )
    return Pair(ours, theirs, x, y)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


def check_modes(_: None) -> None:
    both = pair(one_process_random=True)
    ours, theirs, x = both.ours, both.theirs, both.x
    ours.eval()
    theirs.eval()
    for rows in (8, 3):
        with torch.no_grad():
            close(ours(x[:rows]), theirs(x[:rows]))
    with torch.inference_mode():
        close(ours(x), theirs(x))
        assert ours(x).is_inference()
    close(ours(x, scale=2.0), theirs(x, 2.0))
    close(ours(x, mask=x[:, :4]), theirs(x, mask=x[:, :4]))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == theirs(x).dtype
        torch.testing.assert_close(ours(x), theirs(x), rtol=2e-2, atol=2e-2)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for module, value in zip((ours, theirs), inputs, strict=True):
        module(value).square().sum().backward()
    close(inputs[0].grad, inputs[1].grad)
    for module in (ours, theirs):
        module.zero_grad()
        module.train()
        module.drop.eval()  # a part of it
    close(ours(x), theirs(x))
    for name, buffer in theirs.named_buffers():
        close(dict(ours.named_buffers())[name], buffer)


def test_calls_in_all_modes_are_those_of_the_model() -> None:
    run_ranks(2, f"{HERE}:check_modes", None, 100)


def check_frozen(_: None) -> None:
    """Parameters that get or lose their gradient later."""
    both = pair(one_process_random=True)
    for module in (both.ours, both.theirs):
        module.eval()
        module.body.weight.requires_grad_(False)
    for unfrozen in (False, True):
        for module in (both.ours, both.theirs):
            module.body.weight.requires_grad_(unfrozen)
            module.zero_grad()
            module(both.x).square().sum().backward()
        for ours, theirs in zip(both.ours.parameters(), both.theirs.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                close(ours.grad.full_tensor(), theirs.grad)


def test_gradients_follow_what_is_frozen_later() -> None:
    run_ranks(2, f"{HERE}:check_frozen", None, 100)


def check_rows(_: None) -> None:
    """Unequal shares of the batch, and an input that every rank gets whole."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net().eval()
    theirs = copy.deepcopy(model)
    x, y, mask = torch.randn(6 * world, 16), torch.randn(6 * world, 4), torch.rand(4)
    ours = tensoropt_torch.auto_parallel(
        model,
        (x,),
        {"mask": mask},
        loss_fn=F.mse_loss,
        targets=(y,),
        inputs={"mask": "replicated"},
        measure=False,
    )
    for sizes in ([6] * world, [5] + [2] * (world - 1)):
        start, stop = sum(sizes[:rank]), sum(sizes[: rank + 1])
        ours.zero_grad()
        theirs.zero_grad()
        loss = ours(x[start:stop], y[start:stop], mask=mask)
        expected = F.mse_loss(theirs(x[: sum(sizes)], mask=mask), y[: sum(sizes)])
        close(loss, expected)
        output = ours(x[start:stop], mask=mask)
        whole = theirs(x[: sum(sizes)], mask=mask)
        close(output, whole[start:stop])
        (loss + output.square().sum()).backward()
        (expected + whole.square().sum()).backward()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            close(mine.grad.full_tensor(), other.grad)


@pytest.mark.filterwarnings("ignore:the ranks have")
@pytest.mark.parametrize("world_size", [2, 3])
def test_shares_may_differ_in_size(world_size: int) -> None:
    run_ranks(world_size, f"{HERE}:check_rows", None, 100)


def check_saved_plan(folder: Path) -> None:
    """What a plan carries need not be searched again."""
    both = pair()
    both.ours.eval()
    with torch.no_grad():
        expected = both.ours(both.x[:4])
    plan = both.ours.plan
    assert len(plan.variants) == 1
    if dist.get_rank() == 0:
        plan.save(folder / "plan.json")
    dist.barrier()
    loaded = Plan.load(folder / "plan.json")
    assert loaded == plan
    again = tensoropt_torch.parallelize(
        both.theirs, loaded, (both.x,), loss_fn=F.mse_loss, targets=(both.y,)
    )
    again.load_state_dict(both.ours.state_dict())
    again.eval()
    with torch.no_grad(), patch.object(SearchSettings, "run", side_effect=AssertionError):
        close(again(both.x[:4]), expected)


def test_plans_carry_variants(tmp_path: Path) -> None:
    run_ranks(2, f"{HERE}:check_saved_plan", tmp_path, 100)


def check_appearance(_: None) -> None:
    ours = pair().ours
    assert ours.config == {"width": 32} and ours.head.out_features == 4
    assert isinstance(ours.norm, nn.BatchNorm1d) and type(ours.norm).__name__ == "BatchNorm1d"
    assert isinstance(ours.original, Net) and not isinstance(ours, Net)
    kinds = {name: type(module).__name__ for name, module in ours.named_modules()}
    assert kinds["body"] == "Linear" and kinds["drop"] == "Dropout"
    assert ours.norm.training and not ours.frozen_norm.training
    ours.eval()
    assert not any(module.training for module in ours.modules())
    ours.train()
    assert ours.norm.training and not ours.frozen_norm.training
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in Net().named_parameters()]
    assert ours.state_dict().keys() == Net().state_dict().keys()
    with pytest.raises(AttributeError, match=r"Net.*no_such"):
        _ = ours.no_such


def test_a_parallel_module_looks_like_its_model() -> None:
    run_ranks(2, f"{HERE}:check_appearance", None, 60)


def check_meta(_: None) -> None:
    """A model that never had values is captured again as well."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    ours = tensoropt_torch.auto_parallel(model, (x,), measure=False)
    theirs = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)).eval()
    theirs.load_state_dict(tensoropt_torch.full_state_dict(ours) or theirs.state_dict())
    ours.eval()
    with torch.no_grad():
        found = ours(x[:3])
        if dist.get_rank() == 0:
            close(found, theirs(x[:3]))


def test_models_without_values_have_variants() -> None:
    run_ranks(2, f"{HERE}:check_meta", None, 60)


def check_outputs(_: None) -> None:
    """Losses beside what they are computed from."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8)
    model, tokens = GPT2LMHeadModel(config), torch.randint(0, 32, (4, 8))
    theirs = copy.deepcopy(model)
    inputs = {"input_ids": tokens, "labels": tokens}
    for outputs in ("loss", "all"):
        ours = tensoropt_torch.auto_parallel(
            copy.deepcopy(model), (), inputs, outputs=outputs, measure=False
        )
        ours.eval()
        theirs.eval()
        found, expected = ours(**inputs), theirs(**inputs)
        close(found.loss, expected.loss)
        assert (found.logits is None) == (outputs == "loss")
        with torch.no_grad():
            found = ours(labels=tokens, input_ids=tokens)
        close(found.loss, expected.loss)
        close(found.logits, expected.logits)
        assert found.past_key_values is None
        if outputs == "all":
            (ours(**inputs).logits.square().mean() + ours(**inputs).loss).backward()
            (theirs(**inputs).logits.square().mean() + theirs(**inputs).loss).backward()
            for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                close(mine.grad.full_tensor(), other.grad)
    pairs = tensoropt_torch.auto_parallel(
        Net(), (torch.randn(8, 16),), loss_fn=F.mse_loss, targets=(torch.randn(8, 4),),
        outputs="all", measure=False,
    )  # fmt: skip
    loss, output = pairs(torch.ones(8, 16), torch.zeros(8, 4))
    close(loss, output.square().mean())


def test_outputs_beside_the_loss() -> None:
    run_ranks(2, f"{HERE}:check_outputs", None, 100)


def check_limits(_: None) -> None:
    both = pair(max_variants=2)
    both.ours(both.x, both.y)
    both.ours(both.x[:4], both.y[:4])
    with pytest.raises(TensorOptError, match=r"2 variants.*float32 \[2, 16\].*\[8, 16\].*Pad"):
        both.ours(both.x[:2], both.y[:2])
    both.ours(both.x, both.y)
    fixed = pair(shapes="fixed").ours
    with pytest.raises(TensorOptError, match=r"\[4, 16\].*plan is for.*\[8, 16\]"):
        fixed(both.x[:4], both.y[:4])
    fixed.eval()
    fixed(both.x, both.y)  # the same shapes in another mode
    for options in ({"shapes": "none"}, {"max_variants": 0}):
        with pytest.raises(TensorOptError, match=next(iter(options))):
            pair(**options)


def test_the_number_of_variants_has_a_limit() -> None:
    run_ranks(2, f"{HERE}:check_limits", None, 60)


class Sum(nn.Module):
    """Parameters whose gradients are one tensor, seen as it is and in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
        self.three = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(4,) -> a number."""
        return ((self.one + self.two + self.three.view(4)) * x).sum()


def check_sums(_: None) -> None:
    x = torch.arange(4.0)
    ours = tensoropt_torch.auto_parallel(Sum(), (x,), measure=False)
    for _pass in range(3):
        ours(x).backward()
    nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
    gradient = x / (x.norm() * 3**0.5)  # in one process ``three`` and ``two`` share memory
    for parameter in ours.parameters():
        close(parameter.grad.full_tensor(), gradient.view(parameter.shape))


@pytest.mark.filterwarnings("ignore")
def test_no_two_parameters_have_one_gradient() -> None:
    run_ranks(2, f"{HERE}:check_sums", None, 60)
