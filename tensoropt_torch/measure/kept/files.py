"""Where files of measurements are kept between runs, how they are written, and that no job ends
because of them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger

log = get_logger(__name__)

Content = TypeVar("Content")

BUSY_S = 10.0
_ASK_AGAIN_S = 0.01
_OF_OWNER = 0o700


def home() -> Path:
    """The folder of this user's measurements: ``$TENSOROPT_HOME``, else ``tensoropt``
    in ``$XDG_CACHE_HOME``, else in ``~/.cache``. It need not exist."""
    own = os.environ.get("TENSOROPT_HOME")
    if own:
        return Path(own)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tensoropt"


@cache
def digest_of_package() -> str:
    """Of the files of this package, compiled ones included: equal for the same version of it,
    built from the same sources by the same tools."""
    return digest_of_folder(Path(__file__).parents[2])


def digest_of_folder(top: Path) -> str:
    """Of the names and contents of the sources and libraries in it, at any depth."""
    digest = hashlib.sha256()
    for name in sorted(_files_in(top)):
        digest.update(name.encode())
        with open(os.path.join(top, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def _files_in(top: Path) -> Iterator[str]:
    """The names of sources and libraries, from ``top`` on. ``Path.rglob`` takes five times as
    long, and sees what Python keeps compiled."""
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name != "__pycache__"]
        inside = os.path.relpath(folder, top)
        yield from (os.path.join(inside, name) for name in files if name.endswith((".py", ".so")))


def check_owner(path: Path) -> None:
    """Whoever can write a file that is kept chooses what is taken for measured.

    Raises:
        TensorOptError: the file is neither this user's nor that of root.
    """
    owner, user = path.stat().st_uid, os.geteuid()
    if owner not in (user, 0):
        raise TensorOptError(
            f"'{path}' belongs to user {owner}, and this process to user {user}: files of others "
            "are not taken; delete it, make it yours (chown), or set TENSOROPT_HOME to a folder "
            "of your own"
        )


def check_owner_at_home(path: Path) -> None:
    """``check_owner`` of a file in the folder of measurements; others are the user's choice."""
    if path.exists() and path.resolve().is_relative_to(home().resolve()):
        check_owner(path)


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file as a whole: whoever reads it finds the old or the new text. Nobody else may
    read or write it, nor the folder, if that is made.

    Raises:
        TensorOptError: the folder cannot be written, or the disk is full; the old
            file is as it was.
    """
    temporary = ""
    try:
        path.parent.mkdir(_OF_OWNER, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise TensorOptError(
            f"'{path}' cannot be written: {error}; free space, or set TENSOROPT_HOME to another "
            "folder"
        ) from error


@contextmanager
def locked(path: Path, busy_s: float = BUSY_S) -> Iterator[None]:
    """Meanwhile no other process is inside with this file, so that what is written to it is what
    was read with something added. A process that ends leaves.

    Raises:
        TensorOptError: others are inside for longer than ``busy_s``, or the folder cannot be
            written.
    """
    hint = "end what has it open, or set TENSOROPT_HOME to another folder"
    try:
        path.parent.mkdir(_OF_OWNER, parents=True, exist_ok=True)
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise TensorOptError(f"'{path}' cannot be locked: {error}; {hint}") from error
    try:
        until_s = time.monotonic() + busy_s
        while not _is_taken(descriptor):
            if time.monotonic() > until_s:
                raise TensorOptError(f"'{path}' is locked for {busy_s:g} s; {hint}")
            time.sleep(_ASK_AGAIN_S)
        yield
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    """Whether the lock is this process's now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_or(otherwise: Content, read: Callable[[], Content], what_then: str) -> Content:
    """What ``read`` finds. A file that does not work is a warning of the log, which ends with
    ``what_then``, and counts as one that has ``otherwise``."""
    try:
        return read()
    except (ValueError, OSError) as error:
        log.warning("%s; %s", error, what_then)
        return otherwise


def is_written(write: Callable[[], object], what: str) -> bool:
    """Whether ``write`` could keep ``what``, such as ``the plan``; if not, the log says so."""
    try:
        write()
    except (ValueError, OSError) as error:
        log.warning("%s; %s is not kept", error, what)
        return False
    return True
