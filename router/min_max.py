"""Divide one load over sets of brokers so that the fullest broker stays as empty as can be, then the next.

The idea: a share x_s of the load goes to set s and lands on every broker of it, so a broker ends at the level
`base_b + gain_b * (sum of x_s over the sets with b)`. Wanted are the shares whose levels, sorted from the
highest down, come first in lexicographic order. Those levels are unique; the shares need not be. Three ways:

- Sets without a broker in common: water-filling. Every set that gets anything has its fullest broker at one
  water line; found by bisection, exact.
- Coupled sets: one linear program after the other. Each finds the lowest possible maximum over the brokers
  that are still free. A broker is then held at it only if its dual value is positive, for then it is that
  full in *every* solution; that it is in the one which the solver returned proves nothing, and holding those
  left up to 37 points in the lower levels. Likewise a set with a positive reduced cost is empty in every
  solution and is dropped. At least one broker is held each time, so this ends.
- Too many coupled sets for that (one program takes a second for 3,000 sets over 1,000 brokers): the maximum
  is replaced by a smooth one (log-sum-exp), sharpened step by step, and minimised by Nesterov's accelerated
  method with entropy as the distance. There: 0.1 s, the highest level within 0.2 points, lower ones less
  exact. Nesterov, "Smooth minimization of non-smooth functions", 2005; Tseng, "On accelerated proximal
  gradient methods", 2008, algorithm 1.

The smooth solution comes first in any case, for two reasons. It empties sets: whatever shares one has, a set
with a broker whose base is not below the highest level among brokers that get something is empty in the
optimum (without this, each broker that is too full to be levelled takes a program of its own). And it is
spread over many sets where a program's solution uses as few as it can: of all shares with the best levels,
the ones nearest to the smooth solution are returned.

The solver can give up (seen where capacities differ a thousandfold: what is held then leaves it no room
within its tolerance, or where next to nothing is to come). What it found until then is held, below that the
smooth solution is followed where that can be, and the log says so.

Invariants, checked in tests/property/router/test_min_max.py:
1. Shares are at least 0 and sum to 1.
2. No other shares have sorted levels that come before (beyond 1e-6 of what the load adds; first two ways, as
   long as the solver doesn't give up).
3. Equal sets get equal shares.

Levels have no unit here; router/levelling.py makes them utilisations. No I/O but that line, no chance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.sparse

__all__ = ["FloatArray", "MinMaxProblem", "level", "level_anywhere"]

_log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

# Programs of up to this many sets times brokers take about 10 ms each on one core.
_EXACT_SIZE_MAX = 60_000
_EXACT_ROUNDS_MAX = 100
# Duals and reduced costs below this are zero to the solver (its own tolerance is 1e-7).
_DUAL_MIN = 1e-6
# Room for the rounding of the programs before, in units of what a share of 1 adds.
_ROOM = 1e-9
# Smaller shares are rounding.
_SHARE_MIN = 1e-7
# How sharp the smooth maximum gets, in 1 / (range of levels), and iterations at each.
_SHARPNESS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
_SMOOTH_ITERATIONS = 100
_SMOOTH_ITERATIONS_BEFORE_EXACT = 20


@dataclass(frozen=True, slots=True)
class MinMaxProblem:
    """What is to be levelled.

    Attributes:
        base: [num_brokers] level of each broker before anything is added.
        gain: [num_brokers] by how much a share of 1 raises it; above 0.
        sets: the brokers of each set, as positions in `base`; none is empty, none names a broker twice.
        counts: [num_sets] among sets of the same brokers, shares are in proportion to these; above 0.
    """

    base: FloatArray
    gain: FloatArray
    sets: tuple[tuple[int, ...], ...]
    counts: FloatArray

    def __post_init__(self) -> None:
        if not self.sets or not all(self.sets):
            raise ValueError("levelling needs at least one set, and no set may be empty")
        if len(self.counts) != len(self.sets) or not (self.counts > 0).all():
            raise ValueError("each set needs a count above 0")
        if not (np.isfinite(self.base).all() and np.isfinite(self.gain).all() and (self.gain > 0).all()):
            raise ValueError("levels have to be finite, and gains finite and above 0")

    def levels(self, shares: FloatArray) -> FloatArray:
        """[num_brokers] level of each broker when the sets get `shares` [num_sets]."""
        return _Copies.of(self.base, self.gain, self.sets).levels(shares)


def level(problem: MinMaxProblem) -> FloatArray:
    """Shares [num_sets], at least 0 and summing to 1, that make the sorted levels lexicographically least."""
    distinct = sorted(set(map(_sorted_set, problem.sets)))
    place = {members: position for position, members in enumerate(distinct)}
    which = np.array([place[_sorted_set(members)] for members in problem.sets], dtype=np.intp)
    counts = np.bincount(which, problem.counts, minlength=len(distinct))
    copies = _Copies.of(problem.base, problem.gain, distinct)
    shares = _level_distinct(copies, counts / counts.sum())
    return np.asarray(shares[which] * problem.counts / counts[which])


def level_anywhere(base: FloatArray, gain: FloatArray, copies: int) -> FloatArray:
    """What each broker would get if each of `copies` copies could lie anywhere, two of a kind never together.

    Returns:
        [num_brokers] shares of the load, from 0 to 1, summing to `copies` (or all 1 when there are no more
        brokers than copies), that make the sorted levels lexicographically least.
    """
    if copies >= len(base):
        return np.ones(len(base))

    def below(line: float) -> FloatArray:
        return np.clip((line - base) / gain, 0.0, 1.0)

    line = _bisect(lambda line: float(below(line).sum()) >= copies, base.min(), (base + gain).max())
    return below(line)


def _bisect(is_enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least number from `low` to `high` that is enough, to the last bit."""
    while low < (middle := low + (high - low) / 2) < high:
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high


