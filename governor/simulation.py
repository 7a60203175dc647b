"""A workload under a policy, in virtual time.

A job trains at its curve's speed, and a resize stops it for as long as it costs. Decisions fall half a second
after something has happened, and every minute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenload.governor.curves import SpeedCurve
from evenload.governor.decision import decide
from evenload.governor.errors import StuckError
from evenload.governor.state import ClusterState, JobView, Policy

TICK_S = 60.0
REACTION_S = 0.5
_ROUNDING_SAMPLES = 1e-9  # what rounding may leave of a job that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job of a workload."""

    job_id: str
    submitted_s: float
    asked_size: int
    samples: float
    speed: SpeedCurve


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job."""

    job: Submission
    ended_s: float
    longest_wait_s: float  # of all its waits for slots
    num_resizes: int
    slot_seconds: float

    @property
    def completion_s(self) -> float:
        """From submission to end."""
        return self.ended_s - self.job.submitted_s


@dataclass(slots=True)
class _Job:
    """A job that has come and not ended."""

    job: Submission
    samples_left: float
    size: int = 0
    size_since_s: float = 0.0
    ready_s: float = 0.0  # trains from then on
    waiting_s: float = 0.0  # now, or before it last started
    running_s: float = 0.0  # since it last started
    slot_seconds: float = 0.0
    longest_wait_s: float = 0.0
    num_resizes: int = 0
    has_started: bool = False

    def advance(self, now_s: float, until_s: float) -> None:
        speed = self.job.speed.samples_per_s[self.size]
        self.samples_left -= speed * max(0.0, until_s - max(now_s, self.ready_s))
        self.slot_seconds += self.size * (until_s - now_s)
        if self.size:
            self.running_s += until_s - now_s
        else:
            self.waiting_s += until_s - now_s
            self.longest_wait_s = max(self.longest_wait_s, self.waiting_s)

    def resize(self, size: int, now_s: float, cost_s: float) -> None:
        if not size:
            self.waiting_s = self.running_s = 0.0
        self.num_resizes += bool(size) and self.has_started
        self.has_started |= size > 0
        self.size, self.size_since_s, self.ready_s = size, now_s, now_s + cost_s

    def end_s(self, now_s: float) -> float:
        speed = self.job.speed.samples_per_s[self.size]
        return max(now_s, self.ready_s) + self.samples_left / speed if speed else math.inf

    def view(self, now_s: float, resize_cost_s: float) -> JobView:
        return JobView(
            job_id=self.job.job_id,
            submitted_s=self.job.submitted_s,
            asked_size=self.job.asked_size,
            speed=self.job.speed,
            samples_left=max(self.samples_left, _ROUNDING_SAMPLES),
            size=self.size,
            held_s=now_s - self.size_since_s,
            waiting_s=self.waiting_s,
            running_s=self.running_s,
            slot_seconds=self.slot_seconds,
            resize_cost_s=resize_cost_s,
        )


def simulate(
    workload: Sequence[Submission],
    policy: Policy,
    *,
    num_slots: int,
    resize_cost_s: float = 15.0,
    wait_max_s: float = math.inf,
) -> list[Ended]:
    """Runs a workload to its end.

    Args:
        workload: Jobs of different ids, by submission.
        resize_cost_s: What a start or a resize takes, in seconds.
        wait_max_s: As `decide` takes it.

    Raises:
        StuckError: The policy starts nothing though all slots are free, and no job is still to come.
    """
    coming = list(reversed(workload))
    jobs: dict[str, _Job] = {}
    ended: list[Ended] = []
    now_s = idle_since_s = workload[0].submitted_s if workload else 0.0
    decide_s = math.inf
    while coming or jobs:
        next_end = min(((each.end_s(now_s), job_id) for job_id, each in jobs.items()), default=(math.inf, ""))
        next_s = min(next_end[0], coming[-1].submitted_s if coming else math.inf, decide_s)
        for each in jobs.values():
            each.advance(now_s, next_s)
        now_s = next_s
        if any(each.size for each in jobs.values()) or coming:
            idle_since_s = now_s
        if next_s == next_end[0]:
            done = jobs.pop(next_end[1])
            ended.append(Ended(done.job, now_s, done.longest_wait_s, done.num_resizes, done.slot_seconds))
            decide_s = min(decide_s, now_s + REACTION_S)
        elif coming and next_s == coming[-1].submitted_s:
            job = coming.pop()
            jobs[job.job_id] = _Job(job, job.samples, size_since_s=now_s)
            decide_s = min(decide_s, now_s + REACTION_S)
        else:
            views = tuple(each.view(now_s, resize_cost_s) for each in jobs.values())
            state = ClusterState(now_s=now_s, num_slots=num_slots, jobs=views)
            for job_id, size in decide(state, policy, wait_max_s=wait_max_s).items():
                if size != jobs[job_id].size:
                    jobs[job_id].resize(size, now_s, resize_cost_s)
            patience_s = wait_max_s if wait_max_s < math.inf else 0.0
            if now_s - idle_since_s > patience_s + 2 * TICK_S:
                raise StuckError(tuple(jobs), num_slots)
            decide_s = now_s + TICK_S
    return ended
