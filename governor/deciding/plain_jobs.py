"""Which plain jobs run: those with one size, of which nobody knows what they have left.

Together they have up to their part of all slots, by weight, and what runs leave. Stopped, such a job may lose
all that it has done. So one that is to be kept stays whatever comes, any other for its turn, and then those
go first that had little so far.

Source: the order is that of Tiresias' two queues (Gu et al., NSDI 2019).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

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
        if job.asked_size > _room(state, job, held) and not (job.size and job.is_kept):
            continue
        if job.asked_size <= num_free and (stays or is_owed or num_held + job.asked_size <= share):
            sizes[job.job_id] = job.asked_size
            held[job.team] += job.asked_size
            num_free -= job.asked_size
    return sizes


def fill_with_plain(state: ClusterState, sizes: Mapping[str, int]) -> dict[str, int]:
    """What nobody takes goes to plain jobs that wait.

    Args:
        sizes: Of all jobs, as decided.
    """
    new = dict(sizes)
    held: Counter[str] = Counter()
    for each in state.all_jobs:
        held[each.team] += new[each.job_id]
    num_free = state.num_slots - sum(new.values())
    for job in sorted(state.plain, key=lambda job: _place(job, math.inf)):
        room = _room(state, job, held)
        if not new[job.job_id] and job.asked_size <= min(num_free, room):
            new[job.job_id] = job.asked_size
            held[job.team] += job.asked_size
            num_free -= job.asked_size
    return new


def _room(state: ClusterState, job: PlainView, held: Counter[str]) -> int:
    """How many slots more its team may have."""
    limit = state.teams[job.team].limit if job.team in state.teams else None
    return state.num_slots if limit is None else limit - held[job.team]


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