def _sorted_set(members: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(members))


def _level_distinct(copies: _Copies, even: FloatArray) -> FloatArray:
    if copies.are_disjoint:
        return _fill(copies)
    is_small = len(copies.sizes) * len(np.unique(copies.brokers)) <= _EXACT_SIZE_MAX
    smooth = _smooth(copies, even, _SMOOTH_ITERATIONS_BEFORE_EXACT if is_small else _SMOOTH_ITERATIONS)
    kept = np.flatnonzero((smooth > 0) | ~_cannot_gain(copies, smooth))
    live = copies.keep(kept)
    nearby = smooth[kept] / smooth[kept].sum()
    shares = np.zeros(len(copies.sizes))
    if live.are_disjoint:
        shares[kept] = _fill(live)
    elif is_small:
        least = _lexicographic(live, nearby)
        if not least.is_complete:
            _say_incomplete(len(copies.sizes), len(np.unique(copies.brokers)))
        shares[kept] = _nearest(live, least, nearby)
    else:
        shares[kept] = nearby
    return shares


@dataclass(frozen=True, slots=True)
class _Copies:
    """The problem as flat arrays: one entry for each broker of each set, set after set."""

    base: FloatArray
    gain: FloatArray
    brokers: IntArray  # [num_copies]
    starts: IntArray  # [num_sets] where each set begins in `brokers`
    sizes: IntArray  # [num_sets]

    @classmethod
    def of(cls, base: FloatArray, gain: FloatArray, sets: Sequence[tuple[int, ...]]) -> _Copies:
        sizes = np.array([len(members) for members in sets], dtype=np.intp)
        brokers = np.array([broker for members in sets for broker in members], dtype=np.intp)
        return cls(base, gain, brokers, np.cumsum(sizes) - sizes, sizes)

    @property
    def are_disjoint(self) -> bool:
        return len(np.unique(self.brokers)) == len(self.brokers)

    def keep(self, kept: IntArray) -> _Copies:
        sizes = self.sizes[kept]
        is_kept = np.zeros(len(self.sizes), dtype=bool)
        is_kept[kept] = True
        brokers = self.brokers[np.repeat(is_kept, self.sizes)]
        return _Copies(self.base, self.gain, brokers, np.cumsum(sizes) - sizes, sizes)

    def sum_by_broker(self, shares: FloatArray) -> FloatArray:
        spread = np.repeat(shares, self.sizes)
        return np.asarray(np.bincount(self.brokers, spread, minlength=len(self.base)), dtype=np.float64)

    def levels(self, shares: FloatArray) -> FloatArray:
        return self.base + self.gain * self.sum_by_broker(shares)

    def sum_by_set(self, by_broker: FloatArray) -> FloatArray:
        return np.add.reduceat(by_broker[self.brokers], self.starts)

    def highest_by_set(self, by_broker: FloatArray) -> FloatArray:
        return np.maximum.reduceat(by_broker[self.brokers], self.starts)


def _fill(copies: _Copies) -> FloatArray:
    """Water-filling for sets without a common broker: one water line, bisected to the last bit."""
    base, gain = copies.base[copies.brokers], copies.gain[copies.brokers]

    def below(line: float) -> FloatArray:
        return np.maximum(np.minimum.reduceat((line - base) / gain, copies.starts), 0.0)

    line = _bisect(
        lambda line: float(below(line).sum()) >= 1.0,
        float(np.maximum.reduceat(base, copies.starts).min()),
        float(np.maximum.reduceat(base + gain, copies.starts).min()),
    )
    shares = below(line)
    if not shares.any():  # the load is lost in the rounding of the levels
        highest = copies.highest_by_set(copies.base)
        shares = (highest == highest.min()).astype(np.float64)
    return np.asarray(shares / shares.sum())


