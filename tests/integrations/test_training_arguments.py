"""What does not go with a plan is refused, before anything is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from tensoropt_torch import TensorOptError
from tensoropt_torch.integrations.training_arguments import (
    check_optimizer,
    check_training_arguments,
)
from tensoropt_torch.integrations.transformers import Trainer
from tests.distributed.harness import run_ranks
from tests.integrations.models import Texts, gpt2


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """Set afterwards: some ask for libraries when they are given."""
    args = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    for name, value in changes.items():
        setattr(args, name, value)
    return args


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch_compile", True),
        ("deepspeed", "config.json"),
        ("fsdp", True),
        ("parallelism_config", object()),
        ("auto_find_batch_size", True),
        ("bf16_full_eval", True),
        ("fp16_full_eval", True),
        ("use_liger_kernel", True),
        ("neftune_noise_alpha", 5.0),
        ("debug", ["underflow_overflow"]),
    ],
)
def test_an_argument_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(TensorOptError, match=f"{name}=.* is not supported, leave it out: "):
        check_training_arguments(arguments(tmp_path, **{name: value}))


def test_all_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"torch_compile=.*; fsdp=.*; one process has 8 GPUs"):
        check_training_arguments(arguments(tmp_path, fsdp=True, torch_compile=True, _n_gpu=8))


def test_targets_are_counted_over_all_processes(monkeypatch: Any, tmp_path: Path) -> None:
    args = arguments(tmp_path, average_tokens_across_devices=False)
    check_training_arguments(args)
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    with pytest.raises(TensorOptError, match="average_tokens_across_devices=False is not supp"):
        check_training_arguments(args)


def test_optimizers_that_need_whole_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match=r"optim='adafactor' .* choose one of adamw_torch"):
        check_optimizer(arguments(tmp_path, optim="adafactor"))
    check_optimizer(arguments(tmp_path, optim="sgd"))


def test_processes_that_transformers_does_not_see_are_told(tmp_path: Path) -> None:
    job = "tests.integrations.test_training_arguments:train_on_one_of_two"
    with pytest.raises(
        AssertionError, match=r"has 2 processes, of which .* sees 1; .*use_cpu=True"
    ):
        run_ranks(2, job, str(tmp_path), 60)


def train_on_one_of_two(folder: str) -> None:
    args = TrainingArguments(output_dir=folder, report_to=[], save_strategy="no")
    Trainer(model=gpt2(), args=args, train_dataset=Texts(4)).train()


@pytest.mark.parametrize("asked", [True, False])
def test_checkpointing_is_left_to_the_plan(tmp_path: Path, asked: bool) -> None:
    args = arguments(tmp_path, activation_checkpointing=asked)
    trainer = Trainer(model=gpt2(), args=args, train_dataset=Texts(4))
    assert not args.activation_checkpointing
    assert trainer._source.recompute == asked


def test_trainer_refuses_what_the_check_refuses(tmp_path: Path) -> None:
    with pytest.raises(TensorOptError, match="auto_find_batch_size"):
        Trainer(model=gpt2(), args=arguments(tmp_path, auto_find_batch_size=True))
    with pytest.raises(TensorOptError, match="needs a model="):
        Trainer(args=arguments(tmp_path), model_init=gpt2)
