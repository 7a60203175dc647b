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
from evenload.governor.state import ClusterState, JobView, Policy

TICK_S = 60.0
REACTION_S = 0.5


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
    started_s: float
    ended_s: float
    num_resizes: int
    slot_seconds: float

    @property
    def completion_s(self) -> float:
        """From submission to end."""
        return self.ended_s - self.job.submitted_s


@dataclass(slots=True)
class _Running:
    job: Submission
    samples_left: float
    size: int = 0
    since_s: float = 0.0  # has had this size
    ready_s: float = 0.0  # trains from then on
    waited_s: float = 0.0
    slot_seconds: float = 0.0
    started_s: float = math.nan
    num_resizes: int = 0

    def advance(self, now_s: float, until_s: float) -> None:
        speed = self.job.speed.samples_per_s[self.size]
        self.samples_left -= speed * max(0.0, until_s - max(now_s, self.ready_s))
        self.slot_seconds += self.size * (until_s - now_s)
        if not self.size:
            self.waited_s += until_s - now_s

    def end_s(self, now_s: float) -> float:
        speed = self.job.speed.samples_per_s[self.size]
        return max(now_s, self.ready_s) + self.samples_left / speed if speed else math.inf


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
        workload: Jobs, by submission.
        resize_cost_s: What a start or a resize takes, in seconds.
        wait_max_s: As `decide` takes it.
    """
    coming = list(reversed(workload))
    jobs: dict[str, _Running] = {}
    ended: list[Ended] = []
    now_s, decide_s = workload[0].submitted_s, math.inf
    while coming or jobs:
        next_end = min(((each.end_s(now_s), job_id) for job_id, each in jobs.items()), default=(math.inf, ""))
        next_s = min(next_end[0], coming[-1].submitted_s if coming else math.inf, decide_s)
        for each in jobs.values():
            each.advance(now_s, next_s)
        now_s = next_s
        if next_s == next_end[0]:
            done = jobs.pop(next_end[1])
            ended.append(Ended(done.job, done.started_s, now_s, done.num_resizes, done.slot_seconds))
            decide_s = min(decide_s, now_s + REACTION_S)
        elif coming and next_s == coming[-1].submitted_s:
            job = coming.pop()
            jobs[job.job_id] = _Running(job, job.samples, since_s=now_s)
            decide_s = min(decide_s, now_s + REACTION_S)
        else:
            _resize(
                jobs, policy, now_s, num_slots=num_slots, resize_cost_s=resize_cost_s, wait_max_s=wait_max_s
            )
            decide_s = now_s + TICK_S
    return ended


def _resize(
    jobs: dict[str, _Running],
    policy: Policy,
    now_s: float,
    *,
    num_slots: int,
    resize_cost_s: float,
    wait_max_s: float,
) -> None:
    views = tuple(_view(each, now_s, resize_cost_s) for each in jobs.values())
    sizes = decide(ClusterState(now_s=now_s, num_slots=num_slots, jobs=views), policy, wait_max_s=wait_max_s)
    assert sum(sizes.values()) <= num_slots, sizes
    for job_id, each in jobs.items():
        size = sizes.get(job_id, 0)
        if size != each.size:
            if size and math.isnan(each.started_s):
                each.started_s = now_s + resize_cost_s
            elif size:
                each.num_resizes += 1
            each.size, each.since_s, each.ready_s = size, now_s, now_s + resize_cost_s


def _view(each: _Running, now_s: float, resize_cost_s: float) -> JobView:
    return JobView(
        job_id=each.job.job_id,
        submitted_s=each.job.submitted_s,
        asked_size=each.job.asked_size,
        speed=each.job.speed,
        samples_left=each.samples_left,
        size=each.size,
        held_s=now_s - each.since_s,
        waited_s=each.waited_s,
        slot_seconds=each.slot_seconds,
        resize_cost_s=resize_cost_s,
    )
