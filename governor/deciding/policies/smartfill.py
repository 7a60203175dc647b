"""SmartFill: sizes from a price for each job's speed.

If all jobs are there, have one curve, and resizing costs nothing, the sizes that minimise the weighted sum of
completion times are found as follows. Each job has a price that never changes, and at any moment the slots
are dealt so that the sum of price times speed is as large as it can be. That largest sum is the weight of the
jobs that are there. The job that ends last is alone at its end, so its price follows from its weight; each
other price follows from those of the jobs that end later. With several curves, which job ends last is a guess
(the longest at its best speed). Jobs that come later are met by deciding anew.

Invariants, checked in tests/unit/governor/deciding/policies/test_smartfill.py:
1. Where speed grows as the square root of the size, the prices are 1, sqrt 3, sqrt 5 (as heSRPT's).
2. With one curve for all, the sum of completion times of a simulation is the sum of price times samples.

Source: SmartFill (arXiv:2509.01811) for the idea; the discrete form was derived for this.
"""

from __future__ import annotations

from heapq import merge
from itertools import accumulate, islice
from operator import itemgetter

from evenload.governor.deciding.state import ClusterState, JobView, Sizes


def smartfill(state: ClusterState) -> Sizes:
    """One slot each to the largest gains, price times samples/s."""
    sizes: dict[str, int] = {}
    if not state.num_slots:
        return sizes
    for _, job_id in priced_gains(state.jobs, state.num_slots)[1]:
        sizes[job_id] = sizes.get(job_id, 0) + 1
    return sizes


def priced_gains(
    jobs: tuple[JobView, ...], num_slots: int
) -> tuple[dict[str, float], list[tuple[float, str]]]:
    """Prices by job id, in 1/(samples/s), and the largest gains of all jobs with whose they are.

    Takes num_slots steps a job. `num_slots` is at least 1.
    """
    prices: dict[str, float] = {}
    gains: list[tuple[float, str]] = []  # the largest, at most num_slots of them, descending
    weight = 0.0

    def last_first(job: JobView) -> tuple[float, float]:
        return (-job.samples_left / (job.weight * job.speed.hull[job.max_size]), -job.submitted_s)

    for job in sorted(jobs, key=last_first):
        weight += job.weight
        # What the jobs before would gain with n slots, n from 0 on; beyond the last, no more.
        of_others = list(accumulate((gain for gain, _ in gains), initial=0.0))
        price = min(
            (weight - of_others[min(num_slots - size, len(gains))]) / job.speed.hull[size]
            for size in range(1, min(num_slots, job.max_size) + 1)
        )
        prices[job.job_id] = price
        own = [(price * gain, job.job_id) for gain in job.speed.gains]
        gains = list(islice(merge(own, gains, key=itemgetter(0), reverse=True), num_slots))
    return prices, gains
