"""Tensors that go from one layout to another, among the ranks of a job, with bounded memory.

::

    moves = [Move(shape, before, after, take=lambda: part, put=keep), ...]
    moved = make_moves(moves, device, bucket_bytes)     # collective

Each rank finds out by itself who has what it will need, since layouts tell where every element
is: what it has already is copied, the rest comes from a rank that has it. Layouts may be on other
meshes of the same ranks, and parts of blocks. Tensors are cut into pieces, and pieces put together
to buckets that all ranks send at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.tensor import Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tensoropt_torch.runtime.agreement import gather
from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.values.parts import Part, coordinate_of, parts_at

ALIGNMENT = 16  # bytes, so that bytes of a bucket can be seen as numbers of any dtype


@dataclass(frozen=True)
class Spread:
    """Where ranks have the elements of a tensor: placements on a mesh with axes of these sizes.
    Of no axes: each rank has all of it."""

    sizes: tuple[int, ...] = ()
    placements: tuple[Placement, ...] = ()

    def parts(self, shape: Sequence[int], rank: int) -> list[Part]:
        """The rectangles that a rank has, in the order in which they lie in its part."""
        return parts_at(shape, self.sizes, self.placements, coordinate_of(rank, self.sizes))

    def local_shape(self, shape: Sequence[int], rank: int) -> list[int]:
        """That of the rank's part."""
        parts = self.parts(shape, rank)
        lengths = [[extent.stop - extent.start for extent in part] for part in parts]
        if len(parts) == 1:
            return lengths[0]
        dim = self.dim_of_blocks
        return [
            sum(own) if d == dim else own[0] for d, own in enumerate(zip(*lengths, strict=True))
        ]

    @property
    def dim_of_blocks(self) -> int | None:
        """Along which parts of blocks lie, if parts are made of such."""
        found = {p.dim for p in self.placements if isinstance(p, _StridedShard)}
        return found.pop() if found else None

    @property
    def is_whole(self) -> bool:
        """Whether each rank has all of it."""
        return not any(isinstance(p, Shard | _StridedShard) for p in self.placements)


