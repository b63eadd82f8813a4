"""Plans: a frontier point made executable, and what it was made for."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import InstanceOf

from tensoropt_torch import _C
from tensoropt_torch.config.records import Record, parse_record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.html_table import html_table
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

FORMAT_VERSION = 6

# A strategy adds its costs up in another order than the search.
_ROUNDING = 1e-9


def default_max_configs(num_devices: int) -> int:
    """So many that all configs of common models are considered on 16 devices; on
    more, where they multiply, those that split the devices in few ways."""
    return 200 if num_devices <= 16 else 100


InputMode = Literal["replicated", "sharded"]
ReduceDType = Literal["parameter", "compute"]

# What states of an optimizer may be kept in, if not in the parameter's dtype.
StateDType = Literal["float64", "float32", "bfloat16", "float16"]

# (collective, axis set, ((bytes, seconds), ...)), measured on the process group.
MeasuredCurve = tuple[str, int, tuple[tuple[float, float], ...]]


# As profiler.op_store.OpTime: key, family, work, seconds forward and backward.
OpRecord = tuple[str, str, tuple[str, float, float, float, float, bool, bool], float, float]


@dataclass(frozen=True)
class Settings(Record):
    """What a strategy space depends on besides the model.

    ``cluster`` is the description as a plain dict (``Cluster.to_dict``),
    ``mesh_axes`` (size, level) per mesh axis, outermost first.
    ``optimizer`` is the optimizer by name, with the dtype of its states, and
    ``optimizer_state_bytes`` what it keeps for each element of a parameter, by the
    parameter's dtype. ``max_configs`` bounds the configs of each operator, and
    ``split_spatial`` lets windows be split; with ``recompute`` operators may run again in
    backward instead of keeping what they make (docs/search.md).
    ``whole_inputs`` are inputs that every rank gets whole although ``inputs`` are sharded.
    ``operators`` are measured calls; others are predicted from them (docs/costs.md).
    With ``overlap`` reshards of parameters and of their gradients run while the device
    computes (docs/runtime.md). ``reduce_dtype`` is the dtype of sums of gradients over devices,
    that of the parameter or of what is computed with it (docs/precision.md). They are summed
    ``bucket_bytes`` at once, and so many bytes of parameters are gathered at once.
    """

    cluster: Mapping[str, Any] = field(repr=False)
    mesh_axes: tuple[tuple[int, int], ...]
    optimizer: str
    optimizer_state_bytes: Mapping[str, float] = field(repr=False)
    measured: tuple[MeasuredCurve, ...] = field(default=(), repr=False)
    space: str = "ordered"
    inputs: InputMode = "replicated"
    whole_inputs: tuple[str, ...] = ()
    max_configs: int = 200
    split_spatial: bool = False
    recompute: bool = False
    operators: tuple[OpRecord, ...] = field(default=(), repr=False)
    overlap: bool = False
    reduce_dtype: ReduceDType = "parameter"
    bucket_bytes: int = 4 * 2**20

    @property
    def num_devices(self) -> int:
        """The product of the mesh axes."""
        count = 1
        for size, _ in self.mesh_axes:
            count *= size
        return count

    @property
    def gathered(self) -> Settings:
        """The same with the whole batch on every rank."""
        return replace(self, inputs="replicated", whole_inputs=())

    @property
    def inputs_in_words(self) -> str:
        """Which inputs each rank gets its own share of."""
        but = f", but {', '.join(self.whole_inputs)}" if self.whole_inputs else ""
        return f"{self.inputs}{but}"

    def is_shared_out(self, name: str) -> bool:
        """Whether each rank gets its own share of an input."""
        return self.inputs == "sharded" and name not in self.whole_inputs

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
    epsilon: float = 0.0
    heuristics: tuple[float, ...] = ()
    complete: bool = True

    def __str__(self) -> str:
        if not self.exact:
            text = "heuristic, no bound"
        else:
            text = f"within {self.epsilon:.2%}" if self.epsilon > 0 else "exact"
        return text if self.complete else f"{text}, of coarse configs"


@dataclass(frozen=True)
class VariantStrategy(Record):
    """The strategy of another graph of a plan's model (another mode, other shapes), with
    parameters stored as the plan says. Fields as in ``Plan``; ``gathered``: every rank gets
    the whole batch, though the plan is for a share on each."""

    fingerprint: str
    memory_bytes: float
    time_s: float
    config: tuple[int, ...]
    node_tag: tuple[int, ...]
    edge_tag: tuple[int, ...]
    gathered: bool = False

    @staticmethod
    def of(
        captured: CapturedModel, strategy: _C.Strategy, gathered: bool = False
    ) -> VariantStrategy:
        """A strategy that was found for the graph."""
        return VariantStrategy(
            captured.fingerprint,
            strategy.memory,
            strategy.time,
            tuple(strategy.config),
            tuple(strategy.node_tag),
            tuple(strategy.edge_tag),
            gathered,
        )


@dataclass(frozen=True)
class Plan(Record):
    """One strategy of one model on one mesh.

    ``memory_bytes`` is the predicted memory per device (states and what is kept
    for backward; temporaries are not counted), ``time_s`` the predicted
    time of a training step. ``config``, ``node_tag`` and ``edge_tag`` are the
    strategy (``_C.Strategy``). ``frontier`` are all points of the frontier it
    was picked from, as (memory_bytes, time_s), and ``guarantee`` says what holds
    for them. ``variants`` are strategies of other graphs of the model. ``captured`` is the
    model it was made for, where that is at hand; it is not saved. ``peak_bytes`` is the
    simulated peak, where the plan was picked by it, and ``measured_s`` what a step took, where
    plans were run before this one was picked.
    """

    settings: Settings
    fingerprint: str
    memory_bytes: float
    time_s: float
    config: tuple[int, ...]
    node_tag: tuple[int, ...]
    edge_tag: tuple[int, ...]
    frontier: tuple[tuple[float, float], ...] = ()
    guarantee: Guarantee = Guarantee()
    peak_bytes: int | None = None
    measured_s: float | None = None
    variants: tuple[VariantStrategy, ...] = ()
    captured: InstanceOf[CapturedModel] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(
        settings: Settings,
        captured: CapturedModel,
        strategy: _C.Strategy,
        frontier: tuple[tuple[float, float], ...] = (),
        guarantee: Guarantee = Guarantee(),
    ) -> Plan:
        """The plan of a strategy found for ``settings``."""
        return Plan(
            settings,
            captured.fingerprint,
            strategy.memory,
            strategy.time,
            tuple(strategy.config),
            tuple(strategy.node_tag),
            tuple(strategy.edge_tag),
            frontier,
            guarantee,
            captured=captured,
        )

    def with_model(self, captured: CapturedModel) -> Plan:
        """The same plan with the model at hand."""
        return replace(self, captured=captured)

    def of_variant(self, captured: CapturedModel, strategy: VariantStrategy) -> Plan:
        """The plan of another graph of the model."""
        return replace(
            self,
            settings=self.settings.gathered if strategy.gathered else self.settings,
            fingerprint=strategy.fingerprint,
            memory_bytes=strategy.memory_bytes,
            time_s=strategy.time_s,
            config=strategy.config,
            node_tag=strategy.node_tag,
            edge_tag=strategy.edge_tag,
            frontier=(),
            peak_bytes=None,
            measured_s=None,
            variants=(),
            captured=captured,
        )

    def check_model(self, captured: CapturedModel) -> None:
        """Raises TensorOptError if the plan was made for something else."""
        if self.fingerprint != captured.fingerprint:
            raise TensorOptError(
                f"the plan was made for another model or batch (fingerprint {self.fingerprint}); "
                f"this model with these inputs has fingerprint {captured.fingerprint}; plan again "
                "for it, or register the same rules (register_rule) as for the plan"
            )

    def strategy(self) -> _C.Strategy:
        """The strategy for the C++ core."""
        return _C.Strategy(
            self.memory_bytes,
            self.time_s,
            list(self.config),
            list(self.node_tag),
            list(self.edge_tag),
        )

    def __repr__(self) -> str:
        costs = format_costs(self.memory_bytes, self.time_s)
        measured = (
            "" if self.measured_s is None else f", {format_seconds(self.measured_s)} measured"
        )
        return f"Plan({self.settings.where}: {costs}{measured}; {self.origin})"

    def _repr_html_(self) -> str:
        return html_table("Plan", (), self._facts())

    @property
    def origin(self) -> str:
        """Which point of the frontier it is, and what holds for that."""
        if not self.frontier:
            return f"of no frontier, {self.guarantee}"
        points = sorted(self.frontier)
        index = bisect_right(points, (self.memory_bytes * (1 + _ROUNDING), math.inf)) - 1
        time_s = points[index][1] if index >= 0 else 0.0
        if self.time_s > time_s * (1 + _ROUNDING):
            more = self.time_s / points[-1][1] - 1
            return f"a known strategy, predicted {more:.0%} above the fastest point"
        return f"point {index} of {len(points)}, {self.guarantee}"

    def _facts(self) -> Iterator[tuple[str, str]]:
        settings = self.settings
        yield "devices", settings.where
        yield "step time", format_seconds(self.time_s)
        if self.measured_s is not None:
            yield "measured step time", format_seconds(self.measured_s)
        yield "memory per device", format_bytes(self.memory_bytes)
        if self.peak_bytes is not None:
            yield "simulated peak", format_bytes(self.peak_bytes)
        yield "frontier", self.origin
        yield "inputs", settings.inputs_in_words
        yield "overlap", "yes" if settings.overlap else "no"
        yield "measured collectives", str(len(settings.measured))
        yield "measured operators", str(len(settings.operators))
        yield "model", self.fingerprint

    @property
    def num_devices(self) -> int:
        return self.settings.num_devices

    @property
    def inputs(self) -> InputMode:
        return self.settings.inputs

    @property
    def strategy_hash(self) -> str:
        """Equal for equal strategies of a model, whatever they are predicted to cost."""
        text = json.dumps([self.config, self.node_tag, self.edge_tag])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def hash(self) -> str:
        """Equal for equal plans."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The plan as JSON text; ``from_json`` reads it."""
        record = {"format_version": FORMAT_VERSION, **asdict(replace(self, captured=None))}
        del record["captured"]
        return json.dumps(record, sort_keys=True)

    @staticmethod
    def from_json(text: str, where: str = "the text") -> Plan:
        """Raises TensorOptError, naming ``where``, if the text is no plan of this version."""
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise _no_plan(where, f"it is no JSON ({error})") from error
        if not isinstance(record, dict) or "format_version" not in record:
            raise _no_plan(where, "it has no format_version")
        version = record.pop("format_version")
        if version != FORMAT_VERSION:
            raise TensorOptError(
                f"{where} has format version {version}, this version of tensoropt_torch reads "
                f"{FORMAT_VERSION}; plan again"
            )
        return parse_record(Plan, record, where)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Raises:
            TensorOptError: the file cannot be written.
        """
        try:
            Path(path).write_text(self.to_json())
        except OSError as error:
            raise TensorOptError(f"plan file '{path}' cannot be written: {error}") from error

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan that ``save`` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TensorOptError(
                f"plan file '{path}' cannot be read: {error}; write one with Plan.save"
            ) from error
        return Plan.from_json(text, f"plan file '{path}'")


def _no_plan(where: str, why: str) -> TensorOptError:
    return TensorOptError(f"{where} is not a plan: {why}; write one with Plan.save")
