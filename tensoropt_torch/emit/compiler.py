"""Who compiles what a rank computes, and how.

::

    compiler_of(True)                 # Inductor
    compiler_of("reduce-overhead")    # a mode of torch.compile: Inductor, with CUDA graphs
    compiler_of("aot_eager")          # another backend
    compiler_of(CompileOptions(collectives="inductor"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from tensoropt_torch.errors import TensorOptError, check_choice

INDUCTOR = "inductor"
CUDA_GRAPHS = "triton.cudagraphs"  # an option of Inductor

Scheduling = Literal["plan", "inductor"]


@dataclass(frozen=True)
class CompileOptions:
    """How what a rank computes is compiled.

    Attributes:
        backend: of ``torch.compile``.
        mode: of ``torch.compile``, for Inductor: ``"default"``, ``"max-autotune-no-cudagraphs"``,
            or with CUDA graphs ``"reduce-overhead"`` and ``"max-autotune"``.
        collectives: who says which are sent together, and when: the ``"plan"``, by its buckets,
            or ``"inductor"``, whose pass for that (``aten_distributed_optimizations``) is told
            the times of the plan's cluster.
    """

    backend: str = INDUCTOR
    mode: str = "default"
    collectives: Scheduling = "plan"

    def __post_init__(self) -> None:
        known = torch.compiler.list_backends(exclude_tags=None)
        check_choice("backend", self.backend, known)
        check_choice("mode", self.mode, modes())
        check_choice("collectives", self.collectives, get_args(Scheduling))
        if self.backend != INDUCTOR and (self.mode, self.collectives) != ("default", "plan"):
            raise TensorOptError(
                f"mode={self.mode!r} and collectives={self.collectives!r} are of Inductor, and "
                f"backend is {self.backend!r}; leave them out, or the backend"
            )

    @property
    def patches(self) -> Mapping[str, Any]:
        """Options of Inductor that the mode stands for."""
        if self.backend != INDUCTOR:
            return {}
        found: Mapping[str, Any] = torch._inductor.list_mode_options(self.mode)
        return found

    def check_device(self, device: torch.device) -> None:
        """Raises TensorOptError if the mode, or the pass of Inductor, needs another one."""
        if self.collectives == "inductor" and device.type != "cuda":
            raise TensorOptError(
                "collectives='inductor': Inductor's pass asks a GPU for its speed, and the device "
                f"is '{device.type}'; give collectives='plan'"
            )
        if self.patches.get(CUDA_GRAPHS) and device.type != "cuda":
            raise TensorOptError(
                f"compile={self.mode!r} runs steps as CUDA graphs, and the device is "
                f"'{device.type}'; give compile=True, or 'max-autotune-no-cudagraphs'"
            )


Compile = bool | str | CompileOptions


def modes() -> list[str]:
    """Those of ``torch.compile``, by name."""
    from torch._inductor import list_mode_options

    return list(list_mode_options())


def compiler_of(compile: Compile) -> CompileOptions | None:
    """What is asked for; None: nothing is compiled.

    Raises:
        TensorOptError: there is no such backend or mode.
    """
    if isinstance(compile, bool):
        return CompileOptions() if compile else None
    if isinstance(compile, CompileOptions):
        return compile
    if compile in modes():
        return CompileOptions(mode=compile)
    known = torch.compiler.list_backends(exclude_tags=None)
    if compile not in known:
        raise TensorOptError(
            f"compile={compile!r} is no backend or mode of torch.compile; give True for "
            f"'inductor', a mode ({', '.join(modes())}), or one of {', '.join(known)}"
        )
    return CompileOptions(backend=compile)