@dataclass
class Move:
    """A tensor that gets another layout.

    Attributes:
        shape: of the whole, equal on all ranks.
        dtype: of the elements.
        before, after: where ranks have it.
        take: gives the rank's part as it is.
        put: is given the rank's new part, and lets go of the old one.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    before: Spread
    after: Spread
    take: Callable[[], torch.Tensor]
    put: Callable[[torch.Tensor], None]

    @property
    def words(self) -> str:
        """Equal for moves of tensors that are alike."""
        return f"{self.shape} {self.dtype} {self.before} {self.after}"

    def bytes_after(self, rank: int) -> int:
        """Of the new part of a rank."""
        return math.prod(self.after.local_shape(self.shape, rank)) * self.dtype.itemsize

    def growth(self, ranks: int) -> int:
        """The most bytes that a rank has more afterwards; below 0 if all have less."""

        def of_rank(rank: int) -> int:
            before = math.prod(self.before.local_shape(self.shape, rank))
            return self.bytes_after(rank) - before * self.dtype.itemsize

        return max(map(of_rank, range(ranks)))


@dataclass(frozen=True)
class Moved:
    """What moves took.

    Attributes:
        tensors: how many there were.
        sent_bytes: by this rank to others.
        buckets: how often ranks sent to each other.
        extra_bytes: the most memory at one moment besides the larger of what the rank had
            before and has after: buffers, and parts that are there twice.
    """

    tensors: int = 0
    sent_bytes: int = 0
    buckets: int = 0
    extra_bytes: int = 0


def make_moves(moves: Sequence[Move], device: torch.device, bucket_bytes: int) -> Moved:
    """Makes all of them, equal on all ranks. Collective; exact.

    What shrinks goes first. So the memory of a rank is never above the larger of what it is before
    and after by more than two buckets (what it sends, what it gets) and a third one of new
    parts, or one new part if that is larger. ``Moved.extra_bytes`` has what it was. Where parts of
    ranks differ in size (a dim that ranks do not divide) a rank may grow while others shrink.

    Args:
        bucket_bytes: of what a rank sends, or gets, at once; at least that of one element
            for each rank.
    """
    ranks = dist.get_world_size()
    order = sorted(range(len(moves)), key=lambda i: moves[i].growth(ranks))
    job = _Job(dist.get_rank(), ranks, device)
    return _Schedule([moves[i] for i in order], job, bucket_bytes).run()


@dataclass(frozen=True)
class _Job:
    rank: int
    ranks: int
    device: torch.device


@dataclass(frozen=True)
class _Piece:
    """A rectangle of elements in a rank's own part."""

    part: Part
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class _Cut:
    """A rectangle of a tensor whose elements are sent together.

    Attributes:
        index: the number of the move.
    """

    def __init__(self, index: int, move: Move, window: Part, job: _Job) -> None:
        self.index = index
        self._move = move
        self._window = window
        self._job = job

    @cached_property
    def sends(self) -> list[list[_Piece]]:
        """What this rank gives to each, in its part before."""
        own = self._job.rank
        return [
            self._pieces(self._move.before, own, receiver)
            if receiver != own and _giver(self._holders(own), receiver) == own
            else []
            for receiver in range(self._job.ranks)
        ]

    @cached_property
    def receives(self) -> list[list[_Piece]]:
        """What this rank gets of each, in its part after."""
        own, found = self._job.rank, [list[_Piece]() for _ in range(self._job.ranks)]
        for holders in self._all_holders():
            giver = _giver(holders, own)
            if giver != own:
                found[giver] = self._pieces(self._move.after, own, own, giver)
        return found

    def copies(self) -> Iterator[tuple[_Piece, _Piece]]:
        """What this rank has already: where it is before and after."""
        own = self._job.rank
        sides = (self._move.before, self._move.after)
        before, after = (self._pieces(side, own, own) for side in sides)
        return zip(before, after, strict=True)

    def bytes(self, pieces: Sequence[Sequence[_Piece]]) -> int:
        """That these take in a bucket."""
        return sum(self.aligned(piece) for of_rank in pieces for piece in of_rank)

    def aligned(self, piece: _Piece) -> int:
        """The bytes of a piece in a bucket."""
        return -(-piece.numel * self._move.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def _holders(self, rank: int) -> tuple[int, ...]:
        """All ranks that have the part of this one before."""
        return next(holders for holders in self._all_holders() if rank in holders)

    def _all_holders(self) -> list[tuple[int, ...]]:
        return holders_of(self._move.before, self._job.ranks)

    def _pieces(
        self, seen: Spread, rank: int, receiver: int, giver: int | None = None
    ) -> list[_Piece]:
        """What ``giver``, by default ``rank``, has and ``receiver`` needs of the window, in the
        part of ``rank`` under ``seen``."""
        shape = self._move.shape
        giver = rank if giver is None else giver
        theirs = self._move.before.parts(shape, giver)
        needed = self._move.after.parts(shape, receiver)
        common = [
            inside
            for part in needed
            for other in theirs
            if (inside := _common(_common(part, other), self._window)) is not None
        ]
        own = list(_placed(seen, shape, rank))
        return [
            _Piece(local, tuple(extent.stop - extent.start for extent in rectangle))
            for rectangle in common
            for local in _inside(own, rectangle)
        ]


@functools.lru_cache(maxsize=1024)
def holders_of(spread: Spread, ranks: int) -> list[tuple[int, ...]]:
    """The ranks that have each of the parts of a tensor."""
    found: dict[tuple[int, ...], list[int]] = {}
    splits = [isinstance(p, Shard | _StridedShard) for p in spread.placements]
    for rank in range(ranks):
        coordinate = coordinate_of(rank, spread.sizes)
        key = tuple(c for c, split in zip(coordinate, splits, strict=True) if split)
        found.setdefault(key, []).append(rank)
    return [tuple(own) for own in found.values()]


def _giver(holders: Sequence[int], receiver: int) -> int:
    """Who of those that have a part gives it to a rank: itself, or one by turns."""
    return receiver if receiver in holders else holders[receiver % len(holders)]


def _common(one: Part | None, other: Part) -> Part | None:
    if one is None:
        return None
    found = tuple(
        slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True)
    )
    return None if any(extent.start >= extent.stop for extent in found) else found


