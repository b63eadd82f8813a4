"""Checkpoints of a run, written while it goes on, of which none is ever half."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from tensoropt_torch.checkpoint.folder import CheckpointFolder
from tensoropt_torch.checkpoint.named_states import (
    load_named_optimizer_state,
    named_optimizer_state,
)
from tensoropt_torch.checkpoint.random_state import RandomState
from tensoropt_torch.checkpoint.tensors import is_first
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.runtime.agreement import from_first_rank, is_distributed, on_all_ranks
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.runtime.lost_ranks import doing, is_of_a_wait, lost_ranks
from tensoropt_torch.runtime.meshes import timeout_of_job

_NUMBERS = "run.json"
_OWN = ("model", "optimizer", "random")


class Stateful(Protocol):
    """Schedulers, data loaders that know their place, and the like."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Checkpoints:
    """The checkpoints of a run in a folder.

    ::

        checkpoints = Checkpoints("run", parallel, optimizer, scheduler=scheduler)
        begin = checkpoints.load()                  # 0 at the first start
        for step in range(begin, end):
            ...
            if (step + 1) % 100 == 0:
                checkpoints.save(step + 1)          # goes on while files are written
        checkpoints.wait()

    A checkpoint has parameters, buffers, states of the optimizer, random states
    (``RandomState``), and what is given besides; a run goes on from it under any plan and on any
    number of devices. It gets its name when all of it was written, so that one which has a
    name is whole, whatever is killed and when (``CheckpointFolder``).

    Args:
        folder: that all ranks see.
        keep: how many stay; older ones are deleted.
        others: what has a ``state_dict``, equal on all ranks and of data that JSON has, by name.

    Raises:
        TensorOptError: on every rank; a name is taken.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        parallel: ParallelModule,
        optimizer: torch.optim.Optimizer,
        *,
        keep: int = 2,
        **others: Stateful,
    ) -> None:
        def check() -> None:
            if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
                raise TensorOptError(f"keep = {keep!r} is not allowed: give a whole number from 1")
            for name, other in others.items():
                if not hasattr(other, "state_dict") or not hasattr(other, "load_state_dict"):
                    raise TensorOptError(
                        f"{name} is a {type(other).__name__}, which has no state_dict and "
                        "load_state_dict; give what has, or keep its state by yourself"
                    )

        on_all_ranks(check)
        self._folder = CheckpointFolder(folder, keep)
        self._parallel = parallel
        self._optimizer = optimizer
        self._others = others
        self._group = _group_of_writing()
        self._writing: _Writing | None = None

    @doing("Checkpoints.save")
    def save(self, step: int) -> None:
        """Begins to write a checkpoint: what there is now is copied, and written while the run
        goes on. Waits for the one before, as ``wait``. Collective.

        Args:
            step: how many steps were made, which names the checkpoint.

        Raises:
            TensorOptError: on every rank; the folder cannot be written.
        """
        self.wait()
        numbers = on_all_ranks(lambda: self._numbers(step))

        def begin() -> None:
            self._folder.begin(step)
            (self._folder.place(step) / _NUMBERS).write_text(numbers)

        _on_first_rank(begin)
        place = str(self._folder.place(step))
        written = _dcp().async_save(self._state(), checkpoint_id=place, process_group=self._group)
        self._writing = _Writing(step, self._folder, written)

    @doing("Checkpoints.wait")
    def wait(self) -> None:
        """Until the checkpoint that was begun is whole and has its name, which it gets by itself
        when all ranks have written. To be called at the end of a run. Collective.

        Raises:
            TensorOptError: on every rank; it could not be written. Those before are whole.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            on_all_ranks(writing.wait)

    @doing("Checkpoints.load")
    def load(self) -> int:
        """Takes the latest checkpoint; returns its step, and 0 if there is none. Collective.

        Raises:
            TensorOptError: on every rank; it cannot be read, or is of something else.
        """
        found = from_first_rank(lambda: (self._folder.latest(),))[0]
        if found is None:
            return 0
        numbers = on_all_ranks(lambda: _read_numbers(found))
        missing = self._others.keys() ^ numbers["others"].keys()
        if missing:
            raise TensorOptError(
                f"the checkpoint '{found}' has {sorted(numbers['others']) or 'nothing'} besides, "
                f"but Checkpoints was given {sorted(self._others) or 'nothing'}; give the same"
            )
        state = self._state()
        try:
            _dcp().load(state, checkpoint_id=str(found), process_group=self._group)
        except TensorOptError:
            raise
        except BaseException as error:
            if not _is_of_dcp(error):
                raise
            raise _in_words(
                error,
                f"the checkpoint '{found}' cannot be loaded",
                "load it with the model and the optimizer that wrote it, or write the name of "
                f"another one into '{found.parent / 'latest'}'",
            ) from error
        _dcp_states().set_model_state_dict(self._parallel, state["model"])
        load_named_optimizer_state(self._parallel, self._optimizer, state["optimizer"])
        for name, other in self._others.items():
            other.load_state_dict(numbers["others"][name])
        step: int = numbers["step"]
        return step

    def _state(self) -> dict[str, Any]:
        model = _dcp_states().get_model_state_dict(self._parallel)
        optimizer = named_optimizer_state(self._parallel, self._optimizer)
        values = model, optimizer, RandomState(self._parallel)
        return dict(zip(_OWN, values, strict=True))

    def _numbers(self, step: int) -> str:
        """What there is besides tensors, as JSON."""
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise TensorOptError(f"step = {step!r} is not allowed: give a whole number from 0")
        others = {name: other.state_dict() for name, other in self._others.items()}
        try:
            return json.dumps({"step": step, "others": others})
        except (TypeError, ValueError) as error:
            raise TensorOptError(
                f"a state_dict of {sorted(others)} holds what JSON does not have: {error}; keep "
                "numbers, texts, lists and dicts in it"
            ) from error


