"""What a policy is given: all jobs on the cluster at one moment, as values.

A policy says what it wants by job id; who is left out gets nothing. It keeps nothing between two calls, so
policies can be swapped at any moment, and the same state always gets the same answer.

Units: seconds, samples, slots. A slot is what one worker takes; a job's size is its number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evenload.governor.curves import SpeedCurve

Sizes = Mapping[str, int]  # by job id; who is left out has 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One training run that waits or runs."""

    job_id: str
    submitted_s: float
    asked_size: int  # what its user asked for: its size where nothing resizes
    min_size: int = 1
    speed: SpeedCurve  # up to the largest size that it may have
    samples_left: float  # above 0
    weight: float = 1.0  # of its priority, above 0
    size: int = 0  # now, or on its way there; 0 waits
    held_s: float = 0.0  # how long it has had this size, 0 too
    waited_s: float = 0.0  # at size 0, in all
    slot_seconds: float = 0.0  # used, in all
    resize_cost_s: float = 15.0  # from a stop to the first step at another size

    @property
    def max_size(self) -> int:
        """The largest size that is worth having: a larger one is not faster, or not allowed."""
        return self.speed.best_size

    def seconds_left(self, size: int) -> float:
        """Until its end at this size; infinite at 0."""
        speed = self.speed.samples_per_s[size]
        return self.samples_left / speed if speed else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What there is to decide about."""

    now_s: float
    num_slots: int
    jobs: tuple[JobView, ...]  # by submission

    @property
    def num_free(self) -> int:
        """Slots that no job holds."""
        return self.num_slots - sum(job.size for job in self.jobs)


Policy = Callable[[ClusterState], Sizes]
