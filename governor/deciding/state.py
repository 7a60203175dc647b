"""What a policy is given: all jobs on the cluster at one moment, as values.

A policy says what it wants by job id; who is left out gets nothing. It keeps nothing between two calls, so
policies can be swapped at any moment, and the same state always gets the same answer.

Units: seconds, samples, slots. A slot is what one worker takes; a job's size is its number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import ConfigDict

from evenload.governor.deciding.curves import SpeedCurve

Sizes = Mapping[str, int]  # by job id; who is left out has 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One training run that waits or runs."""

    job_id: str
    submitted_s: float
    speed: SpeedCurve  # up to the largest size that it may have
    asked_size: int  # what its user asked for, at least min_size: its size where nothing resizes
    min_size: int = 1  # from 1 to the best size of its curve
    most_size: int | None = None  # that it may have now; None: what its curve knows
    samples_left: float  # above 0
    team: str = ""
    weight: float = 1.0  # of its priority, above 0
    size: int = 0  # now, or on its way there; 0 waits
    held_s: float = 0.0  # how long it has had this size
    waiting_s: float = 0.0  # how long it has waited by now, or had before it last started
    running_s: float = 0.0  # since it last started, through any resize; 0 while it waits
    slot_seconds: float = 0.0  # used, in all
    resize_cost_s: float = 15.0  # from a stop to the first step at another size
    reads: Mapping[int, float] = field(default_factory=dict)  # bytes of a sample, from each broker

    def __post_init__(self) -> None:
        largest = len(self.speed.samples_per_s) - 1
        if not 1 <= self.min_size <= self.max_size:
            raise ValueError(f"{self.job_id}: min_size is {self.min_size}, must be from 1 to {self.max_size}")
        if not self.min_size <= self.asked_size <= largest:
            raise ValueError(
                f"{self.job_id}: asked_size is {self.asked_size}, must be from {self.min_size} to {largest}"
            )
        if not 0 <= self.size <= largest:
            raise ValueError(f"{self.job_id}: size is {self.size}, must be from 0 to {largest}")
        for name in ("samples_left", "weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{self.job_id}: {name} is {getattr(self, name)}, must be a number above 0")

    @property
    def max_size(self) -> int:
        """The largest size that is worth having: a larger one is not faster, or not allowed."""
        return self.speed.best_size

    @property
    def least_size(self) -> int:
        """The smallest size worth having that it can run with."""
        return next(size for size in self.speed.sizes if size >= self.min_size)

    def seconds_left(self, size: int) -> float:
        """Until its end at this size; infinite at 0."""
        speed = self.speed.samples_per_s[size]
        return self.samples_left / speed if speed else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """What is set of a team."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    limit: int | None = None  # slots that its jobs may have at most, together; None: all
    guarantee: int = 0  # slots that it gets when its jobs wait, though others have them

    def __post_init__(self) -> None:
        if self.guarantee < 0 or (self.limit is not None and not self.guarantee <= self.limit):
            raise ValueError(
                f"a team is guaranteed from 0 slots to its limit ({self.limit}), not {self.guarantee}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainView:
    """One job of which nothing is known but the slots that it takes. No policy is given it."""

    job_id: str
    submitted_s: float
    asked_size: int  # its only size
    team: str = ""
    weight: float = 1.0
    size: int = 0  # now, or on its way there; 0 waits
    is_kept: bool = False  # once it runs, it is never stopped
    waiting_s: float = 0.0
    running_s: float = 0.0
    slot_seconds: float = 0.0  # used, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What there is to decide about."""

    now_s: float  # seconds since 1970; a policy may go by the time of day
    num_slots: int  # 0 while no node is there
    jobs: tuple[JobView, ...]  # by submission
    plain: tuple[PlainView, ...] = ()  # by submission; a policy gets what they leave, and not themselves
    teams: Mapping[str, Team] = field(default_factory=dict)  # of which something is set
    read_budgets: Mapping[int, float] = field(default_factory=dict)  # bytes/s that brokers can give, above 0

    @property
    def all_jobs(self) -> tuple[JobView | PlainView, ...]:
        """Runs, then plain jobs."""
        return (*self.jobs, *self.plain)

    @property
    def num_free(self) -> int:
        """Slots that no job holds; below 0 where slots were lost."""
        return self.num_slots - sum(job.size for job in self.all_jobs)


Policy = Callable[[ClusterState], Sizes]
