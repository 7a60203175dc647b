"""From a state to sizes: plain jobs, what the policy wishes for the others, then the stages, in one order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from evenload.governor.deciding.brokers import spare_brokers
from evenload.governor.deciding.plain_jobs import fill_with_plain, place_plain
from evenload.governor.deciding.stages import Notes, give_places, hold, is_owed_place, round_down, rounded
from evenload.governor.deciding.state import ClusterState, Policy
from evenload.governor.deciding.teams import keep_guarantees, keep_limits, room_in


def decide(
    state: ClusterState, policy: Policy, *, wait_max_s: float = math.inf, notes: Notes | None = None
) -> dict[str, int]:
    """The size of each job from now on.

    Args:
        policy: What to wish for.
        wait_max_s: Who has waited so long, in seconds, gets a turn; infinite: nobody.
        notes: Gets why a job has another size than the policy wished for, by job.
    """
    plain = place_plain(state, wait_max_s=wait_max_s)
    held: Counter[str] = Counter()
    for job in state.plain:
        held[job.team] += plain[job.job_id]
    runs = replace(state, num_slots=state.num_slots - sum(plain.values()), plain=())
    return fill_with_plain(state, _decide_runs(runs, policy, held, wait_max_s, notes) | plain)


def _decide_runs(
    state: ClusterState, policy: Policy, held: Counter[str], wait_max_s: float, notes: Notes | None
) -> dict[str, int]:
    wished = policy(state)
    by_team = keep_guarantees(state, keep_limits(state, wished, held), held, notes=notes)
    sizes = give_places(state, by_team, wait_max_s=wait_max_s, limits=_limits(state, held), notes=notes)
    placed = {job.job_id for job in state.jobs if sizes[job.job_id] and not job.size}
    owed = {job.job_id for job in state.jobs if not job.size and is_owed_place(job, wait_max_s)}
    guaranteed = {job_id for job_id in placed if not wished.get(job_id)}
    sizes = keep_limits(state, sizes, held, protected=owed)
    sizes = round_down(
        state,
        sizes,
        num_used=max(sum(wished.values()), sum(by_team.values())),
        room=lambda new: room_in(state, new, held),
    )
    sizes, most = spare_brokers(state, sizes, room=lambda new: room_in(state, new, held), notes=notes)
    decided = hold(state, sizes, overriding=frozenset(owed | guaranteed), most=most, notes=notes)
    # Who stays as it is, or got back what nobody takes, may read more than was reckoned with; and it may be
    # over a limit that was lowered just now.
    decided, _ = spare_brokers(state, decided, notes=notes)
    limited = keep_limits(state, decided, held, protected=owed)
    return {
        job.job_id: decided[job.job_id]
        if limited[job.job_id] == decided[job.job_id]
        else rounded(job, limited[job.job_id])
        for job in state.jobs
    }


def _limits(state: ClusterState, held: Mapping[str, int]) -> dict[str, int]:
    """What runs of each team may have together."""
    return {
        name: team.limit - held.get(name, 0) for name, team in state.teams.items() if team.limit is not None
    }
