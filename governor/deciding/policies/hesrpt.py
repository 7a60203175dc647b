"""heSRPT: optimal for jobs with one common speed-up k ** p; the shorter a job, the larger its part.

Source: Berg, Vesilo and Harchol-Balter, "heSRPT: Parallel scheduling to minimize mean slowdown"
(Performance 2020), theorem 4, with weights.
"""

from __future__ import annotations

from itertools import accumulate

from evenload.governor.deciding.state import ClusterState, Sizes

EXPONENT = 0.6  # of the common speed-up


def hesrpt(state: ClusterState) -> Sizes:
    """Parts by rank of what is left, rounded down; the rest to the largest fractions, then the shortest."""
    longest_first = sorted(
        state.jobs, key=lambda job: (-job.samples_left / job.speed.hull[1], -job.submitted_s)
    )
    if not longest_first:
        return {}
    c = 1 / (1 - EXPONENT)
    total = sum(job.weight for job in longest_first)
    shares = [
        (w / total) ** c * state.num_slots for w in accumulate((j.weight for j in longest_first), initial=0)
    ]
    exact = {
        job.job_id: high - low for job, low, high in zip(longest_first, shares, shares[1:], strict=False)
    }
    sizes = {job.job_id: min(int(exact[job.job_id]), job.max_size) for job in longest_first}
    num_free = state.num_slots - sum(sizes.values())
    shortest_first = longest_first[::-1]
    for job in sorted(shortest_first, key=lambda job: int(exact[job.job_id]) - exact[job.job_id])[:num_free]:
        if sizes[job.job_id] < job.max_size:
            sizes[job.job_id] += 1
            num_free -= 1
    for job in shortest_first:
        more = min(num_free, job.max_size - sizes[job.job_id])
        sizes[job.job_id] += more
        num_free -= more
    return sizes