def _placed(spread: Spread, shape: Sequence[int], rank: int) -> Iterator[tuple[Part, Part]]:
    """The rectangles of a rank, and where each lies in its part."""
    dim, begin = spread.dim_of_blocks, 0
    for part in spread.parts(shape, rank):
        local = [slice(0, extent.stop - extent.start) for extent in part]
        if dim is not None:
            local[dim] = slice(begin, begin + local[dim].stop)
            begin = local[dim].stop
        yield part, tuple(local)


def _inside(own: Sequence[tuple[Part, Part]], rectangle: Part) -> Iterator[Part]:
    """Where a rectangle, which lies in one of these, is in the rank's part."""
    for part, local in own:
        if _common(part, rectangle) == rectangle:
            yield tuple(
                slice(r.start - p.start + lo.start, r.stop - p.start + lo.start)
                for r, p, lo in zip(rectangle, part, local, strict=True)
            )


def windows(shape: Sequence[int], most: int) -> Iterator[Part]:
    """Rectangles of at most so many elements, of which a tensor is made."""

    def halves(part: Part) -> Iterator[Part]:
        lengths = [extent.stop - extent.start for extent in part]
        if math.prod(lengths) <= max(1, most):
            yield part
            return
        dim = lengths.index(max(lengths))
        middle = part[dim].start + lengths[dim] // 2
        for half in (slice(part[dim].start, middle), slice(middle, part[dim].stop)):
            yield from halves((*part[:dim], half, *part[dim + 1 :]))

    return halves(tuple(slice(0, size) for size in shape))


