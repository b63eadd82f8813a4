"""Records of what a rank does: what holds of any list of them, and what single passes make of
small ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit import eager_writer as writer
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program import records as r
from tensoropt_torch.program.confirmation import confirmed
from tensoropt_torch.program.forward_sums import with_sums_joined
from tensoropt_torch.program.overlap import in_queue, with_values_begun
from tensoropt_torch.program.passes import RankRecords
from tensoropt_torch.program.places import before_sums
from tensoropt_torch.program.records import Value, check, given, taken, taking
from tensoropt_torch.space.search_space import make_space
from tests.distributed.models import make

ADD = torch.ops.aten.add.Tensor
COPY = torch.ops.aten.copy_.default
CPU = torch.device("cpu")
GATHER = (0, 0, -1, 0, 2, 0)


class Code(NamedTuple):
    """An encoded program and the axis sets of its groups."""

    steps: Sequence[int] = ()
    groups: Sequence[int] = ()


NOTHING = Code()


@dataclass(frozen=True)
class Programs:
    """What C++ says of a reshard, with any numbers: one that gathers over groups of two."""

    forward: Code
    value_bytes: float = 8
    gathered_dim: int | None = 0
    is_bucketed: bool = True
    backward: Code = NOTHING
    saved: _C.Saved = _C.Saved.KEPT
    source_saved: _C.Saved = _C.Saved.KEPT
    held: bool = False
    casts: bool = False
    dtype: str = "float32"
    reduce_dtype: str = "float32"


def programs(groups: Sequence[int], num_bytes: float = 8, **others: Any) -> Any:
    return Programs(Code(GATHER if groups else (), groups), num_bytes, **others)


def test_reshards_of_small_lists_are_as_those_of_plans() -> None:
    own = {part.name for part in fields(Programs)}
    assert own <= {name for name in dir(_C.EmittedReshard) if not name.startswith("_")}


def output(value: Value) -> r.Output:
    return r.Output((value,), fx.Graph().placeholder("x"))


def kinds(records: Sequence[r.Record]) -> str:
    """Their types, in order."""
    return " ".join(type(record).__name__ for record in records)


# --- All lists ---------------------------------------------------------------------------------


def test_a_value_is_given_once_and_before_it_is_taken() -> None:
    x, y = Value(), Value()
    first, then = r.Input(x, "x"), r.Call(y, ADD, (x, x))
    check([first, then, output(y)])
    for wrong, words in (
        ([then, first, output(y)], "takes what no record before it gives"),
        ([first, replace(then, result=x), output(x)], "gives what another record gives"),
        ([first, then], "0 outputs"),
        ([first, output(x), then], "1 outputs"),
    ):
        with pytest.raises(AssertionError, match=words):
            check(wrong)


def test_values_are_found_in_containers() -> None:
    a, b, c, d = (Value() for _ in range(4))
    call = r.Call(d, ADD, ([a, (b, 2)],), {"other": [c]}, operands=(a,))
    assert list(given(call)) == [d]
    assert list(taken(call)) == [a, b, c, a]
    changed = taking(call, {a: b, c: d})
    assert isinstance(changed, r.Call)
    assert (changed.args, changed.kwargs) == (([b, (b, 2)],), {"other": [d]})
    assert taking(call, {Value(): b}) is call
    sums = r.Reduce((d,), (a,), r.Buffers((b,), (0,), (1,), (2,)), "g")
    assert list(taken(sums)) == [a, b]
    assert list(taken(taking(sums, {b: c}))) == [a, c]


def zoo() -> Iterator[tuple[str, RankPart]]:
    for name in ("gpt_tied", "resnet", "recommender", "mixed"):
        case = make(name, torch.float32)
        captured = capture(case.model, case.args, **case.keywords)
        task = PlanningTask(captured, load_cluster("cpu"), recompute=True)
        settings = task.settings(4)
        space = make_space(captured, settings)
        for seed in range(4):
            own = replace(settings, overlap=seed % 2 == 0)
            plan = Plan.of(space, own, captured, space.random_strategy(seed))
            yield f"{name}, seed {seed}", RankPart(plan, captured, seed)


def test_every_record_of_plans_is_data_and_is_written() -> None:
    """Nothing of a graph that is written is in records, so that others may write them."""
    seen: set[type] = set()
    for name, part in zoo():
        own = part.records(CPU, lambda axes: f"group {axes}")
        check(own.records)
        seen |= {type(record) for record in own.records}
        assert not any(isinstance(record, r.Operation) for record in own.records), name
        graph = writer.EagerWriter(own).emit()
        given_ones = [value for record in own.records for value in given(record)]
        assert len(graph.graph.nodes) >= len(given_ones)
        again = writer.EagerWriter(own).emit()
        assert graph.code == again.code, name
    assert seen >= {r.Reshard, r.ReshardParameter, r.BeginValues, r.Keep, r.Reduce, r.Confirm}
    assert set(writer._WRITE) == set(r.Record.__args__) - {r.Operation}


def run(program: RankRecords, inputs: Sequence[Any]) -> Any:
    """What records compute: another reader of them, of a rank that is alone."""
    values: dict[Value, Any] = {}
    rest = iter(inputs)

    def filled(tree: Any) -> Any:
        return fx.node.map_aggregate(tree, lambda v: values[v] if isinstance(v, Value) else v)

    for record in program.records:
        match record:
            case r.Input(result):
                values[result] = next(rest)
            case r.Item(result, source, index, function):
                values[result] = function(values[source], index)
            case r.Call(result, function, args, kwargs):
                values[result] = function(*filled(args), **filled(dict(kwargs)))
            case r.Scale(result, source, factor):
                values[result] = values[source] * factor
            case r.Copy(result, source):
                values[result] = values[source].clone()
            case r.Output(outputs):
                return filled(outputs)
            case r.CheckLookup() | r.Confirm() | r.Keep():
                pass
            case _:
                raise AssertionError(f"one rank does not need {record}")
    raise AssertionError("no output")


@pytest.mark.parametrize("name", ["gpt_tied", "lstm", "mixed", "vgg"])
def test_another_reader_computes_what_the_graph_computes(name: str) -> None:
    case = make(name, torch.float64)
    captured = capture(case.model, case.args, **case.keywords)
    settings = PlanningTask(captured, load_cluster("cpu")).settings(1)
    space = make_space(captured, settings)
    plan = Plan.of(space, settings, captured, space.random_strategy(0))
    program = RankPart(plan, captured, 0).records(CPU, str)
    batch = iter(torch.utils._pytree.tree_leaves((case.args, case.targets)))
    named = dict(case.model.named_parameters()) | dict(case.model.named_buffers())
    own = {**captured.constants, **{n: t.detach() for n, t in named.items()}}
    inputs = [
        next(batch)
        if source.kind in ("input", "literal")
        else own[source.names[0]].view(source.placeholder.meta["val"].shape)
        for source in captured.sources
    ]
    expected = writer.EagerWriter(program).emit().forward(*inputs, 0)
    for a, b in zip(run(program, [*inputs, 0]), expected, strict=True):
        assert torch.equal(a, b)


# --- Single passes -----------------------------------------------------------------------------


def test_ranks_confirm_before_what_is_seen_outside() -> None:
    x, y, z = Value(), Value(), Value()
    inputs = [r.Input(x, "x")]
    add = r.Call(y, ADD, (x, x))
    for seen in (
        r.Call(z, COPY, (x, y)),
        r.Reshard(z, y, programs([1]), 0),
        r.ExchangeHalo(z, y, (0, 1, 1, 0.0), "g"),
        r.Call(z, ADD, (y, y), groups=("g",)),
        r.Reduce((z,), (y,), r.Buffers(), "g"),
    ):
        found = confirmed([*inputs, add, seen, output(z)])
        assert kinds(found) == f"Input Call Confirm {type(seen).__name__} Output"
    for unseen in (
        r.Reshard(z, y, programs([]), 0),
        r.Call(z, COPY, (x, y), runs_again=True),
        r.ExchangeHalo(z, y, (0, 1, 1, 0.0), ""),
    ):
        found = confirmed([*inputs, add, unseen, output(z)])
        assert kinds(found) == f"Input Call {type(unseen).__name__} Confirm Output"


def test_what_a_group_sums_at_the_end_is_one_collective() -> None:
    x, a, b, c, d = (Value() for _ in range(5))
    first = r.Reduce((a,), (x,), r.Buffers(), "g", at_end=True)
    buffers = r.Reduce((), (), r.Buffers((x,), (0,), (1,), (2,)), "g", at_end=True)
    early = r.Reduce((d,), (x,), r.Buffers(), "g")
    records: list[r.Record] = [r.Input(x, "x"), early, first, r.SumOf(b, a, x, "g"), buffers]
    records += [r.Reduce((c,), (x,), r.Buffers(), "h", at_end=True), output(b)]
    found = with_sums_joined(records)
    assert kinds(found) == "Input Reduce Reduce SumOf Reduce Output"
    joined = found[2]
    assert isinstance(joined, r.Reduce)
    assert joined.results == (a,) and joined.shares == (x,) and joined.buffers == buffers.buffers
    assert found[1] is early


def test_what_is_put_where_forward_ends_comes_before_its_sums() -> None:
    x, y = Value(), Value()
    end = r.Reduce((y,), (x,), r.Buffers(), "g", at_end=True)
    added = r.Copy(Value(), x)
    assert kinds(before_sums([r.Input(x, "x"), end, output(y)], [added])) == (
        "Input Copy Reduce Output"
    )


def parameters(sizes: Sequence[float], **others: Any) -> tuple[list[r.Record], dict[Any, Value]]:
    """Reshards of some, each used at once."""
    sources, results = ([Value() for _ in sizes] for _ in range(2))
    records: list[r.Record] = [r.Input(source, f"p{i}") for i, source in enumerate(sources)]
    for i, size in enumerate(sizes):
        records.append(r.Reshard(results[i], sources[i], programs([1], size, **others), i))
        records.append(r.Copy(Value(), results[i]))
    edges = dict(enumerate(sources))
    return [*records, output(results[-1])], edges


def test_small_parameters_are_gathered_together() -> None:
    records, edges = parameters([8, 8, 8, 100])
    queued = in_queue(records, edges, overlap=False, bucket_bytes=0, shard_bytes=16)
    check(queued)
    found = with_values_begun(queued, values_ahead=False, shard_bytes=16)
    reshard = "ReshardParameter Copy"
    assert kinds(found) == (
        f"{'Input ' * 4}TakeParameters BeginValues {reshard} {reshard} BeginValues {reshard} "
        f"{reshard} Output"
    )
    begun = [record for record in found if isinstance(record, r.BeginValues)]
    assert [record.slots for record in begun] == [(0, 1), (2, 3)]


def test_values_begin_while_those_before_them_are_used() -> None:
    records, edges = parameters([100, 100, 100])
    queued = in_queue(records, edges, overlap=True, bucket_bytes=0, shard_bytes=16)
    found = with_values_begun(queued, values_ahead=True, shard_bytes=16)
    ahead = "ReshardParameter BeginValues Copy"
    assert kinds(found) == (
        f"{'Input ' * 3}TakeParameters {ahead} {ahead} ReshardParameter Copy Output"
    )


def test_reshards_that_wait_for_nothing_have_no_queue() -> None:
    records, edges = parameters([8, 8], gathered_dim=None, is_bucketed=False)
    assert in_queue(records, edges, overlap=False, bucket_bytes=0, shard_bytes=16) == records
