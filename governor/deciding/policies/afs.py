"""AFS-L: the next slot goes to the winner of a tournament, in which short jobs and steep curves win.

Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning" (NSDI 2021), algorithm 2.
"""

from __future__ import annotations

import functools
import math

from evenload.governor.deciding.state import ClusterState, JobView, Sizes


def afs(state: ClusterState) -> Sizes:
    """A slot to the shorter of two, unless the longer speeds up by more."""
    sizes = dict.fromkeys((job.job_id for job in state.jobs), 0)

    def winner(one: JobView, other: JobView) -> JobView:
        k, n = sizes[one.job_id], sizes[other.job_id]
        if k == n == 0:
            return other if _seconds_left(other, 1) < _seconds_left(one, 1) else one
        if _seconds_left(one, k) <= _seconds_left(other, n):
            short, long, k, n = one, other, k, n
        else:
            short, long, k, n = other, one, n, k
        h, g = short.speed.hull, long.speed.hull
        return long if (g[n + 1] - g[n]) / g[n + 1] > (h[k + 1] - h[k]) / h[k] else short

    playing = list(state.jobs)
    for _ in range(state.num_slots):
        if not playing:
            break
        won = functools.reduce(winner, playing)
        sizes[won.job_id] += 1
        if sizes[won.job_id] == won.max_size:
            playing.remove(won)
    return sizes


def _seconds_left(job: JobView, size: int) -> float:
    return job.samples_left / job.speed.hull[size] if size else math.inf
