"""Which plain jobs run: those with one size, of which nobody knows what they have left.

Together they have up to their part of all slots, by weight; where no runs are there, all of them. Stopped,
such a job may lose all that it has done. So one that is to be kept stays whatever comes, any other for its
turn, and then those go first that had little so far.

Source: the order is that of Tiresias' two queues (Gu et al., NSDI 2019).
"""

from __future__ import annotations

from collections import Counter

from evenload.governor.deciding.policies.dealing import TURN_S
from evenload.governor.deciding.policies.rigid import LITTLE_SLOT_SECONDS
from evenload.governor.deciding.state import ClusterState, PlainView


def place_plain(state: ClusterState, *, wait_max_s: float) -> dict[str, int]:
    """The size of each plain job from now on, 0 or what it asked for.

    Args:
        wait_max_s: Who has waited so long, in seconds, goes before those that are past their turn.
    """
    weight = sum(job.weight for job in state.plain)
    weight_of_all = weight + sum(job.weight for job in state.jobs)
    share = state.num_slots * weight / weight_of_all if weight_of_all else 0.0
    sizes = dict.fromkeys((job.job_id for job in state.plain), 0)
    num_free = state.num_slots
    held: Counter[str] = Counter()
    for job in sorted(state.plain, key=lambda job: _place(job, wait_max_s)):
        stays = job.size and (job.is_kept or job.running_s < TURN_S)
        is_owed = not job.size and job.waiting_s >= wait_max_s
        num_held = state.num_slots - num_free
        limit = state.teams[job.team].limit if job.team in state.teams else None
        if limit is not None and held[job.team] + job.asked_size > limit and not (job.size and job.is_kept):
            continue
        if job.asked_size <= num_free and (stays or is_owed or num_held + job.asked_size <= share):
            sizes[job.job_id] = job.asked_size
            held[job.team] += job.asked_size
            num_free -= job.asked_size
    return sizes


def _place(job: PlainView, wait_max_s: float) -> tuple[int, bool, float]:
    """Sorts by who is first to have slots."""
    if job.size and job.is_kept:
        rung = 0
    elif job.size and job.running_s < TURN_S:
        rung = 1
    elif not job.size and job.waiting_s >= wait_max_s:
        rung = 2
    else:
        rung = 3
    return (rung, job.slot_seconds >= LITTLE_SLOT_SECONDS, job.submitted_s)
