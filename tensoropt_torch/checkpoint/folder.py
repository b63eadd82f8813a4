"""A folder of checkpoints, of which none is ever half.

::

    run/
      40/            a checkpoint, whole: it got this name when all of it was written
      60/
      latest         the name of the newest one, a line of text; replaced as a whole
      .80.unfinished what is being written, or what a process has left that was killed

This file is what one process does, that of the first rank.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tensoropt_torch.errors import TensorOptError

LATEST = "latest"
_UNFINISHED, _PRUNED = ".unfinished", ".pruned"


class CheckpointFolder:
    """Names and places of checkpoints, by the number of steps that were made.

    Args:
        path: is made if it is not there.
        keep: how many whole ones stay.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int) -> None:
        self.path = Path(path)
        self._keep = keep

    def begin(self, step: int) -> None:
        """An empty folder, ``place(step)``, to write to. What was left half before is gone.

        Raises:
            TensorOptError: it cannot be made.
        """
        with self._named("written"):
            self.path.mkdir(parents=True, exist_ok=True)
            for left in (*self.path.glob(f".*{_UNFINISHED}"), *self.path.glob(f".*{_PRUNED}")):
                shutil.rmtree(left)
            self.place(step).mkdir()

    def place(self, step: int) -> Path:
        """Where a checkpoint is written before it has its name."""
        return self.path / f".{step}{_UNFINISHED}"

    def end(self, step: int) -> None:
        """All of it was written: it gets its name, is the latest, and those before that are too
        many go.

        Raises:
            TensorOptError: the folder cannot be written; what was whole is.
        """
        whole = self.path / str(step)
        with self._named("written"):
            _to_disk(self.place(step))
            if whole.exists():  # of a run that went on from an earlier step
                self._remove(whole)
            os.replace(self.place(step), whole)
            _to_disk(self.path)
            temporary = self.path / f".{LATEST}"
            temporary.write_text(f"{step}\n")
            _to_disk(temporary)
            os.replace(temporary, self.path / LATEST)
            _to_disk(self.path)
            self._prune(step)

    def latest(self) -> Path | None:
        """The newest whole one; None: there is none.

        Raises:
            TensorOptError: the folder cannot be read, or ``latest`` names none that is there.
        """
        with self._named("read"):
            if (self.path / LATEST).exists():
                name = (self.path / LATEST).read_text(errors="replace").strip()
                if not name.isascii() or not name.isdigit() or not (self.path / name).is_dir():
                    raise TensorOptError(
                        f"'{self.path / LATEST}' says {name[:40]!r}, which is no checkpoint in "
                        f"'{self.path}'; write the name of one of {self.steps()} into it, or "
                        "delete it to take the newest"
                    )
                return self.path / name
            steps = self.steps()
        return self.path / str(steps[-1]) if steps else None

    def steps(self) -> list[int]:
        """The whole ones, the newest last."""
        if not self.path.is_dir():
            return []
        names = (entry.name for entry in self.path.iterdir() if entry.is_dir())
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _prune(self, newest: int) -> None:
        """Those after the newest were of a run that has been left."""
        steps = self.steps()
        later = [step for step in steps if step > newest]
        before = [step for step in steps if step <= newest]
        for step in [*later, *before[: -self._keep]]:
            self._remove(self.path / str(step))

    def _remove(self, whole: Path) -> None:
        """Under another name first: what is half gone is no checkpoint."""
        gone = self.path / f".{whole.name}{_PRUNED}"
        os.replace(whole, gone)
        shutil.rmtree(gone)

    @contextlib.contextmanager
    def _named(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TensorOptError(
                f"the checkpoints in '{self.path}' cannot be {done}: {error}; free space, or give "
                "a folder that can be"
            ) from error


def _to_disk(path: Path) -> None:
    """What a file, or the list of a folder's files, says is there after a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
