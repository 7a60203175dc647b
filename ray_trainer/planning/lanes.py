"""The order of an epoch: where in the dataset sample number i is.

Blocks are put in a row in keyed order. The row is cut into C segments of equal length (to within one sample);
a cut through a block makes two pieces, and samples are put in keyed order within each piece. Each segment is
one lane, and sample number i of the epoch is lane i mod C, place i div C. Hence any place of the order is
found by arithmetic and one binary search in the row, without replaying what came before.

Which segment is which lane, and in which direction a lane runs, is free; it is chosen so that a block is
rarely fetched twice:
- Neighbouring segments run in opposite directions, so the two pieces of a cut block are needed at the same
  time (both at the beginning, or both at the end of their lanes), not an epoch apart.
- Lanes are numbered by reversed digits, so that the lanes of one rank (r, r + W, ...) are mostly neighbouring
  segments, and the lanes of one step, whatever G is, are spread evenly over the whole row.

Invariants, checked in tests/property/ray_trainer/planning/test_order.py:
1. Every sample has exactly one number, whatever the sizes of blocks and the number of lanes.
2. All samples of a piece come before any other of its lane: one open block a lane.

Read next: ranks.py, which divides the order; plan.py, which joins all this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog import keyed_order
from evenload.ray_trainer.planning.blocks import BlockTable, IntArray

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LaneLayout:
    """Where each lane lies in the row of samples. All arrays have one entry a lane.

    Attributes:
        segment: the lane's segment, counted along the row.
        low, high: the segment's first row position, and one past its last.
        origin: row position of the lane's place 0.
        direction: +1 or -1; place t is at row position origin + direction * t.
    """

    segment: Int64Array
    low: Int64Array
    high: Int64Array
    origin: Int64Array
    direction: Int64Array

    @classmethod
    def of(cls, num_samples: int, num_lanes: int) -> LaneLayout:
        """Lanes of equal length; the first num_samples % num_lanes have one sample more."""
        lane = np.arange(num_lanes, dtype=np.int64)
        segment = reversed_digits(num_lanes)
        length = num_samples // num_lanes + (lane < num_samples % num_lanes)
        length_by_segment = np.empty_like(length)
        length_by_segment[segment] = length
        high = np.cumsum(length_by_segment)[segment]
        low = high - length
        is_forward = segment % 2 == 0
        return cls(
            segment=segment,
            low=low,
            high=high,
            origin=np.where(is_forward, low, high - 1),
            direction=np.where(is_forward, 1, -1),
        )

    @property
    def num_lanes(self) -> int:
        return len(self.segment)

    def places_before(self, number: IntArray | int, lane: Int64Array) -> Int64Array:
        """How many samples of each lane come before sample `number` of the order (were the lane endless)."""
        places: Int64Array = (number - lane + self.num_lanes - 1) // self.num_lanes
        return places


def reversed_digits(num_lanes: int) -> Int64Array:
    """A permutation of 0 to num_lanes - 1 that makes what is near far: [num_lanes] int64.

    A number is written in mixed radix, the radices being the prime factors of num_lanes from the largest to
    the smallest, least significant digit first; the same digits are read in the opposite order. (The van der
    Corput sequence, for a number that is no power.)
    """
    rest = np.arange(num_lanes, dtype=np.int64)
    result = np.zeros(num_lanes, dtype=np.int64)
    for radix in sorted(_prime_factors(num_lanes), reverse=True):
        result = result * radix + rest % radix
        rest //= radix
    return result


class OpenPieces:
    """The shuffled rows of the piece that each lane is in: a piece is sorted once and not at every step.

    It belongs to one reader of one order and to one thread; it is a cache, the order does not depend on it.
    """

    def __init__(self, num_lanes: int, piece_samples_max: int) -> None:
        self._piece_low = np.full(num_lanes, -1, dtype=np.int64)
        # Not filled: a page of it costs memory when a piece is put there, and only the rank's own lanes are.
        self._rows = np.empty((num_lanes, piece_samples_max), dtype=np.int32)

    def holds(self, lane: Int64Array, piece_low: Int64Array) -> npt.NDArray[np.bool_]:
        held: npt.NDArray[np.bool_] = self._piece_low[lane] == piece_low
        return held

    def rows(self, lane: Int64Array, place_in_piece: Int64Array) -> npt.NDArray[np.int32]:
        return self._rows[lane, place_in_piece]

    def put(self, lane: int, piece_low: int, rows: npt.NDArray[np.int64]) -> None:
        self._piece_low[lane] = piece_low
        self._rows[lane, : len(rows)] = rows


class _Places(NamedTuple):
    """Samples of the order, resolved as far as the piece they are in. Arrays with one entry a sample."""

    lane: Int64Array
    block: Int64Array
    piece_low: Int64Array  # row positions: identify the piece, as pieces tile the row
    piece_high: Int64Array
    piece_row: Int64Array  # row within the block of the piece's first sample
    in_piece: Int64Array  # place within the piece


@dataclass(frozen=True, slots=True, eq=False)
class LaneOrder:
    """The order of one epoch. Immutable; any thread may read.

    Attributes:
        table: the dataset's blocks.
        layout: the lanes.
        block_order: [num_blocks] int32, the blocks as they stand in the row.
        row_first: [num_blocks + 1] int64, row position of each one's first sample, then the row's length.
        sample_state: start of the stream of sample keys; None: samples keep their stored order.
    """

    table: BlockTable
    layout: LaneLayout
    block_order: npt.NDArray[np.int32]
    row_first: Int64Array
    sample_state: int | None

    @classmethod
    def shuffled(cls, table: BlockTable, *, num_lanes: int, seed: int, epoch: int) -> LaneOrder:
        """Blocks, and samples within pieces, in the order of the keys of (seed, epoch)."""
        state = keyed_order.stream_state(keyed_order.BLOCK_ORDER, seed, epoch)
        block_order = keyed_order.shuffled(state, table.num_blocks)
        row_first = np.zeros(table.num_blocks + 1, dtype=np.int64)
        np.cumsum(table.samples_in(block_order), out=row_first[1:])
        return cls(
            table=table,
            layout=LaneLayout.of(table.num_samples, num_lanes),
            block_order=block_order,
            row_first=row_first,
            sample_state=keyed_order.stream_state(keyed_order.SAMPLE_ORDER, seed, epoch),
        )

    @classmethod
    def stored(cls, table: BlockTable) -> LaneOrder:
        """Manifest order: one lane, nothing shuffled."""
        return cls(
            table=table,
            layout=LaneLayout.of(table.num_samples, 1),
            block_order=np.arange(table.num_blocks, dtype=np.int32),
            row_first=table.first_sample,
            sample_state=None,
        )

    def open_pieces(self) -> OpenPieces:
        """An empty cache for one reader of this order."""
        longest = int(np.diff(self.row_first).max(initial=1))
        return OpenPieces(self.layout.num_lanes, longest if self.sample_state is not None else 0)

    def locate(self, numbers: Int64Array, pieces: OpenPieces) -> tuple[Int64Array, Int64Array]:
        """Block and row within the block of samples of the order.

        Args:
            numbers: of the samples, 0 to num_samples - 1; ascending within each lane.
            pieces: from open_pieces of this order.
        """
        places = self._places(numbers)
        if self.sample_state is None:
            return places.block, places.piece_row + places.in_piece
        row = places.piece_row.copy()
        held = pieces.holds(places.lane, places.piece_low)
        row[held] += pieces.rows(places.lane[held], places.in_piece[held])
        if not held.all():
            row[~held] += self._open(_Places(*(field[~held] for field in places)), pieces, self.sample_state)
        return places.block, row

    def consumed_by_block(self, num_consumed: int) -> Int64Array:
        """How many samples of each block are among the first `num_consumed` of the order: [num_blocks] int64,
        in manifest order."""
        layout = self.layout
        by_segment = np.argsort(layout.segment)
        low, high = layout.low[by_segment], layout.high[by_segment]
        in_segment = np.minimum(layout.places_before(num_consumed, by_segment), high - low)
        before_segment = np.cumsum(in_segment) - in_segment
        segment = np.searchsorted(low, self.row_first, side="right") - 1
        from_low = np.minimum(self.row_first - low[segment], in_segment[segment])
        from_high = np.maximum(0, self.row_first - (high - in_segment)[segment])
        is_forward = layout.direction[by_segment][segment] == 1
        before = before_segment[segment] + np.where(is_forward, from_low, from_high)
        consumed = np.empty(len(self.block_order), dtype=np.int64)
        consumed[self.block_order] = np.diff(before)
        return consumed

    def _places(self, numbers: Int64Array) -> _Places:
        layout = self.layout
        place = numbers // layout.num_lanes
        lane = numbers - place * layout.num_lanes
        row_position = layout.origin[lane] + layout.direction[lane] * place
        at = np.searchsorted(self.row_first, row_position, side="right") - 1
        piece_low = np.maximum(self.row_first[at], layout.low[lane])
        return _Places(
            lane=lane,
            block=self.block_order[at].astype(np.int64),
            piece_low=piece_low,
            piece_high=np.minimum(self.row_first[at + 1], layout.high[lane]),
            piece_row=piece_low - self.row_first[at],
            in_piece=row_position - piece_low,
        )

    def _open(self, places: _Places, pieces: OpenPieces, state: int) -> Int64Array:
        """Shuffle the pieces that these samples are in; the samples' rows within their pieces.

        All pieces are sorted in two goes rather than one by one: a rank's first step opens one in each lane.
        """
        _, first, piece = np.unique(places.piece_low, return_index=True, return_inverse=True)
        length = (places.piece_high - places.piece_low)[first]
        end = np.cumsum(length)
        of_piece = np.repeat(np.arange(len(first), dtype=np.min_scalar_type(len(first))), length)
        row = np.arange(end[-1]) - (end - length)[of_piece]
        sample = (self.table.first_sample[places.block] + places.piece_row)[first][of_piece] + row
        by_key = np.argsort(keyed_order.keys_of(state, sample))
        row = row[by_key[np.argsort(of_piece[by_key], kind="stable")]]
        in_turn = np.argsort(first)  # as they come in their lanes, so the last of a lane stays
        for opened in in_turn[length[in_turn] > 1].tolist():
            at = first[opened]
            pieces.put(
                int(places.lane[at]),
                int(places.piece_low[at]),
                row[end[opened] - length[opened] : end[opened]],
            )
        rows: Int64Array = row[(end - length)[piece] + places.in_piece]
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class WholeOrder:
    """The order of one epoch over a dataset that is held whole: every sample shuffled with every other.

    Attributes:
        table: the dataset's blocks; here only what they hold matters, not where they are cut.
        sample_order: [num_samples] int32, positions in manifest order.
    """

    table: BlockTable
    sample_order: npt.NDArray[np.int32]

    @classmethod
    def shuffled(cls, table: BlockTable, *, seed: int, epoch: int) -> WholeOrder:
        """Samples as blocks of their own: in the order of the block keys of (seed, epoch)."""
        state = keyed_order.stream_state(keyed_order.BLOCK_ORDER, seed, epoch)
        return cls(table=table, sample_order=keyed_order.shuffled(state, table.num_samples))

    @property
    def layout(self) -> LaneLayout:
        """The only lane."""
        return LaneLayout.of(self.table.num_samples, 1)

    def open_pieces(self) -> OpenPieces:
        """An empty cache; none is needed here."""
        return OpenPieces(1, 0)

    def locate(self, numbers: Int64Array, pieces: OpenPieces) -> tuple[Int64Array, Int64Array]:  # noqa: ARG002
        """Block and row within the block of samples of the order; see LaneOrder.locate."""
        index = self.sample_order[numbers].astype(np.int64)
        block = self.table.block_of(index)
        return block, index - self.table.first_sample[block]

    def consumed_by_block(self, num_consumed: int) -> Int64Array:
        """How many samples of each block are among the first `num_consumed` of the order: [num_blocks]."""
        blocks = self.table.block_of(self.sample_order[:num_consumed])
        return np.bincount(blocks, minlength=self.table.num_blocks)


def _prime_factors(number: int) -> list[int]:
    factors = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
