"""What teams may have at most, and what they get when their jobs wait.

Slots that a team's guarantee would have given it are lent to others while it doesn't need them. They come
back by shrinking jobs of the team that is furthest over its own guarantee, and never by stopping one.

Invariants, checked in tests/property/governor/deciding/test_teams.py:
1. No team has more than its limit.
2. While a job of a team waits that would fit under its guarantee, no job of a team over its own could shrink.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from evenload.governor.deciding.stages import Notes, take_jobs, take_slots
from evenload.governor.deciding.state import ClusterState, JobView

Held = Mapping[str, int]  # slots by team, of jobs that no policy decides about


def keep_limits(
    state: ClusterState, sizes: Mapping[str, int], held: Held, *, protected: Collection[str] = ()
) -> dict[str, int]:
    """Takes from each team what it has over its limit.

    Args:
        protected: Jobs that are not stopped for it.
    """
    new = {job.job_id: sizes.get(job.job_id, 0) for job in state.jobs}
    for name, team in state.teams.items():
        if team.limit is not None:
            jobs = _jobs_of(state, name)
            excess = held.get(name, 0) + sum(new[job.job_id] for job in jobs) - team.limit
            excess -= take_slots(jobs, new, excess)
            take_jobs((job for job in jobs if job.job_id not in protected), new, excess)
    return new


def room_in(state: ClusterState, sizes: Mapping[str, int], held: Held) -> dict[str, int]:
    """How many slots more each team may have; teams without a limit aren't there."""
    return {
        name: team.limit - held.get(name, 0) - sum(sizes[job.job_id] for job in _jobs_of(state, name))
        for name, team in state.teams.items()
        if team.limit is not None
    }


def keep_guarantees(
    state: ClusterState, sizes: Mapping[str, int], held: Held, *, notes: Notes | None = None
) -> dict[str, int]:
    """Jobs that wait start at their least size where their team stays within its guarantee by it.

    Args:
        sizes: Of all jobs.
        notes: Gets who starts so.
    """
    new = dict(sizes)
    for name in sorted(state.teams):
        for job in _jobs_of(state, name):
            used = held.get(name, 0) + sum(new[other.job_id] for other in _jobs_of(state, name))
            if new[job.job_id] or used + job.least_size > state.teams[name].guarantee:
                continue
            missing = job.least_size - (state.num_slots - sum(new.values()))
            after = dict(new)
            if missing <= 0 or _take_back(state, after, held, missing):
                new = after | {job.job_id: job.least_size}
                if notes is not None:
                    notes[job.job_id] = f"starts by the guarantee of team {name!r}"
    return new


def _take_back(state: ClusterState, sizes: dict[str, int], held: Held, num_wanted: int) -> bool:
    """Shrinks jobs of teams over their guarantee, the furthest first; says whether that was enough."""
    names = {job.team for job in state.jobs}
    while num_wanted > 0:
        by_team = {name: _jobs_of(state, name) for name in names}
        over = {
            name: held.get(name, 0)
            + sum(sizes[job.job_id] for job in jobs)
            - (state.teams[name].guarantee if name in state.teams else 0)
            for name, jobs in by_team.items()
            if any(sizes[job.job_id] > job.least_size for job in jobs)
        }
        name = max(sorted(over), key=over.__getitem__, default="")
        if not name or over[name] <= 0:
            return False
        num_wanted -= take_slots(by_team[name], sizes, 1)
    return True


def _jobs_of(state: ClusterState, team: str) -> list[JobView]:
    return [job for job in state.jobs if job.team == team]
