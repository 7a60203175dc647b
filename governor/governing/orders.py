"""In which order a decision is carried out, so that no slot is held twice.

A resize is a stop, then a start at the other size. Stops come first; a job starts when its slots are free;
one that grows runs on until what is free, with what it holds itself, is enough. What such a job will need
beside its own is kept for it while it stops.

Invariants, checked in tests/property/governor/governing/test_orders.py, whatever fails in between:
1. What all jobs hold, on their way up or down too, is never more than there is.
2. If nothing new is decided, every job comes to have the size that was decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Phase(Enum):
    """Where a job's workers stand."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a job holds, and what was decided for it."""

    job_id: str
    phase: Phase
    size: int  # slots that it holds; 0 exactly while it waits
    wanted: int
    is_interrupted: bool = False  # it waits because it was stopped to go on at another size


class Stop(NamedTuple):
    """Stop a job after a checkpoint."""

    job_id: str


class Start(NamedTuple):
    """Start a job, or go on with it."""

    job_id: str
    size: int


def next_orders(jobs: Sequence[Placement], num_slots: int) -> list[Stop | Start]:
    """What can be ordered now; the rest follows as slots become free.

    Args:
        jobs: All, those whose turn comes first at the front. Jobs on their way are left alone.
        num_slots: What there is now.
    """
    num_free = num_slots - sum(job.size for job in jobs)
    num_free -= sum(max(0, job.wanted - job.size) for job in jobs if job.phase is Phase.STOPPING)
    # One that starts is left alone, unless slots were lost: it may wait for its own for ever.
    has_lost = sum(job.size for job in jobs) > num_slots
    stoppable = (Phase.RUNNING, Phase.STARTING) if has_lost else (Phase.RUNNING,)
    orders: list[Stop | Start] = [
        Stop(job.job_id) for job in jobs if job.phase in stoppable and job.wanted < job.size
    ]
    waiting = [job for job in jobs if job.phase is Phase.WAITING and job.wanted]
    # First whoever was stopped to go on at another size: it has lost time already.
    for job in sorted(waiting, key=lambda job: not job.is_interrupted):
        if job.wanted <= num_free:
            orders.append(Start(job.job_id, job.wanted))
            num_free -= job.wanted
    for job in jobs:
        if job.phase is Phase.RUNNING and 0 < job.wanted - job.size <= num_free:
            orders.append(Stop(job.job_id))
            num_free -= job.wanted - job.size
    return orders
