"""Jobs and curves for tests of policies, anybody's too; a journal that keeps nothing on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from evenload.governor.deciding.curves import SpeedCurve, interpolated
from evenload.governor.deciding.state import ClusterState, JobView
from evenload.governor.errors import EngineUnreachableError, RecordError
from evenload.governor.governing.engine import Observed, Outcome, Stint, StintId, StintSeen
from evenload.governor.governing.records import Decision, Records


def make_curve(speed_of: Callable[[int], float], max_size: int) -> SpeedCurve:
    """A curve through a function of the size."""
    return interpolated({size: speed_of(size) for size in range(1, max_size + 1)})


def make_job(job_id: str, **fields: Any) -> JobView:
    """A job that waits, with what isn't told: speed 100 samples/s a worker up to 8 workers."""
    told: dict[str, Any] = {
        "submitted_s": 0.0,
        "asked_size": 4,
        "speed": make_curve(lambda size: 100.0 * size, 8),
        "samples_left": 100_000.0,
    }
    return JobView(job_id=job_id, **(told | fields))


def make_state(*jobs: JobView, num_slots: int = 8, now_s: float = 0.0) -> ClusterState:
    """A cluster with these jobs, by submission."""
    return ClusterState(
        now_s=now_s, num_slots=num_slots, jobs=tuple(sorted(jobs, key=lambda job: job.submitted_s))
    )


class StillEngine:
    """A cluster on which nothing goes on: what is started trains at once, and never ends until it is stopped.

    Attributes:
        unreachable: Why it can't be asked; None: it can.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._stints: dict[StintId, StintSeen] = {}
        self.unreachable: str | None = None

    def look(self, current: Collection[StintId] = ()) -> Observed:  # noqa: ARG002 - the signature is the engine's
        """What was started and stopped."""
        self._check()
        return Observed(cluster_id="still", num_slots=self._num_slots, stints=dict(self._stints))

    def start(self, stint: Stint) -> None:
        """It trains from now on."""
        self._check()
        self._stints.setdefault(stint.id, StintSeen(samples_done=0.0, has_trained=True))

    def stop(self, stint_id: StintId) -> None:
        """It has stopped."""
        self._check()
        if stint_id in self._stints:
            self._stints[stint_id] = replace(self._stints[stint_id], outcome=Outcome.STOPPED)

    def _check(self) -> None:
        if self.unreachable:
            raise EngineUnreachableError(self.unreachable)


class MemoryJournal:
    """Keeps what is written as long as it lives itself."""

    def __init__(self) -> None:
        self._kept = Records({}, {}, None)

    def write(self, changes: Records) -> None:
        """Puts what has changed in place of what stood there."""
        self._kept = Records(
            {
                job_id: job
                for job_id, job in {**self._kept.jobs, **changes.jobs}.items()
                if job_id not in changes.forgotten
            },
            {**self._kept.kinds, **changes.kinds},
            changes.cluster_id or self._kept.cluster_id,
            changes.policy or self._kept.policy,
            teams={**self._kept.teams, **changes.teams},
        )

    def prove(self) -> None:
        """Nobody else writes."""

    def read(self) -> Records:
        """All that was written."""
        return self._kept

    def open(self) -> tuple[Records, list[RecordError]]:
        """All that was written; nothing of it is damaged."""
        return self._kept, []

    def decisions(self, num_max: int) -> list[Decision]:  # noqa: ARG002 - the signature is the journal's
        """None of earlier governors."""
        return []

    def close(self) -> None:
        """Keeps it all the same."""
