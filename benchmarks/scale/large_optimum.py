"""The best possible levels of a large cluster: as optimum.py, but in seconds for a thousand brokers.

The yardstick of `benchmarks scale`; it shares no code with `router`. Asking of each broker whether it could
be lower, as optimum.py does, takes a thousand programs a level. Three facts spare most of them:

- The line, the highest level of a broker that gets anything, can be searched for: with only the sets allowed
  whose brokers are all below a bound already, the lowest maximum falls as the bound rises, until it is below
  the bound itself. (All programs after that have only the sets that can get anything.)
- A broker with a positive dual value is as full in every solution, so it is held without asking; a set with a
  positive reduced cost is empty in every solution and is dropped.
- Once what is held allows only one solution, nothing is left to ask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Places = NDArray[np.intp]

# The solver's tolerance is 1e-7, in units of what a share of 1 adds to a broker.
ZERO = 1e-6
# Room for rounding, in the same units.
ROOM = 1e-9


@dataclass(frozen=True, slots=True)
class _Solved:
    shares: Numbers
    highest: float
    dual: Numbers
    reduced_cost: Numbers


def best_levels(start: Numbers, gain: Numbers, sets: Places) -> Numbers:
    """Levels, lexicographically smallest from the highest down.

    Args:
        start: [num_brokers] Levels before anything is added.
        gain: [num_brokers] What a share of 1 adds to each.
        sets: [num_sets, num_copies] The brokers of each set.
    """
    kept = np.unique(np.sort(sets, axis=1), axis=0)
    kept = kept[start[kept].max(axis=1) <= _bound(start, gain, kept)]
    is_free = np.zeros(len(start), dtype=bool)
    is_free[kept] = True
    ceiling = np.full(len(start), np.inf)
    while True:
        solved = _lowest_maximum(start, gain, kept, is_free, ceiling)
        held = is_free & (solved.dual > ZERO)
        is_free &= ~held
        ceiling[held] = solved.highest
        is_kept = solved.reduced_cost <= ZERO
        kept = kept[is_kept]
        levels = start + gain * _added(kept, solved.shares[is_kept], len(start))
        # What was found has to be possible still: a hundred programs' roundings would add up otherwise.
        ceiling = np.where(np.isfinite(ceiling), np.maximum(ceiling, levels), ceiling)
        if not is_free[kept].any() or _is_unique(kept, ceiling):
            return np.asarray(levels)


def _added(sets: Places, shares: Numbers, num_brokers: int) -> Numbers:
    """[num_brokers] of a load of 1, what lands on each; shares are divided by their sum."""
    spread = np.repeat(shares / shares.sum(), sets.shape[1])
    return np.bincount(sets.ravel(), spread, minlength=num_brokers).astype(np.float64)


def _bound(start: Numbers, gain: Numbers, sets: Places) -> float:
    """The highest broker of a set that can get anything, before it does."""
    fullest = start[sets].max(axis=1)
    bounds = np.unique(fullest)
    below, above = 0, len(bounds)  # the bound at `below` is under the line, the one at `above` is not
    while above - below > 1:
        middle = (below + above) // 2
        allowed = sets[fullest <= bounds[middle]]
        is_free = np.zeros(len(start), dtype=bool)
        is_free[allowed] = True
        found = _lowest_maximum(start, gain, allowed, is_free, np.full(len(start), np.inf))
        if bounds[middle] < found.highest - ZERO:
            below = middle
        else:
            above = middle
    return float(bounds[below])


def _lowest_maximum(
    start: Numbers, gain: Numbers, sets: Places, is_free: NDArray[np.bool_], ceiling: Numbers
) -> _Solved:
    """The lowest maximum over the free brokers, with the others under their ceilings."""
    brokers = np.unique(sets)
    free = is_free[brokers]
    scale = float(np.median(gain[brokers]))
    rows = np.searchsorted(brokers, sets.ravel())
    columns = np.repeat(np.arange(len(sets)), sets.shape[1])
    added = scipy.sparse.csr_matrix(
        (gain[brokers][rows] / scale, (rows, columns)), shape=(len(brokers), len(sets))
    )
    origin = float(start[brokers].max())
    bound = (np.where(free, origin, ceiling[brokers]) - start[brokers]) / scale
    found = scipy.optimize.linprog(
        np.append(np.zeros(len(sets)), 1.0),
        A_ub=scipy.sparse.hstack([added, -free.astype(float).reshape(-1, 1)], format="csr"),
        b_ub=bound + np.where(free, 0.0, ROOM),
        A_eq=np.append(np.ones(len(sets)), 0.0).reshape(1, -1),
        b_eq=[1.0],
        bounds=[(0, None)] * len(sets) + [(None, None)],
        method="highs",
    )
    if found.status != 0:
        raise ArithmeticError(f"the linear program of the optimum failed: {found.message}")
    dual = np.zeros(len(start))
    dual[brokers] = -found.ineqlin.marginals
    return _Solved(
        shares=np.maximum(found.x[:-1], 0.0),
        highest=origin + scale * float(found.x[-1]),
        dual=dual,
        reduced_cost=np.asarray(found.lower.marginals[:-1]),
    )


def _is_unique(sets: Places, ceiling: Numbers) -> bool:
    """Whether the held brokers' levels, and that shares sum to 1, leave just one solution."""
    held = np.flatnonzero(np.isfinite(ceiling))
    if len(held) + 1 < len(sets):
        return False
    rows = np.full(len(ceiling), -1)
    rows[held] = np.arange(len(held))
    matrix = np.zeros((len(held) + 1, len(sets)))
    matrix[-1] = 1.0
    for copy in range(sets.shape[1]):
        is_held = rows[sets[:, copy]] >= 0
        matrix[rows[sets[is_held, copy]], np.flatnonzero(is_held)] = 1.0
    return int(np.linalg.matrix_rank(matrix)) == len(sets)
