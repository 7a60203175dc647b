"""What is kept of each job: what was wished, where its workers stand, and what it has had so far.

A value that changes by replacement; the methods are all changes that there are. Times are seconds since 1970.

A job is wanted at a size from the moment that this is decided. Its workers follow when slots are free for
them, so for a while it holds fewer, none or more than it is wanted to have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from pydantic import ConfigDict

from evenload.governor.deciding.curves import SpeedCurve
from evenload.governor.deciding.state import JobView, PlainView
from evenload.governor.governing.engine import SIZE_MAX, Stint, StintId
from evenload.governor.governing.orders import Phase, Placement

DEFAULT_TEAM = "default"
SAMPLES_MAX, WEIGHT_MAX = 1e18, 1e6
FRUITLESS_MAX = 4  # starts in a row without a sample, after which a job has failed
BACKOFF_MIN_S, BACKOFF_MAX_S = 5.0, 300.0  # before a job that failed is started again
_AS_JSON = ConfigDict(extra="forbid", allow_inf_nan=False)
_ROUNDING_SAMPLES = 1e-9  # a job that lives has at least this left, whatever rounding says


class Ending(Enum):
    """How a job ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was submitted."""

    __pydantic_config__ = _AS_JSON

    job_id: str
    kind: str
    samples: float | None  # that it reads in all; None: a plain job, of which nothing is known but its size
    asked_size: int
    max_size: int
    min_size: int = 1
    sizes: tuple[int, ...] | None = None  # that it can have; None: all
    limit: int = SIZE_MAX  # more workers than this it can't ever have
    team: str = DEFAULT_TEAM
    weight: float = 1.0
    is_kept: bool = False  # a plain job that is never stopped once it runs
    entry: Mapping[str, Any] = field(default_factory=dict)  # for the engine

    def __post_init__(self) -> None:
        if not 1 <= self.min_size <= self.asked_size <= self.max_size <= SIZE_MAX:
            raise ValueError(
                f"{self.job_id}: a job has from 1 to {SIZE_MAX:,} workers and asks for a number that it may "
                f"have, not for {self.asked_size} of {self.min_size} to {self.max_size}"
            )
        self.check_sizes(self.min_size, self.max_size)
        if self.samples is None:
            if self.min_size != self.max_size:
                raise ValueError(
                    f"{self.job_id}: a plain job has one size, not {self.min_size} to {self.max_size}"
                )
        elif self.is_kept:
            raise ValueError(f"{self.job_id}: only a plain job can be kept from being stopped")
        for name, most in (("samples", SAMPLES_MAX), ("weight", WEIGHT_MAX)):
            value = getattr(self, name)
            if value is not None and not 0 < value <= most:
                raise ValueError(f"{self.job_id}: {name} is {value}, must be above 0, to {most:g}")

    def check_sizes(self, least: int, most: int) -> None:
        """Whether it can have from so many workers to so many.

        Raises:
            ValueError: It can't.
        """
        if not 1 <= least <= most <= self.limit:
            raise ValueError(f"{self.job_id} can have from 1 to {self.limit} workers, not {least} to {most}")
        if self.sizes is not None and not any(least <= size <= most for size in self.sizes):
            raise ValueError(f"{self.job_id}: none of its sizes is from {least} to {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job and its state."""

    __pydantic_config__ = _AS_JSON

    wish: Wish
    submitted_s: float
    phase: Phase = Phase.WAITING
    stint: int = 0  # number of the newest; 0: it was never started
    size: int = 0  # slots that it holds
    size_since_s: float = 0.0
    wanted: int = 0  # the size that was decided
    wanted_since_s: float
    has_place: bool = False  # it runs, or was stopped to go on at another size
    since_s: float  # since when it has had its place, or has waited for one
    waited_s: float = 0.0  # before it got its place
    longest_wait_s: float = 0.0
    slot_seconds: float = 0.0  # of stints that have ended
    stop_ordered_s: float | None = None  # of the resize that is under way
    samples_done: float = 0.0
    num_failures: int = 0  # in a row, without progress between them
    samples_at_failure: float = 0.0
    num_fruitless: int = 0  # of these, starts without a sample
    not_before_s: float = 0.0  # it isn't started again earlier
    bounds: tuple[int, int] | None = None  # of its size, as an operator has set them; None: as wished
    is_held: bool = False
    is_cancelled: bool = False
    ending: Ending | None = None
    ended_s: float = 0.0

    @property
    def job_id(self) -> str:
        return self.wish.job_id

    @property
    def min_size(self) -> int:
        return self.bounds[0] if self.bounds else self.wish.min_size

    @property
    def max_size(self) -> int:
        return self.bounds[1] if self.bounds else self.wish.max_size

    @property
    def asked_size(self) -> int:
        """As wished, within its bounds."""
        return min(max(self.wish.asked_size, self.min_size), self.max_size)

    @property
    def stint_id(self) -> StintId:
        """Of the newest stint."""
        return StintId(self.job_id, self.stint)

    @property
    def newest_stint(self) -> Stint:
        return Stint(self.stint_id, self.size, self.wish.entry)

    @property
    def is_interrupted(self) -> bool:
        """It waits because it was stopped to go on at another size."""
        return self.phase is Phase.WAITING and self.has_place

    @property
    def placement(self) -> Placement:
        return Placement(
            job_id=self.job_id,
            phase=self.phase,
            size=self.size,
            wanted=self.wanted,
            is_interrupted=self.is_interrupted,
        )

    def may_run(self, now_s: float) -> bool:
        """Whether there is anything to decide about it."""
        return not (self.ending or self.is_held or self.is_cancelled) and self.not_before_s <= now_s

    @property
    def is_plain(self) -> bool:
        """Nothing is known of it but the slots that it takes."""
        return self.wish.samples is None

    def plain_view(self, now_s: float) -> PlainView:
        """What is decided by, of a plain job."""
        return PlainView(
            job_id=self.job_id,
            submitted_s=self.submitted_s,
            asked_size=self.asked_size,
            team=self.wish.team,
            weight=self.wish.weight,
            size=self.wanted,
            is_kept=self.wish.is_kept,
            waiting_s=self.waited_s if self.has_place else self._lasted_s(now_s),
            running_s=self._lasted_s(now_s) if self.has_place else 0.0,
            slot_seconds=self.slot_seconds_at(now_s),
        )

    def view(self, speed: SpeedCurve, resize_cost_s: float, now_s: float, *, num_slots: int) -> JobView:
        """What a policy is given, of a run; it asks for no more than there is."""
        assert self.wish.samples is not None
        return JobView(
            job_id=self.job_id,
            submitted_s=self.submitted_s,
            speed=speed,
            asked_size=max(self.min_size, min(self.asked_size, num_slots)),
            min_size=self.min_size,
            most_size=self.max_size,
            samples_left=max(self.wish.samples - self.samples_done, _ROUNDING_SAMPLES),
            team=self.wish.team,
            weight=self.wish.weight,
            size=self.wanted,
            held_s=max(0.0, now_s - self.wanted_since_s),
            waiting_s=self.waited_s if self.has_place else self._lasted_s(now_s),
            running_s=self._lasted_s(now_s) if self.has_place else 0.0,
            slot_seconds=self.slot_seconds_at(now_s),
            resize_cost_s=resize_cost_s,
        )

    def slot_seconds_at(self, now_s: float) -> float:
        """Used by now, in all."""
        return self.slot_seconds + self.size * max(0.0, now_s - self.size_since_s)

    def seen_at(self, samples_done: float) -> Job:
        """After more of it was seen to be done."""
        # Whoever reports more than there is may not bring a record about that can't be read again.
        samples_done = min(samples_done, self.wish.samples or 0.0)
        return replace(self, samples_done=samples_done) if samples_done > self.samples_done else self

    def wanted_at(self, size: int, now_s: float) -> Job:
        """After a decision."""
        # An interrupted one that is given nothing has lost its place, and waits from now on.
        loses_place = self.is_interrupted and not size
        new = replace(self, wanted=size, wanted_since_s=now_s)
        return new._without_place(now_s) if loses_place else new

    def starting(self, size: int, number: int, now_s: float) -> Job:
        """After its next stint was ordered, by a number that no stint of it has had."""
        new = replace(
            self, phase=Phase.STARTING, stint=number, size=size, size_since_s=now_s, not_before_s=0.0
        )
        if self.has_place:
            return new
        waited_s = self._lasted_s(now_s)
        longest_wait_s = max(self.longest_wait_s, waited_s)
        return replace(new, has_place=True, since_s=now_s, waited_s=waited_s, longest_wait_s=longest_wait_s)

    def running(self) -> Job:
        """After its first step."""
        return replace(self, phase=Phase.RUNNING, stop_ordered_s=None, num_fruitless=0)

    def stopping(self, now_s: float) -> Job:
        """After its stop was ordered."""
        return replace(self, phase=Phase.STOPPING, stop_ordered_s=now_s)

    def stopped(self, now_s: float) -> Job:
        """After its stint ended, by an order or through no fault of its own."""
        new = replace(
            self,
            phase=Phase.WAITING,
            size=0,
            slot_seconds=self.slot_seconds_at(now_s),
            num_failures=0,
        )
        return new if self.wanted else new._without_place(now_s)

    def failed(self, now_s: float) -> Job:
        """After its stint ended by itself before all was done: it is started again later, or has failed."""
        has_progress = self.samples_done > self.samples_at_failure
        num_failures = 1 if has_progress else self.num_failures + 1
        # Its driver may not have been heard; what was saved says as well that it trained.
        num_fruitless = 0 if has_progress else self.num_fruitless + (self.phase is Phase.STARTING)
        backoff_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(num_failures - 1, 10))
        new = replace(
            replace(self, wanted=0, wanted_since_s=now_s).stopped(now_s),
            num_failures=num_failures,
            num_fruitless=num_fruitless,
            samples_at_failure=self.samples_done,
            not_before_s=now_s + backoff_s,
        )
        # What a plain job does a second time, nobody knows: who submitted it has to say that it shall.
        has_failed = self.is_plain or num_fruitless >= FRUITLESS_MAX
        return new.ended(Ending.FAILED, now_s) if has_failed else new

    def ended(self, ending: Ending, now_s: float) -> Job:
        """After its end; what it held is free."""
        freed = replace(self, wanted=0).stopped(now_s)
        return replace(freed, ending=ending, ended_s=now_s, not_before_s=0.0)

    def bounded(self, least: int, most: int) -> Job:
        """After an operator said from how many workers to how many it may have.

        Raises:
            ValueError: It can't have these.
        """
        if self.is_plain:
            raise ValueError(f"{self.job_id} is a plain job: it has {self.wish.asked_size} slots or none")
        self.wish.check_sizes(least, most)
        return replace(self, bounds=(least, most))

    def held(self, now_s: float) -> Job:
        """After someone said that it isn't to run for now."""
        return replace(self, is_held=True)._put_aside(now_s)

    def cancelled(self, now_s: float) -> Job:
        """After someone said that it isn't to run any more."""
        if self.phase is Phase.WAITING:
            return replace(self, is_cancelled=True).ended(Ending.CANCELLED, now_s)
        return replace(self, is_cancelled=True)._put_aside(now_s)

    def released(self, now_s: float) -> Job:
        """After someone said that it may run again, be it held or failed.

        Raises:
            ValueError: It is neither.
        """
        if not (self.is_held or self.ending is Ending.FAILED or self.not_before_s > now_s):
            raise ValueError(f"{self.job_id} is neither held nor has it failed")
        if self.ending not in (None, Ending.FAILED):
            raise ValueError(f"{self.job_id} has ended")
        released = replace(self, is_held=False, num_failures=0, num_fruitless=0, not_before_s=0.0)
        if self.ending is Ending.FAILED:
            return replace(released, ending=None, ended_s=0.0, since_s=now_s, wanted_since_s=now_s)
        return released

    def _lasted_s(self, now_s: float) -> float:
        """How long it has had its place, or has waited for one."""
        return max(0.0, now_s - self.since_s)

    def _put_aside(self, now_s: float) -> Job:
        """Wanted nowhere. One that starts is stopped at once; one that runs, with the next orders."""
        aside = self.wanted_at(0, now_s)
        return aside.stopping(now_s) if self.phase is Phase.STARTING else aside

    def _without_place(self, now_s: float) -> Job:
        return replace(self, has_place=False, since_s=now_s, waited_s=0.0, stop_ordered_s=None)
