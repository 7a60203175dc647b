"""How fast a run is at each size.

Speed grows with size up to a knee, then stays or falls, and drops where a run spreads over one node more.
Rules that compare what one more slot is worth need diminishing returns, so beside the speeds stands their
concave hull: the speeds that can be had on average by alternating between two sizes.

Invariants, checked in tests/property/governor/deciding/test_curves.py:
1. The hull is concave, rises up to the best size and stays there.
2. It is nowhere below the speed of a size worth having, and equals it at each corner.

Source: Optimus (EuroSys 2018) and AFS (NSDI 2021) make greedy rules right by such hulls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple


class Corner(NamedTuple):
    """Where the hull changes its slope."""

    size: int
    samples_per_s: float


@dataclass(frozen=True)
class SpeedCurve:
    """Speeds at sizes from 0 to the largest that a job may have; a value.

    Attributes:
        samples_per_s: By size, beginning with 0.0 for size 0; above 0 from size 1 on.
        sizes: Those worth having, ascending: each faster than all smaller ones. The hull is over these.
    """

    samples_per_s: tuple[float, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        speeds = self.samples_per_s
        if len(speeds) < 2 or speeds[0] != 0:
            raise ValueError(f"a curve begins with 0 for size 0 and has a size above it, not {speeds[:5]}")
        if not all(0 < speed < math.inf for speed in speeds[1:]):
            raise ValueError("the speed at each size from 1 on has to be a number above 0")
        known = [size for size in self.sizes if 0 < size < len(speeds)]
        if not known or known != list(self.sizes) or not _rises([speeds[size] for size in known]):
            raise ValueError(f"sizes worth having are ascending and each is faster, not {self.sizes[:5]}")

    @cached_property
    def corners(self) -> tuple[Corner, ...]:
        """The corners of the concave hull, from (0, 0) to the best size."""
        corners: list[Corner] = []
        for corner in (Corner(size, self.samples_per_s[size]) for size in (0, *self.sizes)):
            while len(corners) > 1 and not _is_above(corners[-1], corners[-2], corner):
                corners.pop()
            corners.append(corner)
        return tuple(corners)

    @property
    def best_size(self) -> int:
        """The fastest of the sizes that are worth having."""
        return self.sizes[-1]

    @cached_property
    def hull(self) -> tuple[float, ...]:
        """Samples/s by size on the concave hull; from the best size on its speed."""
        speeds = [0.0]
        for low, high in pairwise(self.corners):
            slope = (high.samples_per_s - low.samples_per_s) / (high.size - low.size)
            speeds += [low.samples_per_s + slope * n for n in range(1, high.size - low.size)]
            speeds.append(high.samples_per_s)
        return tuple(speeds + [speeds[-1]] * (len(self.samples_per_s) - len(speeds)))

    @cached_property
    def gains(self) -> tuple[float, ...]:
        """Samples/s that each slot adds on the hull, up to the best size: never more than the one before."""
        return tuple(high - low for low, high in pairwise(self.hull[: self.best_size + 1]))


def _rises(values: Sequence[float]) -> bool:
    return all(low < high for low, high in pairwise(values))


def _is_above(middle: Corner, left: Corner, right: Corner) -> bool:
    """Whether a corner lies above the line between its neighbours."""
    return (middle.samples_per_s - left.samples_per_s) * (right.size - left.size) > (
        right.samples_per_s - left.samples_per_s
    ) * (middle.size - left.size)


def interpolated(measured: Mapping[int, float], *, among: Collection[int] | None = None) -> SpeedCurve:
    """A curve through measured speeds, linear between two of them, up to the largest.

    Args:
        measured: Samples/s by size, at least one.
        among: Sizes that a job can have; None: all.
    """
    speeds = _between(measured)
    return SpeedCurve(tuple(speeds), _worth_having(speeds, among))


def explored(
    measured: Mapping[int, float], *, largest: int, among: Collection[int] | None = None, guess_per_s: float
) -> SpeedCurve:
    """A curve through what was measured so far, such that larger sizes are tried where that may pay.

    From the largest size that was measured to twice that, each slot is taken to add half of what the last
    one did; from there on, nothing. So a job that grows by what is known doubles its size at most.

    Args:
        measured: Samples/s by size; there may be none yet.
        largest: The largest size that the job may have, or has.
        among: Sizes that it can have, at least one of them up to `largest`; None: all.
        guess_per_s: Samples/s, taken for all sizes while none was measured.
    """
    if not measured:
        speeds = [0.0] + [guess_per_s] * largest
        return SpeedCurve(tuple(speeds), _worth_having(speeds, among))
    speeds = _between(measured)
    gain = max(0.0, speeds[-1] - speeds[-2]) / 2
    num_measured = len(speeds) - 1
    for size in range(num_measured + 1, largest + 1):
        speeds.append(speeds[-1] + (gain if size <= 2 * num_measured else 0.0))
    del speeds[largest + 1 :]
    return SpeedCurve(tuple(speeds), _worth_having(speeds, among))


def _between(measured: Mapping[int, float]) -> list[float]:
    """Speeds by size from 0 to the largest that was measured."""
    speeds = [0.0]
    for (low, before), (high, after) in pairwise([(0, 0.0), *sorted(measured.items())]):
        speeds += [before + (after - before) * n / (high - low) for n in range(1, high - low)]
        speeds.append(after)
    return speeds


def _worth_having(speeds: Sequence[float], among: Collection[int] | None) -> tuple[int, ...]:
    sizes: list[int] = []
    fastest = 0.0
    for size, speed in enumerate(speeds):
        if speed > fastest and (among is None or size in among):
            sizes.append(size)
            fastest = speed
    return tuple(sizes)
