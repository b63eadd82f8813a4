"""``libtensoropt_ops``, the operators in C++; importing this module loads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from tensoropt_torch import _C
from tensoropt_torch.version import __version__

LIBRARY = Path(__file__).parents[1] / "libtensoropt_ops.so"


def check_release(built: str, found: str) -> None:
    """Refuses a PyTorch of another minor release than the library was built for.

    C++ of PyTorch keeps its binary interface within a minor release only: with another one the
    library would not load, or call what is laid out otherwise.

    Args:
        built: the release that the library was built for, as in ``2.13``.
        found: the version of the PyTorch that is imported, as in ``2.14.1+cpu``.

    Raises:
        ImportError: they differ; says which wheel is for this PyTorch, and how to get it.

    """
    release = ".".join(found.split(".")[:2])
    if release == built:
        return
    wheel = f"{__version__}+torch{release}"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    raise ImportError(
        f"this TensorOpt {__version__} was built for PyTorch {built}, and PyTorch {found} is "
        f"installed. Install the wheel for it, tensoropt_torch-{wheel}-{python}-*.whl:\n"
        f"    pip install 'tensoropt-torch=={wheel}' --find-links FOLDER\n"
        f"where FOLDER has what 'make wheels' builds in a checkout; or build with the PyTorch that "
        f"is here, in a checkout:\n"
        f"    pip install --no-build-isolation .\n"
        f"or install the PyTorch that this was built for:\n"
        f"    pip install 'torch=={built}.*'"
    )


def _load() -> Any:
    if not LIBRARY.exists():
        raise ImportError(
            f"{LIBRARY} is missing: the C++ operators of TensorOpt are not built; "
            f"run 'pip install --no-build-isolation -e .' in the repository"
        )
    check_release(_C.torch_release(), torch.__version__)
    registry: Any = torch.ops  # torch does not annotate load_library
    registry.load_library(str(LIBRARY))
    return registry.tensoropt


OPS = _load()
