"""How to plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from tensoropt_torch.config import Cluster
from tensoropt_torch.errors import TensorOptError, check_choice, close_match
from tensoropt_torch.measure import MeasureOptions, ValidationOptions
from tensoropt_torch.plan import InputMode, Pins, ReduceDType, constraints_of
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.space.options import Space, SpaceKeywords, SpaceOptions, flag
from tensoropt_torch.tasks.example import ExampleKeywords

Inputs = InputMode | Mapping[str, InputMode | int]


@dataclass(frozen=True)
class PlanningOptions(SpaceOptions):
    """How to plan; the same for all functions that plan.

    They take one as ``planning``, and each of its fields as a keyword, which changes it::

        options = PlanningOptions(cluster="h100-8", optimizer="sgd")
        frontier = find_frontier(model, args, planning=options, inputs="sharded")

    Attributes:
        cluster: a preset, the path of a cluster file, or a description; by
            default that of the GPU at hand, else ``"cpu"``, for the processes of a job
            with the memory of their machine.
        optimizer: ``sgd``, ``momentum``, ``adam``, ``adamw``, ...: how many
            state tensors each parameter has; or an ``OptimizerModel``, whose states have
            another dtype than the parameters.
        inputs: ``"replicated"``: every rank is called with the same global
            batch; ``"sharded"``: with its own share of it (dim 0). Or one of them by the
            name of the input, as in ``{"mask": "replicated", "hidden": 1}``, where a number is
            the dim along which an input is shared out; those not named are sharded.
        space: ``"ordered"``, or ``"full"`` which tells axes of one level apart.
        max_configs: configs of each operator that are considered; what has to be
            left out on many devices are those that split the devices in many ways.
            By default 200 up to 16 devices and 100 on more.
        split_spatial: spatial dims of convolutions and pooling may be split, and
            neighbours exchange borders. More to search; worth it for images that are
            large and batches that are small.
        recompute: operators may run once more in backward instead of keeping what they make
            (activation checkpointing), wherever that pays: points of less memory and more
            time. Some times as long to search. By default where the model asks for it, by
            ``torch.utils.checkpoint``.
        max_micro_batches: the batch may be run as 2, 4, ... up to so many micro-batches, one
            after the other, each with its own backward (gradient accumulation), wherever that
            pays: points of less memory and more time. The module is called with the whole
            batch all the same. Each number of them is searched for itself.
        max_stages: the model may be cut into 2, 4, ... up to so many stages of equally many
            devices, that run the micro-batches as a pipeline (docs/stages.md), wherever that
            pays. Each number of them that divides the devices is searched with each number of
            micro-batches.
        measure: measure the device and the collectives of the running process
            group, and operators on it, instead of taking them from the cluster's
            description.
        measuring: for how long.
        overlap: reshards of parameters and of their gradients run while the device
            computes, and take memory meanwhile. By default where the hardware profile says
            that it makes steps faster, and on GPUs without a profile.
        reduce_dtype: of sums of gradients over devices, where autocast or the model computes
            with parameters in a narrower dtype: ``"parameter"``, that of the parameter, or
            ``"compute"``, the narrower one, which moves half the bytes.
        compiled: predict steps that are compiled, as ``parallelize(..., compile=True)`` runs them:
            what is computed element by element, and normalisations, is one kernel where one
            follows the other. Plans that a job runs before it takes one are not compiled.
        memory: what a memory limit is compared with: ``"simulated"``, simulated peaks of the
            rank that needs most, or ``"sums"``, the sums of the search, which is faster. By
            default peaks, where a step can be simulated, and in a job only where sums come
            near the limit.
        validate: first run so many random strategies for a few steps (True: 20), or what
            ``ValidationOptions`` say, for a minute at most if these do not say otherwise.
            Sets the default memory limit by how well they were predicted, and, for
            ``mini_time`` on all processes that run, scales all times.
        pin: splits that have to be, by patterns (``fnmatch``) of names of parameters, of
            operators or of modules whose operators are meant: ``{"embed.weight": Shard(0),
            "blocks.*.attn": "h"}``. A parameter is stored so: a placement is for all mesh
            axes, ``(Shard(0), Replicate())`` or ``"S0,R"`` for one each, ``"*"`` leaves an
            axis free. An operator splits the dim of this name on one axis at least, or as
            ``"b0,h"`` says; what has no such dim is left alone. ``"whole"``: nothing is
            split. ``{"stages": 4}`` is how many stages there are, and ``{"layers.4": "stage"}``
            that one begins with this module. See docs/why-this-plan.md, Pins.
        forbid: splits that must not be, in the same way, of any mesh axis: ``{"embed.weight":
            Shard(1)}``; ``"whole"`` forbids that nothing is split. Several in a list.
        search: error bound, algorithm, threads.
    """

    cluster: str | Path | Cluster | None = None
    optimizer: str | OptimizerModel = "adamw"
    inputs: Inputs = "replicated"
    max_configs: int | None = None
    recompute: bool | None = field(
        default=None,
        metadata=flag(
            "operators may run again in backward instead of keeping what they make, as activation "
            "checkpointing does (default: where the model calls torch.utils.checkpoint)"
        ),
    )
    max_micro_batches: int = field(
        default=1,
        metadata=flag("the batch may be run as up to so many micro-batches, one after the other"),
    )
    max_stages: int = field(
        default=1,
        metadata=flag("the model may be cut into up to so many stages of a pipeline"),
    )
    overlap: bool | None = field(
        default=None,
        metadata=flag("reshard parameters while the device computes (default: where it is faster)"),
    )
    memory: Predictor | None = None
    measure: bool = True
    measuring: MeasureOptions = field(default_factory=MeasureOptions)
    validate: bool | int | ValidationOptions = False
    pin: Pins | None = None
    forbid: Pins | None = None
    search: SearchSettings = field(default_factory=SearchSettings)

    def __post_init__(self) -> None:
        choices: list[tuple[str, Any]] = [("space", Space), ("reduce_dtype", ReduceDType)]
        if self.memory is not None:
            choices.append(("memory", Predictor))
        for name, allowed in choices:
            check_choice(name, getattr(self, name), get_args(allowed))
        by_name = self.inputs if isinstance(self.inputs, Mapping) else {"": self.inputs}
        for name, mode in by_name.items():
            _check_input_mode(name, mode)
        constraints_of(self.pin, self.forbid)


class PlanningKeywords(ExampleKeywords, SpaceKeywords, total=False):
    """The keywords of functions that plan: ``planning``, and the fields of it."""

    planning: PlanningOptions | None
    cluster: str | Path | Cluster | None
    optimizer: str | OptimizerModel
    inputs: Inputs
    max_configs: int | None
    recompute: bool | None
    max_micro_batches: int
    max_stages: int
    overlap: bool | None
    memory: Predictor | None
    measure: bool
    measuring: MeasureOptions
    validate: bool | int | ValidationOptions
    pin: Pins | None
    forbid: Pins | None
    search: SearchSettings


def validation_of(planning: PlanningOptions) -> ValidationOptions:
    """What ``validate`` asks for. Peaks are simulated where plans may be picked by them."""
    asked = planning.validate
    if not isinstance(asked, ValidationOptions):
        asked = ValidationOptions() if asked is True else ValidationOptions(strategies=asked)
    return replace(asked, simulate=planning.memory != "sums")


def planning_of(keywords: PlanningKeywords) -> PlanningOptions:
    """The options that a public function was given, as one, in parts, or both.

    Raises:
        TensorOptError: a value is not allowed.
    """
    named = {part.name for part in fields(PlanningOptions)}
    changes: dict[str, Any] = {name: value for name, value in keywords.items() if name in named}
    return replace(keywords.get("planning") or PlanningOptions(), **changes)


def _check_input_mode(name: str, mode: InputMode | int) -> None:
    allowed = get_args(InputMode)
    if not name or isinstance(mode, str):
        check_choice(f"inputs['{name}']" if name else "inputs", mode, allowed)
    elif isinstance(mode, bool) or not isinstance(mode, int) or mode < 0:
        raise TensorOptError(
            f"inputs['{name}']={mode!r} is not known; give the dim that has its rows, 0 or above, "
            f"or one of {', '.join(allowed)}"
        )


def input_modes(
    inputs: Inputs, names: Sequence[str]
) -> tuple[InputMode, tuple[str, ...], tuple[tuple[str, int], ...]]:
    """The mode of the inputs; which of ``names`` every rank gets whole even so, and which are
    shared out along another dim than 0.

    Raises:
        TensorOptError: something is named that is no input.
    """
    if not isinstance(inputs, Mapping):
        return inputs, (), ()
    modes: dict[str, InputMode | int] = dict.fromkeys(names, "sharded")
    for given, mode in inputs.items():
        found = [name for name in names if name == given or name.startswith(f"{given}[")]
        if not found:
            raise TensorOptError(
                f"inputs names '{given}', which is no input; {close_match(given, names)}"
                f"inputs are: {', '.join(names)}"
            )
        modes |= dict.fromkeys(found, mode)
    whole = tuple(name for name, mode in modes.items() if mode == "replicated")
    dims = tuple((name, m) for name, m in modes.items() if isinstance(m, int) and m > 0)
    return ("replicated", (), ()) if len(whole) == len(names) else ("sharded", whole, dims)
