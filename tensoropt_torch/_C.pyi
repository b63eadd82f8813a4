# Written by .ci/write_stubs.py.
"""
C++ core of TensorOpt: graphs, costs, search, emission.
"""
from __future__ import annotations
import collections.abc
import typing
__all__: list[str] = ['AnalyticCollectives', 'AveragedBuffer', 'BaselineResult', 'Cluster', 'Collective', 'CollectiveModel', 'CollectiveSample', 'ComposedPipeline', 'ComposedStage', 'ConfigPorts', 'DEFAULT_CONDITIONING_WORK', 'DeclaredRule', 'Device', 'EdgeEnd', 'EdgeRow', 'EmittedCall', 'EmittedLookup', 'EmittedReshard', 'EncodedProgram', 'EstimateRow', 'Exclusion', 'ExplanationRow', 'Graph', 'Halo', 'InternalError', 'Level', 'LinkSpeed', 'LocalCall', 'LocalForm', 'LocalOperand', 'MeasuredCollectives', 'Mesh', 'NodeId', 'NodeKind', 'NodeRow', 'NodeUnits', 'OpSample', 'OpWork', 'OutputRow', 'PipelineShape', 'PortLayouts', 'RankProgram', 'Ref', 'ReshardedTensor', 'Rules', 'RuntimeOverheads', 'Saved', 'SearchOptions', 'SearchResult', 'SearchSpace', 'SpaceEdgeId', 'SpaceNodeId', 'SpaceOptions', 'SpaceSetup', 'StageChoice', 'StageTime', 'Strategy', 'SupportingLines', 'TensorResharder', 'UnevenSplit', 'ValueId', 'WorkRow', 'compose_pipelines', 'current_rules', 'declare_rule', 'longest_useful', 'pipeline_step_s', 'torch_release', 'withdraw_rule']
class InternalError(RuntimeError):
    pass
class Mesh:
    """
    All devices of a job: (size, level) per mesh axis, outermost first.
    """
    def __init__(self, axes: collections.abc.Sequence[tuple[int, int]]) -> None:
        ...
    def canonical(self, axes: int) -> int:
        """
        The set of the first axes alike to those of the set: equal for sets over which collectives cost the same.
        """
    def group_of(self, axes: int, rank: int) -> list[int]:
        """
        The ranks that differ from `rank` along these axes only, ascending.
        """
    @property
    def num_devices(self) -> int:
        ...
class Collective:
    """
    Members:
    
      ALL_REDUCE
    
      ALL_GATHER
    
      REDUCE_SCATTER
    
      ALL_TO_ALL
    
      BROADCAST
    """
    ALL_GATHER: typing.ClassVar[Collective]
    ALL_REDUCE: typing.ClassVar[Collective]
    ALL_TO_ALL: typing.ClassVar[Collective]
    BROADCAST: typing.ClassVar[Collective]
    REDUCE_SCATTER: typing.ClassVar[Collective]
    __members__: typing.ClassVar[dict[str, Collective]]
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: int) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: int) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class Device:
    """
    One device; see comm/cluster.h.
    """
    def __init__(self, *, name: str = 'device', memory_bytes: float = 16000000000.0, memory_bandwidth_bytes_per_s: float = 100000000000.0, launch_overhead_s: float = 5e-06, host_launch_s: float = 0.0, peak_flops_per_s: collections.abc.Mapping[str, float] = {'float32': 1000000000000.0}, matmul_efficiency: float = 0.6, memory_efficiency: float = 0.8, attention_efficiency: float | None = None) -> None:
        ...
class LinkSpeed:
    """
    What messages reach over a link of a level.
    """
    def __init__(self, bandwidth_bytes_per_s: float, latency_s: float) -> None:
        ...
class Level:
    """
    One kind of network; the bandwidth is that of one unit's link into it. Collectives may reach other figures.
    """
    def __init__(self, *, name: str, count: int, bandwidth_bytes_per_s: float, latency_s: float, collectives: collections.abc.Mapping[Collective, LinkSpeed] = {}) -> None:
        ...
class Cluster:
    """
    Levels go from outer to inner.
    """
    def __init__(self, name: str, device: Device, levels: collections.abc.Sequence[Level]) -> None:
        ...
    @property
    def device(self) -> Device:
        ...
class CollectiveSample:
    """
    How long a collective of so many bytes took.
    """
    def __init__(self, bytes: float, time_s: float) -> None:
        ...
