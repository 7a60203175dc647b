"""Rules that give each job the size its user asked for, or nothing."""

from __future__ import annotations

from evenload.governor.deciding.policies.dealing import asked_size, fill, turn
from evenload.governor.deciding.state import ClusterState, Sizes

LITTLE_SLOT_SECONDS = 57_600.0  # 16 slot-hours: the threshold between Tiresias' two queues


def fifo(state: ClusterState) -> Sizes:
    """First in, first out: who runs stays, and the first that doesn't fit holds up all who came later."""
    sizes = _running(state)
    num_free = state.num_slots - sum(sizes.values())
    for job in state.jobs:
        if job.job_id in sizes:
            continue
        if job.asked_size > num_free:
            break
        sizes[job.job_id] = job.asked_size
        num_free -= job.asked_size
    return sizes


def fifo_backfill(state: ClusterState) -> Sizes:
    """The same, but those that don't fit are passed over (backfilling, without reservation)."""
    sizes = _running(state)
    waiting = [job for job in state.jobs if job.job_id not in sizes]
    return sizes | fill(waiting, asked_size, state.num_slots - sum(sizes.values()))


def round_robin(state: ClusterState) -> Sizes:
    """Turns of 300 s; one that doesn't fit beside those in turn is passed over."""
    return fill(sorted(state.jobs, key=turn), asked_size, state.num_slots)


def las(state: ClusterState) -> Sizes:
    """Least attained service in two queues: those first that have had little, each queue by submission.

    Source: Tiresias (Gu et al., NSDI 2019), discretised 2D-LAS.
    """
    ordered = sorted(state.jobs, key=lambda job: job.slot_seconds >= LITTLE_SLOT_SECONDS)
    return fill(ordered, asked_size, state.num_slots)


def srtf(state: ClusterState) -> Sizes:
    """Shortest remaining time first."""
    ordered = sorted(state.jobs, key=lambda job: job.seconds_left(job.asked_size))
    return fill(ordered, asked_size, state.num_slots)


def _running(state: ClusterState) -> dict[str, int]:
    """Those that run, at the size that they have; where slots were lost, not all of them."""
    return fill((job for job in state.jobs if job.size), lambda job: job.size, state.num_slots)
