"""Which blocks a rank will need, in order of first need, and how many samples it will take from each.

A block cache that fetches in this order and lets go of a block when the promised number of samples has been
taken never fetches a block twice, never holds one for nothing, and never waits for one that stands behind
blocks not yet needed.

The pieces that a lane goes through are found by binary search in the row of blocks, a window of places at a
time, so a million blocks are never listed at once. Blocks that a lane boundary cuts (at most one a lane) are
needed in two lanes; they are looked at together, beforehand.

Invariant, checked in tests/property/ray_trainer/planning/test_exactness.py: blocks, order and numbers are
those found by listing the rank's samples of every step.

Read next: ranks.py for how samples are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from evenload.ray_trainer.planning.lanes import LaneLayout, LaneOrder
from evenload.ray_trainer.planning.ranks import CutLanes, WholeLanes, check_rank

Int64Array = npt.NDArray[np.int64]

_WINDOW_PIECES: Final = 4096


class BlockNeed(NamedTuple):
    """A block that a rank needs, once.

    Attributes:
        block: place in the BlockTable.
        num_samples: how many samples of it the rank will take altogether, at least 1.
        number: the first of them in the epoch's order; it is in the step that holds this number.
    """

    block: int
    num_samples: int
    number: int


class _Pieces(NamedTuple):
    """Pieces of blocks in lanes. Arrays of one entry a piece."""

    lane: Int64Array
    at: Int64Array  # the block's place in the row of blocks
    first_place: Int64Array  # in the lane
    end_place: Int64Array


class _Needs(NamedTuple):
    """Arrays of one entry a block."""

    at: Int64Array
    num_samples: Int64Array
    number: Int64Array

    def sorted(self) -> _Needs:
        order = np.argsort(self.number)
        return _Needs(*(field[order] for field in self))


def blocks_needed(
    order: LaneOrder,
    *,
    start: int,
    global_batch_size: int,
    rank: int,
    world_size: int,
    window_pieces: int = _WINDOW_PIECES,
) -> Iterator[BlockNeed]:
    """The blocks that a rank needs from a step on to the end of the epoch, each once, by first need.

    Args:
        order: of the epoch.
        start: number of the first sample of the next step, 0 to num_samples.
        global_batch_size: of the steps to come; it matters where the world size does not divide the number
            of lanes.
        rank: 0 to world_size - 1.
        world_size: at least 1.
        window_pieces: about so many blocks are looked up at a time, at least 1; it changes no result.
    """
    check_rank(rank, world_size)
    layout, num_samples = order.layout, order.table.num_samples
    if start >= num_samples:
        return
    division: WholeLanes | CutLanes
    if layout.num_lanes % world_size == 0:
        division = WholeLanes(layout, start=start, rank=rank, world_size=world_size)
    else:
        division = CutLanes(
            layout,
            num_samples=num_samples,
            start=start,
            global_batch_size=global_batch_size,
            rank=rank,
            world_size=world_size,
        )
    waiting = _per_block(_needs(_cut_pieces(order, division.lanes), layout, division))
    for end_place, pieces in _windows(order, division.lanes, start, window_pieces):
        # A piece that begins beyond this window can't be needed before the window's end.
        found = _needs(pieces, layout, division)
        waiting = _Needs(*map(np.concatenate, zip(waiting, found, strict=True))).sorted()
        num_ready = int(np.searchsorted(waiting.number, end_place * layout.num_lanes))
        ready = _Needs(*(field[:num_ready] for field in waiting))
        waiting = _Needs(*(field[num_ready:] for field in waiting))
        yield from map(
            BlockNeed,
            order.block_order[ready.at].tolist(),
            ready.num_samples.tolist(),
            ready.number.tolist(),
        )


def _windows(
    order: LaneOrder, lanes: Int64Array, start: int, window_pieces: int
) -> Iterator[tuple[int, _Pieces]]:
    """Uncut pieces by the place where they begin: those that begin before each yielded place (and after the
    one yielded before), from the pieces that are open at the start on."""
    layout = order.layout
    length = int((layout.high - layout.low).max())
    per_place = max(1, len(order.block_order) * layout.num_lanes // order.table.num_samples)
    window = max(1, window_pieces // per_place)
    begin = _open_piece_begins(order, lanes, start)
    end = start // layout.num_lanes
    while end < length:
        end = min(length, end + window)
        yield end, _pieces_beginning(order, lanes, begin, end)
        begin = np.full_like(begin, end)


def _open_piece_begins(order: LaneOrder, lanes: Int64Array, start: int) -> Int64Array:
    """Place where the piece that each lane is in at sample `start` begins."""
    layout = order.layout
    place = layout.places_before(start, lanes)
    low, high, direction = layout.low[lanes], layout.high[lanes], layout.direction[lanes]
    inside = place < high - low
    at = np.searchsorted(order.row_first, layout.origin[lanes] + direction * place, side="right") - 1
    at = np.where(inside, at, 0)
    begin = np.where(direction == 1, order.row_first[at] - low, high - order.row_first[at + 1])
    return np.where(inside, np.maximum(0, begin), place)


def _pieces_beginning(order: LaneOrder, lanes: Int64Array, begin: Int64Array, end: int) -> _Pieces:
    """Pieces of uncut blocks that begin at places begin (inclusive) to end (exclusive) of these lanes."""
    layout, row_first = order.layout, order.row_first
    low, high = layout.low[lanes], layout.high[lanes]
    stop = np.clip(end, begin, np.maximum(begin, high - low))
    is_forward = layout.direction[lanes] == 1
    first_at = np.where(
        is_forward,
        np.searchsorted(row_first, low + begin, side="left"),
        np.searchsorted(row_first, high - stop, side="right") - 1,
    )
    end_at = np.where(
        is_forward,
        np.searchsorted(row_first, low + stop, side="left"),
        np.searchsorted(row_first, high - begin, side="right") - 1,
    )
    at, which = _ranges(first_at, np.maximum(first_at, end_at))
    uncut = (row_first[at] >= low[which]) & (row_first[at + 1] <= high[which])
    return _pieces(order, lanes[which[uncut]], at[uncut])


def _cut_pieces(order: LaneOrder, lanes: Int64Array) -> _Pieces:
    """All pieces, in these lanes, of blocks that a lane boundary cuts."""
    layout, row_first = order.layout, order.row_first
    by_segment = np.argsort(layout.segment)
    segment_low = layout.low[by_segment]
    boundaries = np.unique(segment_low[(segment_low > 0) & (segment_low < row_first[-1])])
    cut_at = np.searchsorted(row_first, boundaries, side="right") - 1
    cut_at = np.unique(cut_at[row_first[cut_at] < boundaries])
    first_segment = np.searchsorted(segment_low, row_first[cut_at], side="right") - 1
    end_segment = np.searchsorted(segment_low, row_first[cut_at + 1] - 1, side="right")
    segment, which = _ranges(first_segment, end_segment)
    pieces = _pieces(order, by_segment[segment], cut_at[which])
    wanted = np.isin(pieces.lane, lanes)
    return _Pieces(*(field[wanted] for field in pieces))


def _pieces(order: LaneOrder, lane: Int64Array, at: Int64Array) -> _Pieces:
    """Where in its lane each of these (lane, block in the row) lies."""
    layout = order.layout
    row_low = np.maximum(order.row_first[at], layout.low[lane])
    row_high = np.minimum(order.row_first[at + 1], layout.high[lane])
    is_forward = layout.direction[lane] == 1
    first_place = np.where(is_forward, row_low - layout.low[lane], layout.high[lane] - row_high)
    return _Pieces(lane=lane, at=at, first_place=first_place, end_place=first_place + row_high - row_low)


def _needs(pieces: _Pieces, layout: LaneLayout, division: WholeLanes | CutLanes) -> _Needs:
    """What the rank takes of each piece, and when first; pieces of which it takes nothing are left out."""
    before = division.count_before(pieces.lane, pieces.first_place)
    num_samples = division.count_before(pieces.lane, pieces.end_place) - before
    lane, at, low, high = (field[num_samples > 0] for field in pieces)
    before, num_samples = before[num_samples > 0], num_samples[num_samples > 0]
    high = high - 1
    while (low < high).any():  # bisection for the last place before which nothing was taken
        middle = (low + high) // 2
        is_taken = division.count_before(lane, middle + 1) > before
        low, high = np.where(is_taken, low, middle + 1), np.where(is_taken, middle, high)
    return _Needs(at=at, num_samples=num_samples, number=lane + layout.num_lanes * low)


def _per_block(needs: _Needs) -> _Needs:
    """The needs of pieces joined where they are of the same block."""
    at, which = np.unique(needs.at, return_inverse=True)
    num_samples = np.zeros(len(at), dtype=np.int64)
    np.add.at(num_samples, which, needs.num_samples)
    number = np.full(len(at), np.iinfo(np.int64).max)
    np.minimum.at(number, which, needs.number)
    return _Needs(at=at, num_samples=num_samples, number=number)


def _ranges(first: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The numbers of several ranges one after the other, and which range each is of."""
    length = end - first
    which = np.repeat(np.arange(len(first)), length)
    return np.arange(len(which)) + (first - np.cumsum(length) + length)[which], which
