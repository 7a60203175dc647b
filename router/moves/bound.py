"""The fewest bytes that any plan has to move: a plan is measured against it.

A linear program in which partitions can be cut anywhere and copies may lie together. It shares nothing with
the search, so that its answer is a check on it.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize

from evenload.router.brokers import BoolArray
from evenload.router.min_max import FloatArray

__all__ = ["least_bytes_to_move"]


def least_bytes_to_move(
    *,
    used: FloatArray,
    capacity: FloatArray,
    movable: FloatArray,
    drained: FloatArray,
    is_levelled: BoolArray,
    is_target: BoolArray,
    spread: float,
) -> int:
    """Bytes without which no moves bring the levelled brokers' utilisations within `spread` of each other.

    Args:
        used: [num_brokers] bytes held now.
        capacity: [num_brokers] above 0.
        movable: [num_brokers] the bytes of `used` that can be moved at all.
        drained: [num_brokers] bytes that have to leave, 0 where none do.
        is_levelled: [num_brokers] whose utilisations count.
        is_target: [num_brokers] who may get something.
        spread: highest minus lowest utilisation to be reached, from 0 to 1.
    """
    num_brokers = len(used)
    levelled = np.flatnonzero(is_levelled)
    if len(levelled) == 0:
        return int(drained.sum())
    # Variables: bytes coming to each broker, bytes leaving each, the lowest level; in mean capacities.
    unit = float(capacity.mean())
    coming, leaving = np.eye(num_brokers)[levelled], -np.eye(num_brokers)[levelled]
    level = (capacity[levelled] / unit).reshape(-1, 1)
    now = used[levelled] / unit
    found = scipy.optimize.linprog(
        np.concatenate([np.ones(num_brokers), np.zeros(num_brokers + 1)]),
        A_ub=np.vstack([np.hstack([coming, leaving, -level]), np.hstack([-coming, -leaving, level])]),
        b_ub=np.concatenate([spread * level[:, 0] - now, now]) + 1e-9,
        A_eq=np.concatenate([np.ones(num_brokers), -np.ones(num_brokers), [0.0]]).reshape(1, -1),
        b_eq=[0.0],
        bounds=[
            *((0.0, None if may_get else 0.0) for may_get in is_target),
            *((drained[b] / unit, max(drained[b], movable[b]) / unit) for b in range(num_brokers)),
            (None, None),
        ],
        method="highs",
    )
    if found.status != 0:  # not to be reached by moves, so nothing can be said of how many bytes it takes
        return 0
    return int(max(0.0, found.fun * unit))
