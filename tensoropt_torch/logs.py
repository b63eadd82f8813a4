"""What the library says of its own work, with ``logging``.

Nothing is printed unless the program asks for it::

    logging.basicConfig(level=logging.INFO)  # or of the logger "tensoropt_torch" alone

INFO: what was captured, measured, searched and picked, and how long that took; DEBUG adds
its parts. Of several processes rank 0 speaks; warnings of the others name their rank.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

LIBRARY = "tensoropt_torch"

logging.getLogger(LIBRARY).addHandler(logging.NullHandler())


class RankLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that knows which rank of the job this process is."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return (level >= logging.WARNING or rank_of_job() == 0) and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        rank = rank_of_job()
        return (f"rank {rank}: {msg}" if rank else msg), kwargs


def get_logger(module: str) -> RankLogger:
    """The logger of a module, given its ``__name__``."""
    return RankLogger(logging.getLogger(module), {})


def rank_of_job() -> int:
    """That of this process; 0 where no process group runs, as where PyTorch is not imported, which
    this does not do either."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0
    rank: int = dist.get_rank()
    return rank
