"""The best that any choice of partitions could have reached: a lexicographic min-max by linear programs.

The yardstick of `benchmarks balance`. It shares no code with `router`, on purpose, and takes the textbook's
slow way: minimise the highest utilisation; find which brokers can't be below it; hold those there; go on with
the rest (Ogryczak and Sliwinski, "On direct methods for lexicographic min-max optimization", 2006).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

# Room for what the solver rounds. Its own tolerance has to be far below that: where both were 1e-7, its
# presolver called a program with just that much room infeasible, about once in four hundred random clusters.
# A broker counts as held when all that room together (a few brokers', times the quotient of their capacities)
# is all that it could be lowered by.
SOLVER_TOLERANCE = 1e-9
TOLERANCE = 1e-7
HELD = 1000 * TOLERANCE

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


def best_utilisation(
    *,
    other_bytes: Mapping[int, float],
    capacity_bytes: Mapping[int, float],
    replica_sets: Sequence[Sequence[int]],
    payload_bytes: float,
) -> dict[int, float]:
    """Utilisation by broker when the payload is spread over the replica sets as well as can be.

    Args:
        other_bytes: What each broker holds beside the payload, in bytes.
        capacity_bytes: What each broker may hold, in bytes, above 0.
        replica_sets: The brokers of each partition of the topic; equal sets may repeat.
        payload_bytes: Bytes to spread, counted once; every replica of a set stores its share.

    Returns:
        Broker id to utilisation, lexicographically smallest from the highest down.
    """
    brokers = sorted(capacity_bytes)
    sets = sorted({tuple(sorted(replicas)) for replicas in replica_sets})
    start = np.array([other_bytes[broker] / capacity_bytes[broker] for broker in brokers])
    gain = np.array(
        [
            [payload_bytes / capacity_bytes[broker] * (broker in replicas) for replicas in sets]
            for broker in brokers
        ]
    )
    ceiling = np.full(len(brokers), np.inf)
    while (free := np.isinf(ceiling)).any():
        highest = _minimise(free, start, gain, ceiling)
        for position in np.flatnonzero(free):
            trial = np.where(free, highest + TOLERANCE, ceiling)
            lowest = _minimise(np.arange(len(brokers)) == position, start, gain, trial)
            if lowest >= highest - HELD:
                ceiling[position] = highest + TOLERANCE
        if (np.isinf(ceiling) == free).all():
            raise ArithmeticError(f"no broker is held at the highest utilisation {highest}: {ceiling}")
    return {broker: float(value) for broker, value in zip(brokers, ceiling - TOLERANCE, strict=True)}


def _minimise(chosen: Flags, start: Numbers, gain: Numbers, ceiling: Numbers) -> float:
    """Minimise the highest utilisation of the chosen brokers; the others stay below their ceilings.

    Variables: one share a replica set, then the bound.
    """
    num_sets = gain.shape[1]
    bounded = np.hstack([gain[chosen], -np.ones((chosen.sum(), 1))])
    capped = np.isfinite(ceiling)
    kept = np.hstack([gain[capped], np.zeros((capped.sum(), 1))])
    solved = linprog(
        c=np.append(np.zeros(num_sets), 1.0),
        A_ub=np.vstack([bounded, kept]),
        b_ub=np.concatenate([-start[chosen], (ceiling - start)[capped]]),
        A_eq=np.append(np.ones(num_sets), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0, 1)] * num_sets + [(None, None)],
        method="highs",
        options={
            "primal_feasibility_tolerance": SOLVER_TOLERANCE,
            "dual_feasibility_tolerance": SOLVER_TOLERANCE,
        },
    )
    if solved.status != 0:
        raise ArithmeticError(f"the linear program of the optimum failed: {solved.message}")
    return float(solved.fun)
