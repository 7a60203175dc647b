"""A lower bound on the mean completion time of a workload, for any policy and free resizes.

A job's completion is at least the mean time at which its samples are read, plus half of what it takes at
its best speed. Minimised over all ways to share the slots, that is a convex problem. Its dual needs one price
of a slot-second for each interval between two submissions, and any prices at all give a lower bound. Prices
are improved by subgradient steps: up where jobs, each filled as cheaply as can be, would use more slots than
there are.

Source: mean busy times (Goemans et al., SIAM J. Discrete Mathematics 2002); the form with curves was derived
for this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenload.governor.simulating.simulation import Submission

NUM_STEPS = 150
TAIL_S, TAIL_GROWTH = 100.0, 1.05  # the first piece of the time after the last submission; each next one
_STEP = 0.02  # of prices, in jobs a slot: what a slot-second is worth, about


def mean_completion_bound(
    workload: Sequence[Submission], num_slots: int, *, num_steps: int = NUM_STEPS
) -> float:
    """No policy has a mean completion below this, in seconds.

    Args:
        workload: Jobs, by submission.
        num_steps: More come nearer to the largest bound that can be had so.
    """
    starts, lengths = _intervals(workload)
    jobs = [_Filled(job, starts, lengths) for job in workload]
    base = sum(job.samples / (2 * job.speed.hull[-1]) for job in workload)
    prices = np.zeros(len(starts))
    best = 0.0
    for step in range(num_steps):
        used = np.zeros(len(starts))
        cost = base
        for job in jobs:
            cost += job.fill(prices, used)
        best = max(best, cost - num_slots * float(prices @ lengths))
        over = np.clip(used / (num_slots * lengths) - 1, -1, 1)
        prices += _STEP * len(workload) / num_slots / np.sqrt(1 + step) * over
        np.maximum(prices, 0, out=prices)
    return best / len(workload)


def _intervals(workload: Sequence[Submission]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and lengths of the times between submissions, then of as long as all takes on one slot."""
    starts = sorted({job.submitted_s for job in workload})
    rest_s = sum(job.samples / job.speed.hull[1] for job in workload)
    # Not in one piece: within an interval, samples count as read at its start.
    pieces = [TAIL_S]
    while sum(pieces) < rest_s:
        pieces.append(pieces[-1] * TAIL_GROWTH)
    edges = np.concatenate([starts, starts[-1] + np.cumsum(pieces)])
    return edges[:-1], np.diff(edges)


class _Filled:
    """A job's samples, filled into intervals and slopes of its hull where they cost least."""

    def __init__(self, job: Submission, starts: np.ndarray, lengths: np.ndarray) -> None:
        sizes, speeds = np.array(job.speed.corners).T
        widths, slopes = np.diff(sizes), np.diff(speeds) / np.diff(sizes)
        first = int(np.searchsorted(starts, job.submitted_s))
        self._first, self._samples = first, job.samples
        late = (starts[first:] - job.submitted_s) / job.samples
        self._late = np.repeat(late, len(slopes))
        self._room = (lengths[first:, None] * widths * slopes).ravel()
        self._num_intervals, self._num_slopes = len(late), len(slopes)
        self._slots_per_sample = np.tile(1 / slopes, len(late))

    def fill(self, prices: np.ndarray, used: np.ndarray) -> float:
        """The least that its samples cost; adds the slot-seconds of each interval to `used`."""
        costs = self._late + np.repeat(prices[self._first :], self._num_slopes) * self._slots_per_sample
        order = np.argsort(costs, kind="stable")
        upto = np.minimum(np.cumsum(self._room[order]), self._samples)
        taken = np.diff(upto, prepend=0.0)
        filled = np.empty_like(taken)
        filled[order] = taken
        by_interval = (filled * self._slots_per_sample).reshape(self._num_intervals, self._num_slopes)
        used[self._first :] += by_interval.sum(axis=1)
        return float(costs[order] @ taken)
