"""Lines of the user's code, as errors name them."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

_PACKAGES = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
# Folders of code that calls the user's, or is called by it.
_LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1])
)


def line_of_error(error: BaseException) -> str:
    """`` (at file:line: code)`` of the innermost line of the user's on the way to an error;
    nothing if there is none."""
    return _innermost(traceback.extract_tb(error.__traceback__))


def line_of_call() -> str:
    """The same of the user's line that is running."""
    return _innermost(traceback.extract_stack())


def _innermost(frames: Iterable[traceback.FrameSummary]) -> str:
    own = [frame for frame in frames if not _is_library(frame.filename)]
    return f" (at {own[-1].filename}:{own[-1].lineno}: {own[-1].line})" if own else ""


def _is_library(file: str) -> bool:
    if file.startswith((*_LIBRARIES, "<frozen")):
        return True
    return file.startswith(_STANDARD) and not any(name in file for name in _PACKAGES)
