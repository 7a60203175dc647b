"""Which samples of a step are whose.

When the world size W divides the number of lanes C, rank r has the lanes r, r + W, ...: as sample i is in
lane i mod C, it belongs to rank i mod W, and any step is divided evenly, whatever its size and place.
Otherwise the samples of a step, sorted by where their lanes lie in the row, are cut into W even parts; the
lanes of a step are spread evenly over the row, so a rank's part lies nearly in the same place in every step,
and only the lanes at the cuts are read by two ranks.

Invariants, checked in tests/property/ray_trainer/planning/test_exactness.py:
1. Each sample of a step belongs to one rank, and shares differ by at most one sample; so with at most as many
   ranks as samples none is empty.
2. Counting a rank's samples in a stretch of a lane by formula gives what listing them gives.

Read next: needs.py, which counts; plan.py.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from evenload.ray_trainer.planning.lanes import LaneLayout
from evenload.ray_trainer.planning.steps import Step, num_full_steps, steps

Int64Array = npt.NDArray[np.int64]


def check_rank(rank: int, world_size: int) -> None:
    """Raises:
    ValueError: no such rank.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} ranks, 0 to {world_size - 1}")


def rank_numbers(step: Step, layout: LaneLayout, *, rank: int, world_size: int) -> Int64Array:
    """Numbers (in the order of the epoch) of the samples of a step that are this rank's.

    Args:
        step: any stretch of the order.
        layout: of the lanes.
        rank: 0 to world_size - 1.
        world_size: at least 1.

    Returns:
        [n] int64, n being floor or ceil of step samples / world_size; ascending within each lane.
    """
    check_rank(rank, world_size)
    num_lanes = layout.num_lanes
    if num_lanes % world_size == 0:
        return np.arange(step.start + (rank - step.start) % world_size, step.stop, world_size)
    low, high = (step.num_samples * r // world_size for r in (rank, rank + 1))
    if num_lanes == 1:
        return np.arange(step.start + low, step.start + high)
    numbers = np.arange(step.start, step.stop)
    by_segment = np.argsort(layout.segment[numbers % num_lanes].astype(np.int32), kind="stable")
    return numbers[by_segment[low:high]]


class WholeLanes:
    """What is still a rank's from some step on, when the world size divides the number of lanes.

    Attributes:
        lanes: [n] int64, the rank's.
    """

    def __init__(self, layout: LaneLayout, *, start: int, rank: int, world_size: int) -> None:
        self.lanes = np.arange(rank, layout.num_lanes, world_size)
        self._first_place = layout.places_before(start, np.arange(layout.num_lanes))

    def count_before(self, lane: Int64Array, place: Int64Array) -> Int64Array:
        """How many samples the rank takes from the start on of places below `place` of these lanes."""
        count: Int64Array = np.maximum(0, place - self._first_place[lane])
        return count


class CutLanes:
    """What is still a rank's from some step on, when each step is cut anew.

    A step of G samples touches the lanes as the step C / gcd(C, G) steps before did, so a table of that many
    steps says of every step which of its samples in each lane are the rank's: so many are skipped, so many
    taken. The last one or two steps have other sizes and rows of their own.

    Attributes:
        lanes: [n] int64, those from which the rank takes anything.
    """

    def __init__(
        self,
        layout: LaneLayout,
        *,
        num_samples: int,
        start: int,
        global_batch_size: int,
        rank: int,
        world_size: int,
    ) -> None:
        self._layout = layout
        num_lanes = layout.num_lanes
        full = num_full_steps(num_samples - start, global_batch_size)
        self._start, self._size, self._num_full = start, global_batch_size, full
        self._period = min(full, num_lanes // math.gcd(num_lanes, global_batch_size))
        tail = list(steps(num_samples, global_batch_size, start + full * global_batch_size))
        self._tail_starts = np.array([step.start for step in tail], dtype=np.int64)
        starts = np.append(start + global_batch_size * np.arange(self._period), self._tail_starts)
        stops = np.append(starts[: self._period] + global_batch_size, [step.stop for step in tail])
        all_lanes = np.arange(num_lanes)
        first_places = layout.places_before(starts[:, None], all_lanes)
        counts = layout.places_before(stops[:, None], all_lanes) - first_places
        by_segment = np.argsort(layout.segment)
        before = np.empty_like(counts)
        before[:, by_segment] = np.cumsum(counts[:, by_segment], axis=1) - counts[:, by_segment]
        low, high = ((stops - starts) * r // world_size for r in (rank, rank + 1))
        self._skip = np.clip(low[:, None] - before, 0, counts)
        self._take = np.clip(high[:, None] - before, 0, counts) - self._skip
        self._taken = self._taken_before_each_row()
        self.lanes = np.flatnonzero(self._take.sum(axis=0))

    def _taken_before_each_row(self) -> Int64Array:
        """Within the period, since its beginning; of the last steps, since the start. [rows + 1, C]"""
        taken = np.zeros((len(self._take) + 1, self._layout.num_lanes), dtype=np.int64)
        np.cumsum(self._take, axis=0, out=taken[1:])
        self._per_period = taken[self._period].copy()
        if self._period:
            periods, rest = divmod(self._num_full, self._period)
            taken[self._period :] += (periods - 1) * self._per_period + taken[rest]
        return taken

    def count_before(self, lane: Int64Array, place: Int64Array) -> Int64Array:
        """How many samples the rank takes from the start on of places below `place` of these lanes."""
        number = lane + self._layout.num_lanes * place
        step = np.clip((number - self._start) // self._size, 0, self._num_full)
        in_tail = step == self._num_full
        tail_step = np.maximum(0, np.searchsorted(self._tail_starts, number, side="right") - 1)
        period, in_period = np.divmod(step, max(1, self._period))
        row = np.where(in_tail, self._period + tail_step, in_period)
        step_start = np.where(in_tail, self._tail_starts[tail_step], self._start + step * self._size)
        in_step = place - self._layout.places_before(step_start, lane)
        taken = self._taken[row, lane] + np.where(in_tail, 0, period * self._per_period[lane])
        count: Int64Array = taken + np.clip(in_step - self._skip[row, lane], 0, self._take[row, lane])
        return count
