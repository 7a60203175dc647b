"""From a state to sizes: plain jobs, what the policy wishes for the others, then the stages, in one order."""

from __future__ import annotations

import math
from dataclasses import replace

from evenload.governor.deciding.plain_jobs import place_plain
from evenload.governor.deciding.stages import Notes, give_places, hold, is_owed_place, round_down
from evenload.governor.deciding.state import ClusterState, Policy


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
    state = replace(state, num_slots=state.num_slots - sum(plain.values()), plain=())
    wished = policy(state)
    sizes = give_places(state, wished, wait_max_s=wait_max_s, notes=notes)
    owed = frozenset(job.job_id for job in state.jobs if not job.size and is_owed_place(job, wait_max_s))
    sizes = round_down(state, sizes, num_used=sum(wished.values()))
    return hold(state, sizes, overriding=owed, notes=notes) | plain
