"""Which ``TrainingArguments`` go with a model that runs under a plan."""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist
from transformers import TrainingArguments

from tensoropt_torch.errors import TensorOptError

# Optimizers of torch.optim, which work on DTensors, by what planning calls them.
OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
}

# Arguments that have to be off, and what to do instead.
_HAVE_TO_BE_OFF = {
    "torch_compile": (
        "it would compile the module that calls the plan's graph, not the graph; give "
        "compile=True to parallelize, whose module Trainer takes as its model"
    ),
    "deepspeed": "the plan takes its place",
    "fsdp": "the plan takes its place",
    "parallelism_config": "the plan takes its place",
    "auto_find_batch_size": "a plan is for one batch size; plan for several with find_frontier",
    "bf16_full_eval": "the plan fixes the dtype of parameters; evaluate under bf16=True",
    "fp16_full_eval": "the plan fixes the dtype of parameters; evaluate under fp16=True",
    "use_liger_kernel": "its kernels cannot be captured",
    "neftune_noise_alpha": "it needs hooks on a module of the model; add the noise in forward",
    "debug": "it needs hooks on modules of the model",
}


def check_training_arguments(args: TrainingArguments) -> None:
    """Raises TensorOptError for what a plan does not go with."""
    problems = list(_problems(args))
    if problems:
        raise TensorOptError(f"TrainingArguments: {'; '.join(problems)}")


def take_checkpointing(args: TrainingArguments) -> bool:
    """Whether activations are to be checkpointed, which is switched off: plans do it."""
    asked = bool(args.activation_checkpointing)
    args.activation_checkpointing = args.gradient_checkpointing = False
    return asked


def _problems(args: TrainingArguments) -> Iterator[str]:
    for name, hint in _HAVE_TO_BE_OFF.items():
        value = getattr(args, name, None)
        if value:
            yield f"{name}={value!r} is not supported, leave it out: {hint}"
    if args.world_size > 1 and not args.average_tokens_across_devices:
        yield (
            "average_tokens_across_devices=False is not supported: the loss is that of the batch "
            "of all processes, whose targets are counted together; leave it out"
        )
    if args.n_gpu > 1:
        yield (
            f"one process has {args.n_gpu} GPUs; start one for each: "
            f"torchrun --nproc-per-node {args.n_gpu}"
        )


def check_processes(args: TrainingArguments) -> None:
    """Raises TensorOptError unless ``transformers`` sees all processes of the job."""
    if args.world_size != dist.get_world_size():
        raise TensorOptError(
            f"the job has {dist.get_world_size()} processes, of which transformers sees "
            f"{args.world_size}; on CPUs give TrainingArguments(use_cpu=True)"
        )


def check_optimizer(args: TrainingArguments) -> None:
    """Raises TensorOptError unless Trainer would make an optimizer of ``torch.optim``."""
    if args.optim not in OPTIMIZERS:
        raise TensorOptError(
            f"TrainingArguments: optim={str(args.optim)!r} does not work on parameters that are "
            f"split; choose one of {', '.join(OPTIMIZERS)}, or give optimizers="
        )
