"""The cluster as the governor knows it: it says what it sees, and starts and stops stints.

A stint is one stretch of a job's training at one size. An engine's answers may be a little old and its orders
may fail half-way, so nothing rests on an order's answer: what was ordered counts as done when it is seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

SIZE_MAX = 10_000  # workers of a job


class StintId(NamedTuple):
    """Which stint of which job; the first is 1. No number is given twice."""

    job_id: str
    number: int

    @property
    def submission_id(self) -> str:
        """What Ray calls it."""
        return f"evenload-{self.job_id}-{self.number}"


@dataclass(frozen=True, slots=True)
class Stint:
    """What an engine is to start."""

    id: StintId
    size: int
    entry: Mapping[str, Any]  # what to run, as it was submitted; only the engine knows what is in it


class Outcome(Enum):
    """What became of a stint."""

    FINISHED = "finished"  # the job has read all its samples
    STOPPED = "stopped"  # it was told to stop
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StintSeen:
    """What an engine sees of a stint."""

    samples_done: float  # by the job, in all its stints, as far as is known
    has_trained: bool  # it has made its first step
    samples_per_s: float | None = None  # of this stint without its beginning; None: not known yet
    outcome: Outcome | None = None  # None while it lives


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an engine sees."""

    cluster_id: str  # another one: the cluster was started anew, and no stint of before lives
    num_slots: int  # that jobs of the governor can have: without what others use
    stints: Mapping[StintId, StintSeen]  # all that live; of those that ended, at least the newest of each job


class Engine(Protocol):
    """Starts and stops stints. For one thread."""

    def look(self, current: Collection[StintId]) -> Observed:
        """What there is now.

        Args:
            current: Stints of which it matters what they have left behind; of others, only whether they live.

        Raises:
            EngineUnreachableError: It can't be known now.
        """

    def start(self, stint: Stint) -> None:
        """Begins a stint. One that was begun already, even if it has ended, is left as it is.

        Raises:
            EngineUnreachableError: It may have begun, or not.
            StintRefusedError: It won't ever begin.
        """

    def stop(self, stint_id: StintId) -> None:
        """Stops a stint after a checkpoint; one that isn't there, or is stopping, is left as it is.

        Raises:
            EngineUnreachableError: It may stop, or not.
        """