class _Writing:
    """A checkpoint that is being written by a thread of each rank."""

    def __init__(self, step: int, folder: CheckpointFolder, written: Future[Any]) -> None:
        self._step = step
        self._folder = folder
        self._ended: Future[None] = Future()
        written.add_done_callback(self._end)

    def _end(self, written: Future[Any]) -> None:
        """In the thread that writes; on rank 0 when all have written."""
        try:
            written.result()
            if is_first():
                self._folder.end(self._step)
            self._ended.set_result(None)
        except BaseException as error:  # for the program, where it waits
            self._ended.set_exception(error)

    def wait(self) -> None:
        """Until it has its name, on rank 0, or this rank has written."""
        try:
            self._ended.result()
        except TensorOptError:
            raise
        except BaseException as error:
            if not _is_of_dcp(error):
                raise
            checkpoint = f"checkpoint of step {self._step} in '{self._folder.path}'"
            raise _in_words(
                error,
                f"the {checkpoint} could not be written",
                "free space, or give another folder. Those before are whole",
            ) from error


def _group_of_writing() -> dist.ProcessGroup | None:
    """Of the threads that write, beside the groups of the steps; they wait for each other as long
    as those. None in a job of one process. Collective."""
    if not is_distributed():
        return None
    timeout = timeout_of_job(device_of_group().type)
    group: dist.ProcessGroup = dist.new_group(timeout=timeout, backend="gloo")
    return group


def _dcp() -> Any:
    """Importing it takes long, and few jobs need it."""
    from torch.distributed import checkpoint

    return checkpoint


def _dcp_states() -> Any:
    from torch.distributed.checkpoint import state_dict

    return state_dict


def _is_of_dcp(error: BaseException) -> bool:
    """Whether the disk, or what reads and writes it, raises it: that of several ranks is no
    ``Exception``."""
    return isinstance(error, (Exception, _dcp().api.CheckpointException))


def _on_first_rank(action: Callable[[], None]) -> None:
    """On rank 0; its error on all. Collective."""
    on_all_ranks(lambda: action() if is_first() else None)


def _read_numbers(checkpoint: Path) -> dict[str, Any]:
    where = checkpoint / _NUMBERS
    hint = f"write the name of another checkpoint into '{checkpoint.parent / 'latest'}'"
    try:
        numbers = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TensorOptError(f"'{where}' cannot be read: {error}; {hint}") from error
    if not (
        isinstance(numbers, Mapping)
        and type(numbers.get("step")) is int
        and isinstance(numbers.get("others"), dict)
    ):
        raise TensorOptError(f"'{where}' is not what Checkpoints writes; {hint}")
    return dict(numbers)


def _in_words(error: BaseException, what: str, hint: str) -> TensorOptError:
    """The first line of what one of the ranks met; if that is but a wait for others in vain, where
    these are."""
    failures = getattr(error, "failures", None)  # of a CheckpointException, by rank
    met = {rank: cause for rank, (cause, _) in failures.items()} if failures else {None: error}
    causes = {rank: cause for rank, cause in met.items() if not _is_of_a_wait(cause)}
    if not causes:
        return lost_ranks(str(next(iter(met.values()))))
    rank, cause = min(causes.items(), key=lambda entry: entry[0] or 0)
    where = "" if rank is None else f"rank {rank}: "
    text = f"{where}{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
    return TensorOptError(f"{what}: {text}; {hint}")


def _is_of_a_wait(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and is_of_a_wait(error)