def _cannot_gain(copies: _Copies, shares: FloatArray) -> npt.NDArray[np.bool_]:
    """[num_sets] which sets get nothing in the optimum, as `shares` prove (see the module's docstring)."""
    reached = float(copies.levels(shares)[copies.sum_by_broker(shares) > 0].max())
    return np.asarray(copies.highest_by_set(copies.base) >= reached)


@dataclass(frozen=True, slots=True)
class _Least:
    shares: FloatArray  # [num_sets]
    ceiling: FloatArray  # [num_brokers] no level of theirs is above; equal to it where that is proven least
    is_complete: bool  # whether that is so everywhere


def _lexicographic(copies: _Copies, smooth: FloatArray) -> _Least:
    """One linear program for each level, from the highest down; `smooth` if the solver finds nothing."""
    num_sets = len(copies.sizes)
    is_free = np.ones(len(copies.base), dtype=bool)
    ceiling = np.full(len(copies.base), np.inf)
    kept = np.arange(num_sets)
    shares, highest = smooth, float(copies.levels(smooth).max())
    for _ in range(_EXACT_ROUNDS_MAX):
        live = _Programs(copies.keep(kept))
        if not is_free[live.brokers].any():
            return _Least(shares, copies.levels(shares), is_complete=True)
        solved = live.lowest_maximum(is_free[live.brokers], ceiling[live.brokers])
        if solved is None:
            break
        shares = np.zeros(num_sets)
        shares[kept] = solved.shares / solved.shares.sum()
        highest = solved.highest
        held = live.brokers[is_free[live.brokers] & (solved.dual > _DUAL_MIN)]
        is_free[held] = False
        ceiling[held] = highest
        kept = kept[solved.reduced_cost <= _DUAL_MIN]
    return _Least(shares, np.where(is_free, highest, ceiling), is_complete=False)


@lru_cache(maxsize=100)
def _say_incomplete(num_sets: int, num_brokers: int) -> None:
    """Once for a kind of problem: a producer decides each second."""
    _log.info(
        "levelling %d replica sets over %d brokers: the solver gave up; the fullest brokers are level, those "
        "below them only nearly",
        num_sets,
        num_brokers,
    )


def _nearest(copies: _Copies, least: _Least, wanted: FloatArray) -> FloatArray:
    """Of all shares that leave no broker above its ceiling, those that differ least from `wanted` in sum."""
    live = _Programs(copies)
    found = live.nearest(least.ceiling[live.brokers], wanted)
    # Where the solver finds none, there are still those that it found before, as level but on fewer sets.
    shares = least.shares if found is None else np.where(found < _SHARE_MIN, 0.0, found)
    return np.asarray(shares / shares.sum())


@dataclass(frozen=True, slots=True)
class _Solved:
    shares: FloatArray  # [num_sets]
    highest: float
    dual: FloatArray  # [num_brokers], at least 0, summing to 1 over the free ones
    reduced_cost: FloatArray  # [num_sets], at least 0


class _Programs:
    """The linear programs over some sets and the brokers on them.

    Levels are counted in units of what a share of 1 adds, so that the solver's tolerances (1e-7) mean the
    same for a load of a gigabyte and of a petabyte.
    """

    def __init__(self, copies: _Copies) -> None:
        self.brokers = np.unique(copies.brokers)
        self._base = copies.base[self.brokers]
        gain = copies.gain[self.brokers]
        self._scale = float(np.median(gain))
        rows = np.searchsorted(self.brokers, copies.brokers)
        columns = np.repeat(np.arange(len(copies.sizes)), copies.sizes)
        self._shape = (len(self.brokers), len(copies.sizes))
        self._added = scipy.sparse.csr_matrix((gain[rows] / self._scale, (rows, columns)), shape=self._shape)

    def lowest_maximum(self, is_free: npt.NDArray[np.bool_], ceiling: FloatArray) -> _Solved | None:
        """The lowest maximum over the free brokers while the others stay under their ceilings."""
        origin = float(self._base[is_free].max())
        below = (np.where(is_free, origin, ceiling) - self._base) / self._scale
        num_sets = self._shape[1]
        found = scipy.optimize.linprog(
            np.append(np.zeros(num_sets), 1.0),
            A_ub=scipy.sparse.hstack([self._added, -is_free.astype(float).reshape(-1, 1)], format="csr"),
            b_ub=below + np.where(is_free, 0.0, _ROOM),
            A_eq=np.append(np.ones(num_sets), 0.0).reshape(1, -1),
            b_eq=[1.0],
            bounds=np.column_stack([np.append(np.zeros(num_sets), -np.inf), np.full(num_sets + 1, np.inf)]),
            method="highs-ds",
        )
        if found.status != 0:
            return None
        return _Solved(
            shares=np.maximum(found.x[:-1], 0.0),
            highest=origin + self._scale * float(found.x[-1]),
            dual=-np.asarray(found.ineqlin.marginals),
            reduced_cost=np.asarray(found.lower.marginals[:-1]),
        )

    def nearest(self, ceiling: FloatArray, wanted: FloatArray) -> FloatArray | None:
        """Shares under the ceilings that differ least in sum from `wanted`."""
        num_sets = self._shape[1]
        found = scipy.optimize.linprog(
            np.ones(2 * num_sets),
            A_ub=scipy.sparse.hstack([self._added, -self._added], format="csr"),
            b_ub=(ceiling - self._base) / self._scale - self._added @ wanted + _ROOM,
            A_eq=np.append(np.ones(num_sets), -np.ones(num_sets)).reshape(1, -1),
            b_eq=[0.0],
            bounds=np.column_stack([np.zeros(2 * num_sets), np.append(np.full(num_sets, np.inf), wanted)]),
            method="highs-ds",
        )
        if found.status != 0:
            return None
        more, less = found.x[:num_sets], found.x[num_sets:]
        return np.asarray(np.maximum(wanted + more - less, 0.0))


