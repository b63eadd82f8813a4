"""What a strategy space depends on besides the model, and what holds for what was found in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from tensoropt_torch.config.records import Count, Must, NotNegative, Record
from tensoropt_torch.space.constraints import Constraint
from tensoropt_torch.space.options import SpaceOptions


def default_max_configs(num_devices: int) -> int:
    """So many that all configs of common models are considered on 16 devices; on
    more, where they multiply, those that split the devices in few ways."""
    return 200 if num_devices <= 16 else 100


InputMode = Literal["replicated", "sharded"]

# What states of an optimizer may be kept in, if not in the parameter's dtype.
StateDType = Literal["float64", "float32", "bfloat16", "float16"]

# (collective, axis set, ((bytes, seconds), ...)), measured on the process group.
MeasuredCurve = tuple[str, int, tuple[tuple[NotNegative, NotNegative], ...]]


# dtype, FLOPs forward and backward, bytes, launches, whether there is a backward, whether it is a
# view (space/op_records.py).
WorkRecord = tuple[str, float, float, float, float, bool, bool]

# As measure.kept.operator_times.OpTime: key, family, work, seconds forward and backward.
OpRecord = tuple[str, str, WorkRecord, NotNegative, NotNegative]


@dataclass(frozen=True)
class InputShares(Record):
    """Of which inputs of a step each rank gets its own share, and of which all of it.

    Attributes:
        mode: of inputs that are not named.
        whole: inputs that every rank gets whole although the others are sharded.
        dims: those whose rows are in another dim than 0.
    """

    mode: InputMode = "replicated"
    whole: tuple[str, ...] = ()
    dims: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """In words."""
        but = f", but {', '.join(self.whole)}" if self.whole else ""
        dims = "".join(f", {name} along dim {dim}" for name, dim in self.dims)
        return f"{self.mode}{dims}{but}"

    def is_shared_out(self, name: str) -> bool:
        """Whether each rank gets its own share of an input."""
        return self.mode == "sharded" and name not in self.whole

    def rows_dim(self, name: str) -> int | None:
        """The dim of an input along which each rank gets its own share; None: it gets all."""
        return dict(self.dims).get(name, 0) if self.is_shared_out(name) else None


REPLICATED = InputShares()


@dataclass(frozen=True)
class Settings(SpaceOptions, Record):
    """What a strategy space depends on besides the model.

    Options as the user has given them are those of ``SpaceOptions``.
    ``cluster`` is the description as a plain dict (``Cluster.to_dict``),
    ``mesh_axes`` (size, level) per mesh axis, outermost first.
    ``optimizer`` is the optimizer by name, with the dtype of its states, and
    ``optimizer_state_bytes`` what it keeps for each element of a parameter, by the
    parameter's dtype. ``max_configs`` bounds the configs of each operator; with
    ``recompute`` operators may run again in backward instead of keeping what they make
    (docs/search.md).
    ``whole_inputs`` are inputs that every rank gets whole although ``inputs`` are sharded, and
    ``input_dims`` those whose rows are in another dim than 0. Rows are shared out along
    ``row_axes`` of the outermost mesh axes, None: along all; ranks that differ along the others
    alone get the same.
    ``operators`` are measured calls; others are predicted from them (docs/costs.md).
    With ``overlap`` reshards of parameters and of their gradients run while the device
    computes (docs/runtime.md). Gradients are summed over devices
    ``bucket_bytes`` at once (``space/buckets.py``). A step runs the batch
    as so many ``micro_batches``, one after the other (docs/runtime.md), of which in a stage of a
    pipeline so many are ``in_flight`` at once.
    ``constraints`` are splits that the user has pinned or forbidden.
    """

    cluster: Mapping[str, Any] = field(repr=False)
    mesh_axes: tuple[tuple[Count, int], ...]
    optimizer: str
    optimizer_state_bytes: Mapping[str, NotNegative] = field(repr=False)
    measured: tuple[MeasuredCurve, ...] = field(default=(), repr=False)
    inputs: InputMode = "replicated"
    whole_inputs: tuple[str, ...] = ()
    input_dims: tuple[tuple[str, int], ...] = ()
    row_axes: int | None = None
    max_configs: Count = 200
    recompute: bool = False
    operators: tuple[OpRecord, ...] = field(default=(), repr=False)
    overlap: bool = False
    bucket_bytes: Count = 16 * 2**20
    micro_batches: Count = 1
    in_flight: Count = 1
    constraints: tuple[Constraint, ...] = ()

    @property
    def shard_bytes(self) -> int:
        """So many bytes of parameters are gathered at once, and of gradients of which each rank
        gets a part: fewer than of those that all get, which have their memory in any case."""
        return self.bucket_bytes // 4

    @property
    def num_devices(self) -> int:
        """The product of the mesh axes."""
        return math.prod(size for size, _ in self.mesh_axes)

    @property
    def num_shares(self) -> int:
        """Into how many the rows of the batch are shared out; 1: every rank gets all of them."""
        if self.inputs == "replicated":
            return 1
        return math.prod(size for size, _ in self.mesh_axes[: self.row_axes])

    @property
    def gathered(self) -> Settings:
        """These settings with the whole batch on every rank."""
        return replace(self, inputs="replicated", whole_inputs=(), input_dims=(), row_axes=None)

    def of_variant(self, gathered: bool, micro_batches: int) -> Settings:
        """The settings of another graph of the model."""
        settings = self.gathered if gathered else self
        return replace(settings, micro_batches=micro_batches)

    @property
    def shares(self) -> InputShares:
        """Which inputs each rank gets its own share of."""
        return InputShares(self.inputs, self.whole_inputs, self.input_dims)

    @property
    def inputs_in_words(self) -> str:
        """Which inputs each rank gets its own share of."""
        return str(self.shares)

    def is_shared_out(self, name: str) -> bool:
        """Whether each rank gets its own share of an input."""
        return self.shares.is_shared_out(name)

    def rows_dim(self, name: str) -> int | None:
        """See ``InputShares``."""
        return self.shares.rows_dim(name)

    @property
    def where(self) -> str:
        """Devices, cluster and mesh in short."""
        mesh = " x ".join(str(size) for size, _ in self.mesh_axes)
        devices = "1 device" if self.num_devices == 1 else f"{self.num_devices} devices"
        return f"{devices} of '{self.cluster['name']}'" + (f" ({mesh})" if mesh else "")


@dataclass(frozen=True)
class Guarantee(Record):
    """What holds for a frontier, and so for the plans picked from it.

    ``exact``: every strategy of the space was considered. Then ``epsilon`` bounds
    the error: for every strategy of memory m and time t there is a point with at
    most (1 + epsilon) m and (1 + epsilon) t; and if m is within the memory limit that
    plans were picked by, one within it with at most (1 + epsilon) t. Otherwise
    ``heuristics`` fixed some operators, by the weight of memory against time, and
    ``epsilon`` is infinite.
    ``complete``: the space itself holds every config, none was left out because
    of ``max_configs``.
    """

    exact: bool = True
    epsilon: Annotated[float, Field(ge=0), Must("a number, 0 or above")] = 0.0
    heuristics: tuple[float, ...] = ()
    complete: bool = True

    def __str__(self) -> str:
        if not self.exact:
            text = "heuristic, no bound"
        else:
            text = f"within {self.epsilon:.2%}" if self.epsilon > 0 else "exact"
        return text if self.complete else f"{text}, of coarse configs"


EXACT = Guarantee()
