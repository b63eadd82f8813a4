"""Running plans: the functions that a script under torchrun calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack, get_args

import torch
import torch.distributed as dist

from tensoropt_torch import measure, module, staging
from tensoropt_torch.api.planning import find_strategy
from tensoropt_torch.emit.compiler import Compile
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import as_module
from tensoropt_torch.logs import get_logger
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.out_of_memory import OnOutOfMemory
from tensoropt_torch.module.shared import check_not_shared, note_parameters
from tensoropt_torch.module.variants import DEFAULT_MAX_VARIANTS, Shapes, VariantOptions
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.planner.smaller import SmallerPlans
from tensoropt_torch.progress import Phases
from tensoropt_torch.runtime.agreement import agree_or_raise, on_all_ranks
from tensoropt_torch.runtime.job import check_group, device_of_group
from tensoropt_torch.strategy import Option
from tensoropt_torch.tasks import (
    Example,
    ExampleKeywords,
    Model,
    PlanningKeywords,
    PlanningOptions,
    example_of,
    model_of,
    takes_keywords,
)
from tensoropt_torch.units import format_duration
from tensoropt_torch.values import WeightSource

log = get_logger(__name__)


def init(backend: str | None = None, timeout_s: float = 600.0) -> torch.device:
    """Join the process group that torchrun describes, and return the device.

    Under torchrun with GPUs the device is the one of the local rank and the
    backend NCCL, else CPU and Gloo. Without torchrun a group of one process is
    made. Does nothing if there is a process group already.

    Raises:
        TensorOptError: not all processes came within ``timeout_s``.
    """
    use_cuda = torch.cuda.is_available() and backend != "gloo"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if use_cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        chosen = backend or ("nccl" if use_cuda else "gloo")
        arguments: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
        if "RANK" not in os.environ:
            arguments |= {"store": torch._C._distributed_c10d.HashStore()}
            arguments |= {"rank": 0, "world_size": 1}
        try:
            dist.init_process_group(chosen, **arguments)
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            raise TensorOptError(_not_joined(error, timeout_s)) from error
    return device or torch.device("cpu")


def _not_joined(error: Exception, timeout_s: float) -> str:
    said = str(error).partition("\n")[0].rstrip(".")
    rank, world = os.environ["RANK"], os.environ.get("WORLD_SIZE", "?")
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return (
        f"not all {world} processes of the job joined it within {timeout_s:g} s (rank {rank}: "
        f"{said}); one that ended before tensoropt_torch.init() says why in its own output; on "
        f"several machines look whether each can reach {place} (MASTER_ADDR, MASTER_PORT), and "
        "give init(timeout_s=...) more where processes start late"
    )


@takes_keywords(collective=True)
def parallelize(
    model: Model | Example,
    plan: Plan | StagedPlan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: torch.device | None = None,
    weights: WeightSource | None = None,
    shapes: Shapes = "any",
    max_variants: int = DEFAULT_MAX_VARIANTS,
    one_process_random: bool = False,
    compile: Compile = False,
    check_capture: bool = True,
    on_out_of_memory: OnOutOfMemory = "raise",
    **keywords: Unpack[ExampleKeywords],
) -> ParallelModule:
    """The module that runs ``plan`` on this rank. Collective.

    Example inputs (``args``, ``kwargs``, ``targets``) are needed only for a plan that was
    loaded from a file or made by another process. The values of a model on the meta device
    come from ``weights``, by default from its modules' ``reset_parameters``; no process then
    holds more than its parts of the parameters and one module.

    Calls of other shapes, in other modes or under other casts than the example's run
    variants, made at the first of them, at most ``max_variants`` in all. With
    ``shapes="fixed"`` other shapes are an error.

    With ``one_process_random`` dropout and other random operators draw the very
    numbers that the model draws on one process after the same ``torch.manual_seed``;
    all ranks have to call that alike. Every rank draws for whole tensors, so this is for
    tests (docs/runtime.md, Random operators).

    With ``compile`` what a rank computes between collectives is compiled by ``torch.compile``,
    at the first call of each kind: True for Inductor, the name of a mode of it
    (``"reduce-overhead"``, ``"max-autotune"``: as CUDA graphs) or of another backend, or
    ``CompileOptions``. Memory is then not what the plan says (docs/runtime.md, Compiled graphs).

    At the first training call rank 0 compares loss, gradients and buffers of the captured
    graph with those of ``model`` itself, on a few rows of the batch, unless an earlier job has
    done that for the same graph and code; until then it keeps ``model``. What capture has lost
    is an error of that call. ``check_capture=False`` leaves that out (docs/runtime.md, The
    captured graph is compared with the module).

    With ``on_out_of_memory="smaller"`` a forward or backward that runs out of memory on any rank
    is undone and repeated under the next smaller plan, on all ranks, which the log and
    ``parallel.out_of_memory`` tell (docs/surviving.md, When memory runs out).

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks; if something on the meta
            device gets no value; or if ``compile`` names no backend, or is asked for together
            with ``one_process_random``, or either with ``on_out_of_memory="smaller"``.
    """
    check_group("parallelize")
    example = on_all_ranks(lambda: example_of(model, args, kwargs, keywords))
    options = on_all_ranks(lambda: VariantOptions(find_pinned, shapes, max_variants, check_capture))
    smaller = on_all_ranks(lambda: _smaller(on_out_of_memory, compile, one_process_random))
    agree_or_raise("on_out_of_memory", on_out_of_memory, "give the same on every rank")
    if isinstance(plan, StagedPlan):
        refused: dict[str, Any] = {"one_process_random": one_process_random}
        refused |= {"on_out_of_memory": on_out_of_memory if smaller else False}
        return staging.stages_of(example, plan, device, weights, refused, options, compile)
    captured = on_all_ranks(lambda: model_of(plan, example))
    module_of_model = as_module(example.model)
    on_all_ranks(lambda: check_not_shared(module_of_model))
    phases = Phases()
    parallel = module.parallelize(
        example.model,
        captured,
        plan,
        device or device_of_group(),
        weights=weights,
        options=options,
        one_process_random=one_process_random,
        compile=compile,
        compared=measure.KeptComparison(module_of_model, captured),
        smaller=smaller,
    )
    note_parameters(module_of_model, parallel)
    phases.end("emission")
    log.info("made in %s: %r", format_duration(phases.total_s), parallel)
    return parallel


@takes_keywords(collective=True, planning=PlanningOptions)
def auto_parallel(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    option: Option = "mini_time",
    memory_limit: float | None = None,
    num_devices: int | None = None,
    weights: WeightSource | None = None,
    shapes: Shapes = "any",
    max_variants: int = DEFAULT_MAX_VARIANTS,
    one_process_random: bool = False,
    compile: Compile = False,
    check_capture: bool = True,
    on_out_of_memory: OnOutOfMemory = "raise",
    **keywords: Unpack[PlanningKeywords],
) -> ParallelModule:
    """``parallelize`` with the plan of ``find_strategy`` (same arguments)."""
    given = model.model if isinstance(model, Example) else model
    if isinstance(given, torch.nn.Module):
        on_all_ranks(lambda: check_not_shared(given))  # before planning takes its time
    plan = find_strategy(
        model,
        args,
        kwargs,
        option=option,
        memory_limit=memory_limit,
        num_devices=num_devices,
        **keywords,
    )
    return parallelize(
        given,
        plan,
        weights=weights,
        shapes=shapes,
        max_variants=max_variants,
        one_process_random=one_process_random,
        compile=compile,
        check_capture=check_capture,
        on_out_of_memory=on_out_of_memory,
    )


def _smaller(
    on_out_of_memory: OnOutOfMemory, compile: Compile, one_process_random: bool
) -> SmallerPlans | None:
    """What finds smaller plans, if they are asked for."""
    check_choice("on_out_of_memory", on_out_of_memory, get_args(OnOutOfMemory))
    if on_out_of_memory == "raise":
        return None
    given = {"compile": compile, "one_process_random": one_process_random}
    for name, value in given.items():
        if value:
            raise TensorOptError(
                f"on_out_of_memory='smaller' and {name}={value!r} do not go together: such steps "
                "are not undone; leave one of them out"
            )
    return SmallerPlans()