class CollectiveModel:
    def time_s(self, collective: Collective, axes: int, bytes: float) -> float:
        """
        Seconds of one group while all groups over these axes are active.
        """
class AnalyticCollectives(CollectiveModel):
    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        ...
class MeasuredCollectives(CollectiveModel):
    def __init__(self, mesh: Mesh, table: collections.abc.Mapping[tuple[Collective, int], collections.abc.Sequence[CollectiveSample]], fallback: CollectiveModel) -> None:
        """
        `table`: samples by collective and axis set.
        """
    def is_measured(self, collective: Collective, axes: int) -> bool:
        ...
class EncodedProgram:
    """
    A reshard as the operator tensoropt::reshard takes it: integers of its steps, and the axis sets of its groups; reshard/encode.h.
    """
    @property
    def groups(self) -> list[int]:
        ...
    @property
    def steps(self) -> list[int]:
        ...
class ReshardedTensor:
    """
    A tensor, of bytes per element. With `uneven` its parts may differ; `units` as in NodeUnits.
    """
    def __init__(self, *, shape: collections.abc.Sequence[int], item_size: int, uneven: bool = False, units: collections.abc.Sequence[int] = []) -> None:
        ...
class TensorResharder:
    """
    Fastest reshards of one tensor; see reshard/resharder.h.
    """
    def __init__(self, mesh: Mesh, collectives: CollectiveModel, device: Device, tensor: ReshardedTensor) -> None:
        ...
    def describe(self, from_layout: str, to_layout: str) -> str:
        """
        The steps in words.
        """
    def encode(self, from_layout: str, to_layout: str, rank: int) -> EncodedProgram:
        """
        As the operator tensoropt::reshard takes it.
        """
class Ref:
    """
    A tensor argument: a value's id.
    """
    def __init__(self, id: ValueId) -> None:
        ...
class NodeKind:
    """
    Members:
    
      INPUT
    
      PARAMETER
    
      CONSTANT
    
      OP
    
      OUTPUT
    """
    CONSTANT: typing.ClassVar[NodeKind]
    INPUT: typing.ClassVar[NodeKind]
    OP: typing.ClassVar[NodeKind]
    OUTPUT: typing.ClassVar[NodeKind]
    PARAMETER: typing.ClassVar[NodeKind]
    __members__: typing.ClassVar[dict[str, NodeKind]]
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: int) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: int) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class Graph:
    """
    The model as the core sees it, in execution order.
    """
    def __init__(self) -> None:
        ...
    def add_op(self, name: str, target: str, arguments: collections.abc.Sequence[tuple[str, typing.Any]], outputs: collections.abc.Sequence[tuple[collections.abc.Sequence[int], str]], *, differentiable: bool = True) -> list[ValueId]:
        """
        Adds an operator; returns the value ids of its outputs.
        """
    def add_source(self, kind: NodeKind, name: str, meta: tuple[collections.abc.Sequence[int], str], *, trainable: bool = True, even_dims: collections.abc.Sequence[int] = []) -> ValueId:
        """
        Adds an input, parameter or constant; returns its value id.
        """
    def num_nodes(self) -> int:
        ...
    def set_outputs(self, values: collections.abc.Sequence[ValueId]) -> NodeId:
        ...
class DeclaredRule:
    """
    A user's rule as data; csrc/rules/declared_rule.h.
    """
    flops: collections.abc.Callable[[collections.abc.Sequence[collections.abc.Sequence[int]]], float]
    functions: str
    random: bool
    repeatable: bool
    def __init__(self, target: str, pattern: str, tensors: collections.abc.Sequence[str]) -> None:
        ...
    def set_local(self, arg0: collections.abc.Callable[[dict[str, typing.Any], dict[str, int], dict[str, int]], dict[str, typing.Any]]) -> None:
        ...
    @property
    def additive(self) -> list[str]:
        ...
    @additive.setter
    def additive(self, arg0: collections.abc.Sequence[str]) -> None:
        ...
    @property
    def flops_per_element(self) -> float:
        ...
    @flops_per_element.setter
    def flops_per_element(self, arg0: float) -> None:
        ...
    @property
    def linear_in(self) -> list[list[str]]:
        ...
    @linear_in.setter
    def linear_in(self, arg0: collections.abc.Sequence[collections.abc.Sequence[str]]) -> None:
        ...
    @property
    def mean(self) -> list[str]:
        ...
    @mean.setter
    def mean(self, arg0: collections.abc.Sequence[str]) -> None:
        ...
    @property
    def saves(self) -> list[str]:
        ...
    @saves.setter
    def saves(self, arg0: collections.abc.Sequence[str]) -> None:
        ...
    @property
    def saves_outputs(self) -> list[int]:
        ...
    @saves_outputs.setter
    def saves_outputs(self, arg0: collections.abc.Sequence[int]) -> None:
        ...
    @property
    def sizes(self) -> dict[str, str]:
        ...
    @sizes.setter
    def sizes(self, arg0: collections.abc.Mapping[str, str]) -> None:
        ...