def _smooth(copies: _Copies, even: FloatArray, iterations: int) -> FloatArray:
    """Shares whose highest level is nearly as low as can be, sharper and sharper, from `even` on."""
    num_sets = len(copies.sizes)
    shares = even
    kept = np.arange(num_sets)
    for sharpness in _SHARPNESS:
        live = copies.keep(kept)
        start = shares[kept] + 1e-6 / len(kept)  # a set whose share fell to zero could never come back
        found = _minimise_smooth_maximum(live, start / start.sum(), sharpness, iterations)
        shares = np.zeros(num_sets)
        shares[kept] = found
        # Sets with a broker that is above the line already only blind the smooth maximum to the others.
        levels = live.levels(found)
        line = float(np.dot(found, live.highest_by_set(levels)))
        blur = 2.0 * _range(live) / sharpness
        is_below = live.highest_by_set(live.base) <= line + blur
        kept = kept[is_below] if is_below.any() else kept
    result = np.zeros(num_sets)
    result[kept] = shares[kept]
    result[result < 1e-6 / num_sets] = 0.0
    return np.asarray(result / result.sum())


def _range(copies: _Copies) -> float:
    """What a level can differ by, to make sharpness a pure number: what an even division adds at the most.

    1 where all levels are the same, to rounding, whatever is added.
    """
    even = np.full(len(copies.sizes), 1.0 / len(copies.sizes))
    levels = copies.levels(even)[copies.brokers]
    return float(levels.max() - copies.base[copies.brokers].min()) or 1.0


def _minimise_smooth_maximum(
    copies: _Copies, start: FloatArray, sharpness: float, iterations: int
) -> FloatArray:
    """Accelerated mirror descent on (1 / sharpness) log sum exp(sharpness * level), shares kept positive."""
    eta = sharpness / _range(copies)
    used = np.unique(copies.brokers)

    def smooth_maximum(shares: FloatArray) -> tuple[float, FloatArray]:
        levels = copies.levels(shares)
        highest = levels[used].max()
        weights = np.zeros(len(levels))
        weights[used] = np.exp(eta * (levels[used] - highest))
        total = weights.sum()
        return float(highest + np.log(total) / eta), weights / total

    shares, mirror, momentum = start, start, 1.0
    added = copies.levels(start) - copies.base
    curvature = eta * float(added.max()) ** 2 + 1e-12
    for _ in range(iterations):
        between = (1.0 - momentum) * shares + momentum * mirror
        value, weights = smooth_maximum(between)
        slope = copies.sum_by_set(weights * copies.gain)
        for _ in range(40):
            exponent = slope / (-momentum * curvature)
            moved = mirror * np.exp(exponent - exponent.max()) + 1e-300
            moved /= moved.sum()
            trial = (1.0 - momentum) * shares + momentum * moved
            distance = float(np.dot(moved, np.log(moved / mirror)))
            bound = value + float(np.dot(slope, trial - between)) + momentum**2 * curvature * distance
            if smooth_maximum(trial)[0] <= bound + 1e-12 * abs(bound):
                break
            curvature *= 2.0
        if momentum < 0.5 and np.dot(slope, trial - shares) > 0:  # momentum carries it uphill: start again
            mirror, momentum = trial, 1.0
        else:
            mirror, momentum = moved, 2.0 / (1.0 + np.sqrt(1.0 + 4.0 / momentum**2))
        shares = trial
        curvature *= 0.9
    return shares
