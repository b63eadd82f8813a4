"""What a checkpoint of ``Trainer`` holds besides the weights: the states of the optimizer and
of random generators, and adapters, as ``torch.distributed.checkpoint`` writes them. They may be
loaded under another plan and on another number of processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from transformers.trainer import OPTIMIZER_NAME

from tensoropt_torch.checkpoint import RandomState, full_optimizer_state_dict
from tensoropt_torch.checkpoint import save as save_whole
from tensoropt_torch.checkpoint.named_states import (
    load_named_optimizer_state,
    named_optimizer_state,
)
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.runtime.agreement import gather

FOLDER = "states"  # in that of the checkpoint
LARGEST_WHOLE = 2 << 30  # bytes of an optimizer's states that one process gathers
_IN_PARTS = (
    f"the states of the optimizer are in the folder '{FOLDER}', for "
    "tensoropt_torch.integrations.transformers.Trainer"
)


def save_states(
    checkpoint: str | os.PathLike[str], parallel: ParallelModule, optimizer: Optimizer
) -> None:
    """Collective."""
    states = {**_optimizer_states(parallel, optimizer), "random": RandomState(parallel)}
    states |= _adapters(parallel)
    save(states, checkpoint_id=Path(checkpoint) / FOLDER)
    plan = parallel.plan
    # Each rank tells what its stage has, as all of its others do.
    copies = plan.num_devices // (plan.stages if isinstance(plan, StagedPlan) else 1)
    whole_bytes = sum(gather(_bytes(optimizer.state_dict()))) // copies
    save_for_one_process(Path(checkpoint) / OPTIMIZER_NAME, optimizer, whole_bytes)


def save_for_one_process(path: Path, optimizer: Optimizer, whole_bytes: int) -> None:
    """The states, which have so many bytes, as ``transformers.Trainer`` reads them, so that it
    goes on with them. Where they are large, what it refuses: without a file it would begin with
    new ones."""
    if whole_bytes <= LARGEST_WHOLE:
        save_whole(full_optimizer_state_dict(optimizer), path)
        return
    save_whole({"state": {}, "param_groups": [], "tensoropt_torch": _IN_PARTS}, path)


def _bytes(state: Any) -> int:
    leaves = pytree.tree_leaves(state)
    return sum(leaf.numel() * leaf.itemsize for leaf in leaves if isinstance(leaf, torch.Tensor))


def load_optimizer(
    checkpoint: str | os.PathLike[str], parallel: ParallelModule, optimizer: Optimizer
) -> None:
    """Collective."""
    states = _optimizer_states(parallel, optimizer)
    load(states, checkpoint_id=Path(checkpoint) / FOLDER)
    load_named_optimizer_state(parallel, optimizer, states["optimizer"])


def load_adapters(checkpoint: str | os.PathLike[str], parallel: ParallelModule) -> None:
    """What is trained of a model whose other parameters are frozen. Collective."""
    load(_adapters(parallel), checkpoint_id=Path(checkpoint) / FOLDER)


def load_random(checkpoint: str | os.PathLike[str], parallel: ParallelModule) -> None:
    """Collective."""
    load({"random": RandomState(parallel)}, checkpoint_id=Path(checkpoint) / FOLDER)


def check_has_states(checkpoint: str | os.PathLike[str]) -> None:
    """Raises TensorOptError unless ``save_states`` has written to the checkpoint."""
    if (Path(checkpoint) / FOLDER).is_dir():
        return
    other = (Path(checkpoint) / "optimizer.pt").is_file()
    found = "those of another Trainer" if other else "none (save_only_model=True?)"
    raise TensorOptError(
        f"checkpoint '{checkpoint}' has no states of the optimizer in '{FOLDER}', but {found}; "
        "resume from a checkpoint of this Trainer, or begin anew from its weights: "
        "from_pretrained(checkpoint)"
    )


def has_adapters(checkpoint: str | os.PathLike[str]) -> bool:
    """Whether the checkpoint has adapters of PEFT in place of a whole model."""
    return (Path(checkpoint) / "adapter_config.json").is_file()


def _adapters(parallel: ParallelModule) -> dict[str, Any]:
    parameters = dict(parallel.named_parameters())
    trained = {name: p.detach() for name, p in parameters.items() if p.requires_grad}
    return {"adapters": trained} if any(gather(len(trained) < len(parameters))) else {}


def _optimizer_states(parallel: ParallelModule, optimizer: Optimizer) -> dict[str, Any]:
    return {"optimizer": named_optimizer_state(parallel, optimizer)}
