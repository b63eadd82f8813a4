"""``libtensoropt_ops``, the operators in C++; importing this module loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

LIBRARY = Path(__file__).parents[1] / "libtensoropt_ops.so"


def _load() -> Any:
    if not LIBRARY.exists():
        raise ImportError(
            f"{LIBRARY} is missing: the C++ operators of TensorOpt are not built; "
            f"run 'pip install --no-build-isolation -e .' in the repository"
        )
    registry: Any = torch.ops  # torch does not annotate load_library
    registry.load_library(str(LIBRARY))
    return registry.tensoropt


OPS = _load()