class Rules:
    """
    The operators that had a rule at some time.
    """
    def declaration(self, target: str) -> str:
        """
        What a user declared; empty if the operator came with its rule.
        """
    def targets(self) -> list[str]:
        ...
class Saved:
    """
    What becomes of a value that backward needs; cost/saved.h.
    
    Members:
    
      NOTHING
    
      REMADE
    
      KEPT
    
      KEPT_TWICE
    """
    KEPT: typing.ClassVar[Saved]
    KEPT_TWICE: typing.ClassVar[Saved]
    NOTHING: typing.ClassVar[Saved]
    REMADE: typing.ClassVar[Saved]
    __members__: typing.ClassVar[dict[str, Saved]]
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: int) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: int) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def edge_word(self) -> str:
        """
        Which copies stay in memory on an edge.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class NodeRow:
    """
    A node of a strategy space; describe/descriptions.h.
    """
    @property
    def configs(self) -> list[str]:
        ...
    @property
    def graph_node(self) -> NodeId:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def saved(self) -> list[Saved]:
        ...
    @property
    def splits(self) -> list[str]:
        ...
    @property
    def target(self) -> str:
        ...
class PortLayouts:
    """
    Layouts of a value and of its gradient.
    """
    @property
    def gradient(self) -> str:
        ...
    @property
    def value(self) -> str:
        ...
class ConfigPorts:
    """
    What a config takes and gives.
    """
    @property
    def inputs(self) -> list[PortLayouts]:
        ...
    @property
    def outputs(self) -> list[PortLayouts]:
        ...
class NodeUnits:
    """
    How many neighbouring entries of each dim are never parted; empty: single ones.
    """
    @property
    def operands(self) -> list[list[int]]:
        ...
    @property
    def outputs(self) -> list[list[int]]:
        ...
class OutputRow:
    """
    In which dim an output has the rows of the batch (-1: in none), and whether it depends on them.
    """
    @property
    def depends(self) -> bool:
        ...
    @property
    def dim(self) -> int:
        ...
class EdgeEnd:
    """
    Where the value of an edge goes.
    """
    @property
    def graph_node(self) -> NodeId:
        ...
    @property
    def operand(self) -> int:
        ...
    @property
    def value(self) -> ValueId:
        ...
class EdgeRow:
    """
    What happens to a value on the way to a consumer.
    """
    @property
    def gradient_from(self) -> str:
        ...
    @property
    def gradient_to(self) -> str:
        ...
    @property
    def held(self) -> bool:
        ...
    @property
    def layout_from(self) -> str:
        ...
    @property
    def layout_to(self) -> str:
        ...
    @property
    def saved(self) -> Saved:
        ...
    @property
    def source(self) -> str:
        ...
    @property
    def summed(self) -> bool:
        ...
    @property
    def target(self) -> str:
        ...
    @property
    def value(self) -> ValueId:
        ...
class WorkRow:
    """
    An operator's FLOPs, and what splits them by mesh axis.
    """
    @property
    def flops(self) -> float:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def splits(self) -> list[str]:
        ...
class EstimateRow:
    """
    The time of an operator, and where that is from.
    """
    @property
    def again_s(self) -> float:
        ...
    @property
    def error(self) -> float:
        ...
    @property
    def family(self) -> str:
        ...
    @property
    def key(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def node(self) -> SpaceNodeId:
        ...
    @property
    def source(self) -> str:
        ...
    @property
    def time_s(self) -> float:
        ...
class UnevenSplit:
    """
    A factor that is not cut into so many parts.
    """
    @property
    def equal(self) -> bool:
        ...
    @property
    def factor(self) -> str:
        ...
    @property
    def parts(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
class Exclusion:
    """
    A factor that is not split.
    """
    @property
    def factor(self) -> str:
        ...
    @property
    def reason(self) -> str:
        ...
class ExplanationRow:
    """
    Why a node has its configs; describe/explain.h.
    """
    @property
    def even_memory_bytes(self) -> float:
        ...
    @property
    def even_time_s(self) -> float:
        ...
    @property
    def exclusions(self) -> list[Exclusion]:
        ...
    @property
    def flops(self) -> float:
        ...
    @property
    def max_runs(self) -> int | None:
        ...
    @property
    def memory_bytes(self) -> float:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def num_configs(self) -> int:
        ...
    @property
    def num_in_any_order(self) -> int | None:
        ...
    @property
    def num_without_budget(self) -> int | None:
        ...
    @property
    def parts(self) -> int:
        ...
    @property
    def rule(self) -> str:
        ...
    @property
    def target(self) -> str:
        ...
    @property
    def time_s(self) -> float:
        ...
    @property
    def uneven_splits(self) -> list[UnevenSplit]:
        ...
class Halo:
    """
    What operand 0 borrows from its neighbours; rules/rule.h.
    """
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __hash__(self) -> int:
        ...
    @property
    def axes(self) -> int:
        ...
    @property
    def dim(self) -> int:
        ...
    @property
    def fill(self) -> float:
        ...
    @property
    def high(self) -> int:
        ...
    @property
    def low(self) -> int:
        ...
class AveragedBuffer:
    """
    A buffer of which a call changes the entries `own` (first, how many), on each rank by what that has of the others' data. It becomes the mean over the ranks along `axes`, of which those along `joined` change other entries.
    """
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __hash__(self) -> int:
        ...
    @property
    def axes(self) -> int:
        ...
    @property
    def joined(self) -> int:
        ...
    @property
    def operand(self) -> int:
        ...
    @property
    def own(self) -> tuple[int, int]:
        ...
class LocalForm:
    """
    How the call on one rank differs from that of the whole operator; rules/rule.h.
    """
    @property
    def arguments(self) -> dict[str, None | bool | int | float | str | list[int] | list[float]]:
        ...
    @property
    def averaged(self) -> list[AveragedBuffer]:
        ...
    @property
    def extra(self) -> list[None | bool | int | float | str | list[int] | list[float]]:
        ...
    @property
    def groups(self) -> list[int]:
        ...
    @property
    def halos(self) -> list[Halo]:
        ...
    @property
    def operands(self) -> list[str]:
        ...
    @property
    def scale(self) -> float:
        ...
    @property
    def target(self) -> str:
        ...
class EmittedLookup:
    """
    An operand to be checked before the call: its numbers are `low` to `high` - 1, or `ignored`; emit/rank_program.h.
    """
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    def __hash__(self) -> int:
        ...
    @property
    def axes(self) -> int:
        ...
    @property
    def high(self) -> int:
        ...
    @property
    def ignored(self) -> int | None:
        ...
    @property
    def low(self) -> int:
        ...
    @property
    def operand(self) -> int:
        ...
class EmittedCall:
    """
    A call as a rank's program makes it.
    """
    @property
    def form(self) -> LocalForm:
        ...
    @property
    def lookups(self) -> list[EmittedLookup]:
        ...
    @property
    def random(self) -> bool:
        ...
    @property
    def saved(self) -> Saved:
        ...
    @property
    def shard_index(self) -> int:
        ...
class OpWork:
    """
    What one rank computes for one operator.
    """
    def __init__(self, *, dtype: str, forward_flops: float, backward_flops: float, bytes: float, launches: float, backward: bool, view: bool) -> None:
        ...
    @property
    def backward(self) -> bool:
        ...
    @property
    def backward_flops(self) -> float:
        ...
    @property
    def bytes(self) -> float:
        ...
    @property
    def dtype(self) -> str:
        ...
    @property
    def forward_flops(self) -> float:
        ...
    @property
    def launches(self) -> float:
        ...
    @property
    def view(self) -> bool:
        ...
class OpSample:
    """
    A measured call; op_profile.h.
    """
    def __init__(self, *, key: str, family: str, work: OpWork, forward_s: float, backward_s: float) -> None:
        ...
class LocalOperand:
    """
    A rank's part of a tensor.
    """
    @property
    def dtype(self) -> str:
        ...
    @property
    def requires_grad(self) -> bool:
        ...
    @property
    def shape(self) -> list[int]:
        ...
class LocalCall:
    """
    A call by what its time depends on; cost/local_call.h.
    """
    @property
    def family(self) -> str:
        ...
    @property
    def form(self) -> LocalForm:
        ...
    @property
    def key(self) -> str:
        ...
    @property
    def operands(self) -> list[LocalOperand]:
        ...
    @property
    def random(self) -> bool:
        ...
    @property
    def work(self) -> OpWork:
        ...
class RuntimeOverheads:
    """
    What the runtime takes; cost/machine.h.
    """
    def __init__(self, *, reshard_s: float = 0.0, collective_s: float = 0.0, parameter_s: float = 0.0, update_s_per_byte: float = 0.0, exposed_parameters: float = 1.0, exposed_gradients: float = 1.0) -> None:
        ...
class SpaceOptions:
    """
    Which strategies there are; space/space.h.
    """
    def __init__(self, *, space: str, optimizer_state_bytes: collections.abc.Mapping[str, float], sharded_inputs: bool, whole_inputs: collections.abc.Set[str] = set(), input_dims: collections.abc.Mapping[str, int] = {}, row_axes: int | None = None, loss_output: int = -1, storage: collections.abc.Mapping[str, str] = {}, max_configs: int, split_spatial: bool, reduce_dtype: str, bucket_bytes: float = 0.0, shard_bytes: float = 0.0, recompute: bool = False, compiled: bool = False, idle_configs: bool = False) -> None:
        ...
class SpaceSetup:
    """
    Where and how a model runs.
    """
    def __init__(self, *, cluster: Cluster, mesh: Mesh, space: SpaceOptions, collectives: collections.abc.Mapping[tuple[Collective, int], collections.abc.Sequence[CollectiveSample]] = {}, operators: collections.abc.Sequence[OpSample] = [], overheads: RuntimeOverheads = ..., micro_batches: int = 1, in_flight: int = 1) -> None:
        ...
class SearchOptions:
    """
    How to search; search/frontier_tracking.h.
    """
    def __init__(self, *, algorithm: str, epsilon: float, memory_limit: float, num_threads: int, heuristics: collections.abc.Sequence[float], max_conditioning_work: float, use_bounds: bool, pick_limits: collections.abc.Sequence[float], only_picks: bool, others: collections.abc.Sequence[tuple[float, float]]) -> None:
        ...
class Strategy:
    """
    One config per space node, one choice per edge.
    """
    def __init__(self, config: collections.abc.Sequence[int], edge_tag: collections.abc.Sequence[int]) -> None:
        ...
    @property
    def config(self) -> list[int]:
        ...
    @property
    def memory(self) -> float:
        ...
    @property
    def time(self) -> float:
        ...
class SearchResult:
    def unroll(self, point: int) -> Strategy:
        ...
    @property
    def epsilon(self) -> float:
        ...
    @property
    def exact(self) -> bool:
        ...
    @property
    def heuristics(self) -> list[float]:
        ...
    @property
    def min_memory(self) -> float:
        ...
    @property
    def min_time(self) -> float:
        ...
    @property
    def points(self) -> list[tuple[float, float]]:
        """
        (bytes, seconds) of each.
        """
    @property
    def stats(self) -> dict[str, int | float]:
        ...
class SupportingLines:
    """
    What strategies cost at least; search/supporting_lines.h.
    """
    def least_seconds(self, most_bytes: float) -> float:
        """
        Of a strategy with at most so many bytes.
        """
    def steps(self, limits: collections.abc.Sequence[float]) -> list[tuple[float, float]]:
        """
        (bytes, seconds): the last one of less memory than a limit, of these or none, takes no more time than any strategy of less memory than that.
        """
    @property
    def least_bytes(self) -> float:
        ...
class SearchSpace:
    """
    The strategies of one model on one mesh.
    """
    def __init__(self, graph: Graph, rules: Rules, setup: SpaceSetup) -> None:
        ...
    def baseline(self, name: str, epsilon: float, num_threads: int = 0, pick_limits: collections.abc.Sequence[float] = []) -> BaselineResult:
        ...
    def blocked_node(self, allowed: collections.abc.Sequence[collections.abc.Sequence[bool]]) -> str | None:
        """
        The name of a node that cannot be combined with its neighbours if only these configs are allowed; None if there is none.
        """
    def build(self, num_threads: int = 0) -> None:
        """
        Computes all cost tables (search does it when it is not done).
        """
    def build_in_flight(self, numbers: collections.abc.Sequence[int], num_threads: int = 0) -> None:
        """
        Computes the cost tables for these numbers of micro-batches in flight.
        """
    def check_edges(self, strategy: Strategy) -> None:
        """
        Raises if a value cannot go to a consumer as the strategy says.
        """
    def choices(self, strategy: Strategy) -> tuple[list[tuple[str, str]], list[tuple[SpaceEdgeId, str, str]]]:
        """
        Name and config of each node; number and name of edges and what is kept there; describe/strategy_names.h.
        """
    def compute_time(self, strategy: Strategy) -> float:
        """
        Seconds of all else that a strategy does.
        """
    def edges(self) -> list[EdgeEnd]:
        """
        Where every edge goes.
        """
    def edges_of(self, strategy: Strategy) -> list[EdgeRow]:
        """
        What a strategy does on every edge.
        """
    def estimates(self, strategy: Strategy) -> list[EstimateRow]:
        """
        For each operator its time and where that is from.
        """
    def explain(self) -> list[ExplanationRow]:
        """
        Of each operator and parameter.
        """
    def host_time(self, strategy: Strategy) -> float:
        """
        Seconds of the host, which a step takes at least; describe/host_time.h.
        """
    def least_memory(self, options: SearchOptions) -> float:
        """
        Bytes per device of the strategy that needs the fewest, whatever the error that is allowed; takes less than a search.
        """
    def least_of_parts(self, places: collections.abc.Sequence[int], parts: collections.abc.Sequence[tuple[int, int, int]], *, weightings: int, epsilon: float, memory_limit: float, num_threads: int) -> list[SupportingLines]:
        """
        What strategies of parts (first place, last place, number in flight) cost at least, where each node of the graph has a place.
        """
    def local_call(self, node: SpaceNodeId, config: int, rank: int = 0) -> LocalCall:
        """
        The call that a rank makes in a config; cost/local_call.h.
        """
    def may_improve_in_flights(self, numbers: collections.abc.Sequence[int], options: SearchOptions) -> bool:
        """
        Whether strategies may improve on the others of the options, with a number in flight of its own for each node of the graph.
        """
    def network_time(self, strategy: Strategy) -> float:
        """
        Seconds of a strategy's reshards and inner collectives.
        """
    def nodes(self) -> list[NodeRow]:
        ...
    def output_rows(self, dims: collections.abc.Mapping[str, int]) -> list[OutputRow]:
        """
        For each output in which dim it has the rows that inputs have in these dims, and whether it depends on them.
        """
    def parameter_copies(self) -> list[NodeId]:
        """
        Graph nodes that cast a parameter to a narrower dtype; space/parameter_copies.h.
        """
    def play(self, roles: collections.abc.Sequence[tuple[str, int]], options: SearchOptions) -> BaselineResult:
        """
        The frontier when each mesh axis plays a role, given as (kind, name of a dim or -1), csrc/baselines/axis_roles.h; the memory limit is ignored.
        """
    def ports(self, node: SpaceNodeId) -> list[ConfigPorts]:
        """
        Layouts at all ports of a node, by config.
        """
    def random_strategy(self, seed: int, greed: float = 0.0) -> Strategy:
        ...
    def restrict_to(self, allowed: collections.abc.Sequence[collections.abc.Sequence[bool]]) -> None:
        """
        From now on only the configs of each space node that it marks.
        """
    def search(self, options: SearchOptions, allowed: collections.abc.Sequence[collections.abc.Sequence[bool]] = []) -> SearchResult:
        ...
    def search_in_flight(self, number: int, options: SearchOptions) -> SearchResult:
        """
        As search, with so many micro-batches in flight, of which the tables were built.
        """
    def strategy(self, configs: collections.abc.Sequence[str], edges: collections.abc.Mapping[SpaceEdgeId, str]) -> Strategy:
        """
        The strategy with these configs by node, and so on the edges with these numbers, without its costs.
        """
    def units_of_node(self, graph_node: NodeId) -> NodeUnits:
        ...
    def work(self, strategy: Strategy) -> list[WorkRow]:
        """
        What splits operators.
        """
    @property
    def complete(self) -> bool:
        ...
    @property
    def named_dims(self) -> list[int]:
        """
        The sizes of named dims, the batch first.
        """
class BaselineResult:
    def unroll(self, point: int) -> Strategy:
        ...
    @property
    def exact(self) -> bool:
        ...
    @property
    def points(self) -> list[tuple[float, float]]:
        """
        (bytes, seconds) of each.
        """
class EmittedReshard:
    """
    What an edge of the space stands for on a rank; emit/rank_program.h.
    """
    @property
    def backward(self) -> EncodedProgram:
        ...
    @property
    def casts(self) -> bool:
        ...
    @property
    def dtype(self) -> str:
        ...
    @property
    def forward(self) -> EncodedProgram:
        ...
    @property
    def gathered_dim(self) -> int | None:
        ...
    @property
    def held(self) -> bool:
        ...
    @property
    def is_bucketed(self) -> bool:
        ...
    @property
    def reduce_dtype(self) -> str:
        ...
    @property
    def saved(self) -> Saved:
        ...
    @property
    def source_saved(self) -> Saved:
        ...
    @property
    def summed(self) -> bool:
        ...
    @property
    def value_bytes(self) -> float:
        ...
class RankProgram:
    """
    What one rank runs for one strategy.
    """
    def __init__(self, space: SearchSpace, strategy: Strategy, rank: int) -> None:
        ...
    def call(self, graph_node: NodeId) -> EmittedCall:
        ...
    def gradient_layout(self, edge: SpaceEdgeId) -> str:
        ...
    def layout_of(self, value: ValueId) -> str:
        ...
    def reshard(self, edge: SpaceEdgeId) -> EmittedReshard:
        ...
class StageChoice:
    """
    What a stage may be: what lies between two cuts.
    """
    def __init__(self, *, stage: int, first_cut: int, last_cut: int, first_layout: int = 0, last_layout: int = 0, transfer_s: float = 0.0, points: collections.abc.Sequence[tuple[float, float]]) -> None:
        """
        points: (bytes, seconds of a step) by ascending bytes; transfer_s: of one micro-batch at the last cut, and of its gradients.
        """
class PipelineShape:
    def __init__(self, *, stages: int, micro_batches: int, end: int, schedule: str = '1f1b', forward_share: float = 0.3333333333333333, memory_step: float = 0.0, pick_limits: collections.abc.Sequence[float] = []) -> None:
        """
        end: the cut where the model ends; memory_step: pipelines within this share of memory stand for each other; pick_limits: bytes at which the result will be picked from.
        """
class ComposedStage:
    @property
    def choice(self) -> int:
        """
        Its number among the choices.
        """
    @property
    def point(self) -> int:
        """
        The number of its point.
        """
class ComposedPipeline:
    @property
    def memory_bytes(self) -> float:
        """
        Of the stage that needs most.
        """
    @property
    def stages(self) -> list[ComposedStage]:
        ...
    @property
    def time_s(self) -> float:
        ...
class StageTime:
    """
    Seconds of one micro-batch.
    """
    def __init__(self, forward_s: float, backward_s: float, transfers_s: float = 0.0) -> None:
        ...
def compose_pipelines(choices: collections.abc.Sequence[StageChoice], shape: PipelineShape) -> list[ComposedPipeline]:
    """
    The frontier of pipelines; pipeline/composition.h.
    """
def current_rules() -> Rules:
    """
    All operators that have a rule now.
    """
def declare_rule(arg0: DeclaredRule) -> None:
    ...
def longest_useful(least: collections.abc.Sequence[StageChoice], shape: PipelineShape, known: collections.abc.Sequence[tuple[float, float]]) -> list[list[float]]:
    """
    By choice: how long it may take with less memory than all known strategies, and with at least that of each; pipeline/stage_limits.h.
    """
def pipeline_step_s(stages: collections.abc.Sequence[StageTime], micro_batches: int, schedule: str = '1f1b') -> float:
    """
    In closed form; pipeline/step_time.h.
    """
def torch_release() -> str:
    """
    The minor release of PyTorch that this was built for: '2.13'.
    """
def withdraw_rule(arg0: str) -> None:
    ...
DEFAULT_CONDITIONING_WORK: float = 1000000000000.0
NodeId = typing.NewType("NodeId", int)
SpaceEdgeId = typing.NewType("SpaceEdgeId", int)
SpaceNodeId = typing.NewType("SpaceNodeId", int)
ValueId = typing.NewType("ValueId", int)
