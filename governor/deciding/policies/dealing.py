"""What rules are made of: filling sizes in an order, and dealing slots one by one.

Dealing gives nobody more than the size at which it is fastest. Where two are equal, the earlier in the order
wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from evenload.governor.deciding.state import JobView

TURN_S = 300.0


def turn(job: JobView) -> tuple[int, float]:
    """Sorts by whose turn it is: who began one ends it, then who has been without for longest."""
    if job.size:
        return (0 if job.running_s < TURN_S else 2, -job.running_s)
    return (1, -job.waiting_s)


def asked_size(job: JobView) -> int:
    """What its user asked for."""
    return job.asked_size


def least_size(job: JobView) -> int:
    """The least that it runs with."""
    return job.least_size


def fill(jobs: Iterable[JobView], size_of: Callable[[JobView], int], num_slots: int) -> dict[str, int]:
    """Each job in order gets its size where that still fits; who doesn't fit is passed over."""
    sizes: dict[str, int] = {}
    for job in jobs:
        size = size_of(job)
        if size <= num_slots:
            sizes[job.job_id] = size
            num_slots -= size
    return sizes


def deal_in_turn(jobs: Sequence[JobView], sizes: dict[str, int], num_slots: int) -> dict[str, int]:
    """What is left after `sizes` goes to those served, one slot a turn."""
    num_free = num_slots - sum(sizes.values())
    served = [job for job in jobs if job.job_id in sizes]
    while num_free and served:
        served = [job for job in served if sizes[job.job_id] < job.max_size]
        for job in served[:num_free]:
            sizes[job.job_id] += 1
        num_free -= min(num_free, len(served))
    return sizes


def deal_best(
    jobs: Sequence[JobView],
    sizes: dict[str, int],
    num_slots: int,
    gain: Callable[[JobView, int], float],
) -> dict[str, int]:
    """What is left after `sizes` goes, slot by slot, to the one of those served that gains most by it.

    Args:
        gain: What a job gains by one slot more than a size; never more at a larger size.
    """
    num_free = num_slots - sum(sizes.values())
    served = [job for job in jobs if job.job_id in sizes and sizes[job.job_id] < job.max_size]
    queue = [(-gain(job, sizes[job.job_id]), place) for place, job in enumerate(served)]
    heapq.heapify(queue)
    while num_free and queue:
        place = queue[0][1]
        job = served[place]
        size = sizes[job.job_id] = sizes[job.job_id] + 1
        num_free -= 1
        if size < job.max_size:
            heapq.heapreplace(queue, (-gain(job, size), place))
        else:
            heapq.heappop(queue)
    return sizes