class _Schedule:
    """Which cuts are sent together, and their sending."""

    def __init__(self, moves: Sequence[Move], job: _Job, bucket_bytes: int) -> None:
        self._moves = moves
        self._job = job
        self._bucket_bytes = bucket_bytes
        self._new: dict[int, torch.Tensor] = {}
        self._sent = 0

    def run(self) -> Moved:
        """Makes all moves."""
        cuts = [cut for index, move in enumerate(self._moves) for cut in self._cuts(index, move)]
        last = {cut.index: number for number, cut in enumerate(cuts)}
        own = [(cut.bytes(cut.sends), cut.bytes(cut.receives)) for cut in cuts]
        news = [move.bytes_after(self._job.rank) for move in self._moves]
        buckets = self._buckets(cuts, gather((own, news)))
        memory = _Memory(news, [_held(move) for move in self._moves])
        done = 0
        for bucket in buckets:
            memory.buffers = sum(map(sum, own[done : done + len(bucket)]))
            for cut in bucket:
                self._begin(cut.index, memory)
            memory.note()
            self._send(bucket)
            done += len(bucket)
            for index in dict.fromkeys(cut.index for cut in bucket):
                if last[index] < done:
                    self._moves[index].put(self._new.pop(index))
                    memory.end(index)
        return Moved(len(self._moves), self._sent, len(buckets), memory.extra)

    def _cuts(self, index: int, move: Move) -> Iterator[_Cut]:
        """So small that what a rank sends of one to all others fits into a bucket."""
        most = self._bucket_bytes // max(1, self._job.ranks - 1) // move.dtype.itemsize
        for window in windows(move.shape, most):
            yield _Cut(index, move, window, self._job)

    def _buckets(
        self, cuts: Sequence[_Cut], of_ranks: Sequence[tuple[list[tuple[int, int]], list[int]]]
    ) -> list[list[_Cut]]:
        """Neighbours whose bytes fit, on every rank."""
        buckets: list[list[_Cut]] = []
        limit = self._bucket_bytes
        filled = [[0, 0, 0] for _ in of_ranks]
        opened: set[int] = set()
        for number, cut in enumerate(cuts):
            added = [
                (*sizes[number], 0 if cut.index in opened else news[cut.index])
                for sizes, news in of_ranks
            ]
            pairs = zip(filled, added, strict=True)
            fits = all(f + a <= limit for fs, adds in pairs for f, a in zip(fs, adds, strict=True))
            if not buckets or not fits:
                buckets.append([])
                filled = [[0, 0, 0] for _ in of_ranks]
                added = [(*sizes[number], news[cut.index]) for sizes, news in of_ranks]
                opened = set()
            opened.add(cut.index)
            buckets[-1].append(cut)
            filled = [
                [f + a for f, a in zip(*p, strict=True)] for p in zip(filled, added, strict=True)
            ]
        return buckets

    def _begin(self, index: int, memory: _Memory) -> None:
        if index not in self._new:
            move = self._moves[index]
            shape = move.after.local_shape(move.shape, self._job.rank)
            self._new[index] = torch.empty(shape, dtype=move.dtype, device=self._job.device)
            memory.begin(index)

    def _send(self, bucket: Sequence[_Cut]) -> None:
        """What the cuts of a bucket are made of gets to where it is needed."""
        olds = {cut.index: self._moves[cut.index].take() for cut in bucket}
        for cut in bucket:
            for before, after in cut.copies():
                self._new[cut.index][after.part].copy_(olds[cut.index][before.part])
        sends = self._by_rank(bucket, lambda cut: cut.sends)
        gets = self._by_rank(bucket, lambda cut: cut.receives)
        out, out_sizes = self._buffer(sends)
        into, in_sizes = self._buffer(gets)
        for cut, piece, view in self._views(out, sends):
            view.copy_(olds[cut.index][piece.part])
        with waiting():
            dist.all_to_all_single(into, out, in_sizes, out_sizes)
        for cut, piece, view in self._views(into, gets):
            self._new[cut.index][piece.part].copy_(view)
        self._sent += sum(out_sizes)

    def _by_rank(
        self, bucket: Sequence[_Cut], pieces: Callable[[_Cut], list[list[_Piece]]]
    ) -> list[list[tuple[_Cut, _Piece]]]:
        ranks = range(self._job.ranks)
        return [[(cut, piece) for cut in bucket for piece in pieces(cut)[r]] for r in ranks]

    def _buffer(
        self, pieces: Sequence[Sequence[tuple[_Cut, _Piece]]]
    ) -> tuple[torch.Tensor, list[int]]:
        """Room for these, and the bytes of each rank's."""
        sizes = [sum(cut.aligned(piece) for cut, piece in of_rank) for of_rank in pieces]
        return torch.empty(sum(sizes), dtype=torch.uint8, device=self._job.device), sizes

    def _views(
        self, buffer: torch.Tensor, pieces: Sequence[Sequence[tuple[_Cut, _Piece]]]
    ) -> Iterator[tuple[_Cut, _Piece, torch.Tensor]]:
        """Where each piece lies in a buffer."""
        begin = 0
        for cut, piece in (pair for of_rank in pieces for pair in of_rank):
            dtype = self._moves[cut.index].dtype
            taken = buffer[begin : begin + piece.numel * dtype.itemsize]
            yield cut, piece, taken.view(dtype).view(piece.shape)
            begin += cut.aligned(piece)


def _held(move: Move) -> int:
    return move.take().nbytes


class _Memory:
    """Of one rank, in bytes, as the moves go on."""

    def __init__(self, news: Sequence[int], olds: Sequence[int]) -> None:
        self._news, self._olds = news, olds
        self._now = sum(olds)
        self._ends = max(sum(olds), sum(news))
        self.buffers = 0
        self.extra = 0

    def begin(self, index: int) -> None:
        """A tensor has a new part as well."""
        self._now += self._news[index]

    def note(self) -> None:
        """All that a bucket needs is there."""
        self.extra = max(self.extra, self._now + self.buffers - self._ends)

    def end(self, index: int) -> None:
        """It has no old part any more."""
        self._now -= self._olds[index]
