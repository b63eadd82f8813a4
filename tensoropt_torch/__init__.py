"""Cost frontiers of parallelization strategies for PyTorch models, and the
runtime that executes any point of them.

What is imported is what is used: names are found in their modules when they are asked for, as
``__init__.pyi`` says, so that neither a command that tells its arguments nor a program that reads
plan files waits for PyTorch.
"""

from typing import Any

import lazy_loader

from tensoropt_torch.collector import without_collections

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    with without_collections():
        value = _find(name)
    globals()[name] = value
    return value
