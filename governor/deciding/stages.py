"""What is done with a policy's wish before it becomes sizes: each stage a pure function from sizes to sizes.

Slots are taken where least is lost by it and given where most is gained. Both are weighed as weight times the
change of speed over what is left: by what part of its remaining time a job ends sooner or later.

Invariants, checked in tests/property/governor/deciding/test_decisions.py:
1. No stage hands out more slots than there are; a job has none, or at least its least size.
2. Who has waited too long has a place, where there is one for each of those.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenload.governor.deciding.policies.dealing import TURN_S, turn
from evenload.governor.deciding.state import ClusterState, JobView

HORIZON_S = 900.0  # a resize has to pay back within it: by then, much else will have changed


Notes = dict[str, str]  # why a stage did what it did, by job


class Change(NamedTuple):
    """A job's size from one to another."""

    job: JobView
    old: int
    new: int

    @property
    def worth(self) -> float:
        """What each slot of the difference is worth, at least 0."""
        speeds = self.job.speed.samples_per_s
        gained = max(0.0, (speeds[self.new] - speeds[self.old]) / (self.new - self.old))
        return self.job.weight * gained / self.job.samples_left


def give_places(
    state: ClusterState,
    sizes: Mapping[str, int],
    *,
    wait_max_s: float,
    limits: Mapping[str, int] | None = None,
    notes: Notes | None = None,
) -> dict[str, int]:
    """Who has waited `wait_max_s` since it last ran gets a turn of 300 s with at least its least size.

    The slots come from jobs over their least, then from whole jobs. Where there isn't a place for each of
    those who have waited so long, they take turns.

    Args:
        limits: Slots that all jobs of a team may have; teams that may have all aren't there.
        notes: Gets who has a turn.
    """
    left = dict(limits or {})
    # One that needs more than there is would have all who came later wait as well.
    owed = [job for job in state.jobs if is_owed_place(job, wait_max_s) and job.least_size <= state.num_slots]
    placed: dict[str, int] = {}
    for job in sorted(owed, key=turn):
        if sum(placed.values()) + job.least_size > state.num_slots:
            break  # nobody comes in between: a large one would wait for ever while small ones begin by turns
        if job.least_size > left.get(job.team, job.least_size):
            continue  # its team's own jobs have to make room
        if job.team in left:
            left[job.team] -= job.least_size
        placed[job.job_id] = job.least_size
        if notes is not None and job.least_size > sizes.get(job.job_id, 0):
            notes[job.job_id] = f"has its turn after {job.waiting_s:.0f} s of waiting"
    new = {job.job_id: max(sizes.get(job.job_id, 0), placed.get(job.job_id, 0)) for job in state.jobs}
    excess = sum(new.values()) - state.num_slots
    excess -= take_slots(state.jobs, new, excess)
    take_jobs((job for job in state.jobs if job.job_id not in placed), new, excess)
    return new


def is_owed_place(job: JobView, wait_max_s: float) -> bool:
    """Whether a job has waited too long, or had before the turn that it has now."""
    return job.waiting_s >= wait_max_s and job.running_s < TURN_S


def take_slots(jobs: Iterable[JobView], sizes: dict[str, int], num_wanted: int) -> int:
    """Takes slots one by one from jobs that are over their least; returns how many."""

    def loss(job: JobView) -> tuple[float, float, str]:
        size = sizes[job.job_id]
        return (Change(job, size, size - 1).worth, -job.submitted_s, job.job_id)

    by_id = {job.job_id: job for job in jobs if sizes[job.job_id] > job.least_size}
    queue = [loss(job) for job in by_id.values()]
    heapq.heapify(queue)
    num_taken = 0
    while queue and num_taken < num_wanted:
        job = by_id[heapq.heappop(queue)[2]]
        sizes[job.job_id] -= 1
        num_taken += 1
        if sizes[job.job_id] > job.least_size:
            heapq.heappush(queue, loss(job))
    return num_taken


def take_jobs(jobs: Iterable[JobView], sizes: dict[str, int], num_wanted: int) -> None:
    """Takes all from one job after the other until there are so many slots."""
    running = [job for job in jobs if sizes[job.job_id]]
    for job in sorted(running, key=lambda job: (Change(job, sizes[job.job_id], 0).worth, -job.submitted_s)):
        if num_wanted <= 0:
            break
        num_wanted -= sizes[job.job_id]
        sizes[job.job_id] = 0


