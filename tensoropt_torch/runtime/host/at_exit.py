"""The end of a process: threads of the network first let go of what they hold.

A thread of Gloo's frees the tensors of a collective after it has told the caller of its end.
Those that Python knows need the interpreter's lock for that. A thread which still waits for
the lock when the interpreter ends is stopped in the middle of a destructor, and the process
is aborted: a run that went well exits with a failure.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

from tensoropt_torch.runtime.host.scheduling import network_threads

ENOUGH_S = 0.05


def let_threads_finish() -> None:
    """Gives the interpreter's lock to others for a moment, if there are such threads."""
    if not Path("/proc/self/task").exists() or network_threads():
        time.sleep(ENOUGH_S)


# What is registered first runs last, after the collectives of other such functions.
atexit.register(let_threads_finish)
