"""Jobs and curves for tests of policies; anybody's too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenload.governor.curves import SpeedCurve, interpolated
from evenload.governor.state import ClusterState, JobView


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