def round_down(
    state: ClusterState,
    sizes: Mapping[str, int],
    *,
    num_used: int,
    room: Callable[[Mapping[str, int]], Mapping[str, int]] = lambda _: {},
) -> dict[str, int]:
    """Each job's size becomes one that is worth having; the slots that this leaves are dealt out.

    The size that its user asked for stays, whatever it is worth.

    Args:
        num_used: As many slots are to be in use at most: a policy may want to leave some.
        room: How many slots more teams may have, at these sizes; teams that may have all aren't there.
    """
    new = {job.job_id: rounded(job, sizes.get(job.job_id, 0)) for job in state.jobs}
    num_freed = num_used - sum(new.values())
    while num_freed > 0:
        most = room(new)
        steps = [
            Change(job, new[job.job_id], larger)
            for job in state.jobs
            if (larger := next_size(job, new[job.job_id]))
            and larger - new[job.job_id] <= min(num_freed, most.get(job.team, num_freed))
        ]
        if not steps:
            break
        best = max(steps, key=lambda step: step.worth)
        new[best.job.job_id] = best.new
        num_freed -= best.new - best.old
    return new


def rounded(job: JobView, size: int) -> int:
    """The largest size worth having that isn't above this one; what was asked for stays."""
    if size == job.asked_size:
        return size
    return max((each for each in job.speed.sizes if job.min_size <= each <= size), default=0)


def next_size(job: JobView, size: int) -> int | None:
    """The smallest size worth having above this one that it can run with; None: there is none."""
    return next((each for each in job.speed.sizes if each > size and each >= job.min_size), None)


def hold(
    state: ClusterState,
    sizes: Mapping[str, int],
    *,
    overriding: frozenset[str] = frozenset(),
    most: Mapping[str, int] = MappingProxyType({}),
    notes: Notes | None = None,
) -> dict[str, int]:
    """Leaves jobs as they are whose resize wouldn't pay (hysteresis).

    A resize costs a job what it would have done meanwhile. So one grows only where it wins that back within
    its remaining time, at most 15 minutes, and shrinks only as far as others take its slots. One that has
    begun at its size just now, or is about to end, stays.

    Args:
        overriding: Jobs that start, whatever they gain by it.
        most: Sizes that jobs may not be above, whatever they lose by it.
        notes: Gets why jobs stay.
    """
    if state.num_free < 0:  # slots were lost: nobody can stay as it is for sure
        return dict(sizes)
    new = dict(sizes)
    for job in state.jobs:
        if job.size > most.get(job.job_id, job.size) and not ends_soon(job):
            continue
        if why := _why_it_stays(job, sizes[job.job_id]):
            new[job.job_id] = job.size
            if notes is not None:
                notes[job.job_id] = f"stays at {job.size}, and doesn't go to {sizes[job.job_id]}: {why}"
    _put_off(state, new, overriding)
    _give_back(state, new, most)
    return new


def _why_it_stays(job: JobView, size: int) -> str | None:
    if job.size in (0, size) or is_out_of_bounds(job):
        return None
    cost_s, left_s = job.resize_cost_s, job.seconds_left(job.size)
    if ends_soon(job):
        return f"it ends in {left_s:.0f} s"
    if job.held_s < 2 * cost_s:
        return f"it has been there for {job.held_s:.0f} s only"
    if size < job.size:
        return None
    old, new = job.speed.samples_per_s[job.size], job.speed.samples_per_s[size]
    if (new - old) * (min(left_s, HORIZON_S) - cost_s) <= old * cost_s:
        return f"it wouldn't win back the {cost_s:.0f} s that this costs"
    return None


def ends_soon(job: JobView) -> bool:
    """Whether it would end about as soon as it could go on at another size."""
    return bool(job.size) and job.seconds_left(job.size) < 2 * job.resize_cost_s


def is_out_of_bounds(job: JobView) -> bool:
    """Whether it has a size that somebody has said it may not have."""
    return bool(job.size) and not job.min_size <= job.size <= (job.most_size or job.size)


def _put_off(state: ClusterState, new: dict[str, int], overriding: frozenset[str]) -> None:
    """Whoever stays holds slots that others were to have: those wait, the one that gains least first."""
    growing = [Change(job, job.size, new[job.job_id]) for job in state.jobs if new[job.job_id] > job.size]
    excess = sum(new.values()) - state.num_slots
    for change in sorted(growing, key=lambda change: (change.job.job_id in overriding, change.worth)):
        if excess <= 0:
            break
        new[change.job.job_id] = change.old
        excess -= change.new - change.old


def _give_back(state: ClusterState, new: dict[str, int], bounds: Mapping[str, int]) -> None:
    """Who was to shrink keeps what nobody takes, the one that loses most first."""
    shrinking = [Change(job, job.size, new[job.job_id]) for job in state.jobs if new[job.job_id] < job.size]
    num_free = state.num_slots - sum(new.values())
    for job, old, least in sorted(shrinking, key=lambda change: -change.worth):
        if is_out_of_bounds(job):
            continue
        most = min(old, least + num_free, bounds.get(job.job_id, old))
        if most < old:  # one that was to stop doesn't go on with fewer: its rule may know but one size
            most = max((size for size in job.speed.sizes if 0 < least <= size <= most), default=least)
        new[job.job_id] = most
        num_free -= most - least
