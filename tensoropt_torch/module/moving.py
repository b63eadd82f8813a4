"""A parallel module that goes on under another plan of its model, in place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from tensoropt_torch.checks import check_whole
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.cut_constants import cut_constants
from tensoropt_torch.module.making import ProgramMaker
from tensoropt_torch.module.programs import ModulePrograms
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.parameters.kept_gradients import is_kept, reduce_kept
from tensoropt_torch.parameters.local_parts import local_tensor
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.runtime.agreement import agree_or_raise, on_all_ranks
from tensoropt_torch.steps.replaced import ReplacedParameters
from tensoropt_torch.steps.split_states import SplitState, split_states
from tensoropt_torch.values.moves import Move, Moved, Spread, make_moves
from tensoropt_torch.values.placements import dtensor_of, is_strided, relay
from tensoropt_torch.values.strided_parts import know_strided_parts
from tensoropt_torch.values.weights import of_first_rank

BUCKET_BYTES = 64 * 2**20


LEAST_BUCKET_BYTES = 2**16

Layout = tuple[Placement, ...]


@dataclass(frozen=True)
class Moving:
    """What is moved.

    Attributes:
        storage: what the rank has of the model.
        programs: those of the plan so far.
        optimizers: whose states go with their parameters.
        bucket_bytes: as of ``make_moves``.
    """

    storage: ModuleStorage
    programs: ModulePrograms
    optimizers: Sequence[torch.optim.Optimizer]
    bucket_bytes: int


class PlanMover:
    """Gives a module the layouts and programs of other plans.

    Args:
        maker: makes the programs.
    """

    def __init__(self, maker: ProgramMaker) -> None:
        self._maker_before = maker
        self._makers = {maker.context.sizes: maker}

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return self._maker_before.context.device

    def leave_groups(self) -> None:
        """Leaves the process groups of all programs, which cannot run any more: ``move`` makes
        others. Requires contexts with groups of their own; by each rank by itself."""
        while self._makers:
            _, self._maker_before = self._makers.popitem()
            self._maker_before.context.groups.leave()

    def move(self, plan: Plan, moving: Moving) -> tuple[ModulePrograms, Moved]:
        """The programs of the plan, and what the change of layouts took. Collective.

        Raises:
            TensorOptError: on every rank; nothing has changed.
        """
        captured = moving.programs.base.captured
        on_all_ranks(lambda: _check(plan, moving, captured))
        agree_or_raise("plan", plan.hash, "give the same plan on every rank")
        part = on_all_ranks(lambda: RankPart(plan, captured, dist.get_rank()))
        maker = self._maker(part)
        tables = _tables(part, moving.programs.base, maker)
        base = maker.base(part, tables)
        for parameter in moving.storage.parameters():
            if is_kept(parameter):
                reduce_kept(parameter)
        held = _Held(part, maker.context.mesh, moving, tables)
        moves = on_all_ranks(lambda: list(held.moves()))
        what = hashlib.sha256(repr([move.words for move in moves]).encode()).hexdigest()
        agree_or_raise("set of tensors to move", what, "make the same steps on every rank")
        for optimizer in moving.optimizers:
            ReplacedParameters.forget_parts(optimizer)
        moved = make_moves(moves, maker.context.device, moving.bucket_bytes)
        seeds = moving.programs.seeds
        assert seeds is not None
        return maker.programs(part, base, moving.storage, seeds), moved

    def _maker(self, part: RankPart) -> ProgramMaker:
        """Of the mesh of a plan."""
        if part.sizes not in self._makers:
            known = self._maker_before
            own = known.context.groups.are_of_their_own
            context = RankContext.make(part.sizes, known.context.device, own_groups=own)
            self._makers[part.sizes] = replace(known, context=context)
        return self._makers[part.sizes]


def _check(plan: Plan, moving: Moving, captured: CapturedModel) -> None:
    if isinstance(plan, StagedPlan):
        raise TensorOptError(
            f"move_to goes to plans without stages, and this one has {plan.stages}: save a "
            "checkpoint, and go on from it with parallelize(model, plan)"
        )
    if not isinstance(plan, Plan):
        raise TensorOptError(
            f"plan is a {type(plan).__name__}; give a Plan of the same model for as many devices"
        )
    check_whole("bucket_bytes", moving.bucket_bytes, least=LEAST_BUCKET_BYTES)
    for optimizer in moving.optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TensorOptError(
                f"move_to was given a {type(optimizer).__name__} after the plan; give optimizers "
                "of torch.optim, or such as are like them"
            )
    world = dist.get_world_size()
    if plan.num_devices != world:
        raise TensorOptError(
            f"the plan is for {plan.num_devices} devices, but {world} processes run: move_to goes "
            "to plans for as many; for others save a checkpoint and start again "
            "(tensoropt_torch.elastic)"
        )
    plan.check_model(captured)
    now, then = moving.programs.base.plan.settings, plan.settings
    for name in ("inputs", "whole_inputs", "input_dims"):
        if getattr(now, name) != getattr(then, name):
            raise TensorOptError(
                f"the plan has {name}={getattr(then, name)!r} and the module {name}="
                f"{getattr(now, name)!r}: its calls would be given other inputs; plan with the "
                "same inputs="
            )


def _tables(part: RankPart, old: Variant, maker: ProgramMaker) -> dict[str, torch.Tensor]:
    """What the graph has besides parameters and buffers: as it is, to be moved, where it is the
    same, else new. Collective."""
    buffers = {name for name, _ in maker.root.named_buffers(remove_duplicate=False)}
    constants = part.captured.constants
    names = [name for name in constants if name not in buffers]
    same = {n for n in names if n in old.tables and old.captured.constants.get(n) is constants[n]}
    device = maker.context.device
    new = {n: of_first_rank(n, constants[n], device) for n in names if n not in same}
    cut = cut_constants(part, new, maker.context.mesh)
    return {name: old.tables[name] if name in same else cut[name] for name in names}


class _Held:
    """What a rank has of a model, and the layouts that a plan has for it.

    Args:
        part: of the plan.
        mesh: of the plan.
        tables: of its graph, in the layouts of the plan before.
    """

    def __init__(
        self, part: RankPart, mesh: DeviceMesh, moving: Moving, tables: dict[str, torch.Tensor]
    ) -> None:
        self._part = part
        self._mesh = mesh
        self._moving = moving
        self._tables = tables

    def moves(self) -> Iterator[Move]:
        """What gets another layout, in the same order on all ranks."""
        layouts: dict[int, Layout] = {}
        root = self._moving.storage.root
        for source in self._part.captured.parameters:
            parameter = root.get_parameter(source.names[0])
            assert isinstance(parameter, DTensor)
            layouts[id(parameter)] = layout = tuple(self._part.placements(source))
            yield from self._of_parameter(parameter, layout)
        for optimizer in self._moving.optimizers:
            for state in split_states(optimizer):
                if id(state.parameter) in layouts:
                    yield from self._of_state(state, layouts[id(state.parameter)])
        yield from self._of_constants()

    def _of_parameter(self, parameter: DTensor, layout: Layout) -> Iterator[Move]:
        yield from self._of_dtensor(parameter, layout)
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            yield from self._of_dtensor(gradient, layout)

    def _of_state(self, state: SplitState, layout: Layout) -> Iterator[Move]:
        if not state.is_as_parameter:
            if state.mesh is self._mesh:
                return
            layout = (Replicate(),) * self._mesh.ndim
        if (state.mesh, state.placements) != (self._mesh, layout):
            put = partial(state.put, mesh=self._mesh, placements=layout)
            before = Spread(tuple(state.mesh.shape), state.placements)
            yield self._move(
                state.shape, state.local.dtype, before, layout, lambda: state.local, put
            )

    def _of_constants(self) -> Iterator[Move]:
        """Buffers and tables."""
        cut = {source.names[0]: source for source in self._part.cut_constants}
        for source in self._part.captured.sources:
            name = source.names[0]
            if source.kind != "constant":
                continue
            layout = tuple(self._part.placements(source)) if name in cut else None
            places = list(self._places(source))
            tensor = places[0][0][places[0][1]]
            if isinstance(tensor, DTensor) and layout is not None:
                yield from self._of_dtensor(tensor, layout)
            elif isinstance(tensor, DTensor) or layout is not None:
                yield self._of_whole(tensor, layout, places)

    def _places(self, source: Source) -> Iterator[tuple[dict[str, Any], str]]:
        """Where a constant is held, by all of its names."""
        for name in source.names:
            if name in self._tables:
                yield self._tables, name
                continue
            path, _, leaf = name.rpartition(".")
            yield self._moving.storage.root.get_submodule(path)._buffers, leaf

    def _of_dtensor(self, tensor: DTensor, layout: Layout) -> Iterator[Move]:
        if (tensor.device_mesh, tensor.placements) == (self._mesh, layout):
            return
        before = Spread(tuple(tensor.device_mesh.shape), tensor.placements)
        put = partial(relay, tensor, mesh=self._mesh, placements=layout)
        shape = tuple(tensor.shape)
        yield self._move(shape, tensor.dtype, before, layout, lambda: tensor._local_tensor, put)

    def _of_whole(
        self,
        tensor: torch.Tensor,
        layout: Layout | None,
        places: Sequence[tuple[dict[str, Any], str]],
    ) -> Move:
        """From whole tensors to parts, or back: another object at its places."""
        own, leaf = places[0]
        like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        def take() -> torch.Tensor:
            return local_tensor(own[leaf])  # type: ignore[no-any-return]

        def put(local: torch.Tensor) -> None:
            made = local if layout is None else dtensor_of(local, self._mesh, layout, like)
            for holder, name in places:
                holder[name] = made

        before = Spread()
        if isinstance(tensor, DTensor):
            before = Spread(tuple(tensor.device_mesh.shape), tensor.placements)
        return self._move(tuple(tensor.shape), tensor.dtype, before, layout, take, put)

    def _move(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        before: Spread,
        layout: Layout | None,
        take: Callable[[], torch.Tensor],
        put: Callable[[torch.Tensor], None],
    ) -> Move:
        if is_strided(layout or ()):
            know_strided_parts()
        after = Spread() if layout is None else Spread(tuple(self._mesh.shape), layout)
        return Move(shape, dtype, before, after, take, put)
