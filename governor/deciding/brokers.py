"""Keeps what runs read from each broker within what the broker can give.

A run reads so many bytes of each sample from each broker, so a faster run reads more. Where a broker would
have to give more than its budget, its readers shrink, the one first that loses least by each byte that this
spares, less what runs that read elsewhere win by its slots; those get them. No run is stopped for a broker.

Invariants, checked in tests/property/governor/deciding/test_brokers.py:
1. A broker is over its budget only where all its readers have their least size, or are about to end.
2. No more slots are handed out than before, and no broker gets over its budget by a run that grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from evenload.governor.deciding.stages import Change, Notes, ends_soon, next_size
from evenload.governor.deciding.state import ClusterState, JobView

TOLERANCE = 1.05  # less over the budget than this is noise


def spare_brokers(
    state: ClusterState,
    sizes: Mapping[str, int],
    *,
    room: Callable[[Mapping[str, int]], Mapping[str, int]] | None = None,
    notes: Notes | None = None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Sizes by which brokers keep their budgets, as far as that is possible.

    Args:
        sizes: Of all jobs, each one that is worth having.
        room: How many slots more teams may have, at these sizes; teams that may have all aren't there. None:
            what is freed stays free.
        notes: Gets who shrinks.

    Returns:
        The new sizes; and for those that shrank, the size that they may not be above.
    """
    new = dict(sizes)
    most: dict[str, int] = {}
    settled: set[int] = set()  # all that read there have their least size
    while (broker := _fullest(state, new, settled)) is not None:
        steps = [
            Change(job, new[job.job_id], smaller)
            for job in state.jobs
            if job.reads.get(broker)
            and not (new[job.job_id] == job.size and ends_soon(job))
            and (smaller := _smaller(job, new[job.job_id]))
        ]
        if not steps:
            settled.add(broker)
            continue
        slot_worth = _worth_elsewhere(state, new, broker)
        best = min(steps, key=lambda step: (_price(step, broker, slot_worth), -step.job.submitted_s))
        new[best.job.job_id] = most[best.job.job_id] = best.new
        if notes is not None:
            notes[best.job.job_id] = f"has {best.new}, as broker {broker} can't give it more data"
    if most and room is not None:
        _deal(state, new, sum(sizes.values()) - sum(new.values()), most, room)
    return new, most


def loads(state: ClusterState, sizes: Mapping[str, int]) -> dict[int, float]:
    """Bytes/s that runs read from each broker at these sizes."""
    found = dict.fromkeys(state.read_budgets, 0.0)
    for job in state.jobs:
        speed = job.speed.samples_per_s[sizes[job.job_id]]
        for broker, num_bytes in job.reads.items():
            found[broker] = found.get(broker, 0.0) + num_bytes * speed
    return found


def _fullest(state: ClusterState, sizes: Mapping[str, int], settled: set[int]) -> int | None:
    """The broker that is furthest over its budget."""
    over = {
        broker: load / state.read_budgets[broker]
        for broker, load in loads(state, sizes).items()
        if broker in state.read_budgets and broker not in settled
    }
    broker = max(sorted(over), key=over.__getitem__, default=None)
    return broker if broker is not None and over[broker] > TOLERANCE else None


def _smaller(job: JobView, size: int) -> int | None:
    return max((each for each in job.speed.sizes if job.least_size <= each < size), default=None)


def _worth_elsewhere(state: ClusterState, sizes: Mapping[str, int], broker: int) -> float:
    """What a slot more is worth to a run that doesn't read there."""
    steps = (
        Change(job, sizes[job.job_id], larger)
        for job in state.jobs
        if not job.reads.get(broker) and (larger := next_size(job, sizes[job.job_id]))
    )
    return max((step.worth for step in steps), default=0.0)


def _price(step: Change, broker: int, slot_worth: float) -> float:
    """What is lost by each byte that the broker is spared."""
    job, speeds = step.job, step.job.speed.samples_per_s
    spared = job.reads[broker] * (speeds[step.old] - speeds[step.new])
    # The asked size may be no faster than a smaller one: then nothing is spared, and nothing is lost.
    lost = (step.worth - slot_worth) * (step.old - step.new)
    return lost / spared if spared > 0 else -math.inf


def _deal(
    state: ClusterState,
    new: dict[str, int],
    num_freed: int,
    most: Mapping[str, int],
    room: Callable[[Mapping[str, int]], Mapping[str, int]],
) -> None:
    """Gives what was freed to those that gain most by it and read from no broker that has no more."""
    while num_freed > 0:
        by_team, load = room(new), loads(state, new)
        steps = []
        for job in state.jobs:
            if job.job_id in most:
                continue
            old = new[job.job_id]
            larger = next_size(job, old)
            if larger is None or larger - old > min(num_freed, by_team.get(job.team, num_freed)):
                continue
            step = Change(job, old, larger)
            if _has_data(state, step, load):
                steps.append(step)
        if not steps:
            return
        best = max(steps, key=lambda step: step.worth)
        new[best.job.job_id] = best.new
        num_freed -= best.new - best.old


def _has_data(state: ClusterState, step: Change, load: Mapping[int, float]) -> bool:
    speeds = step.job.speed.samples_per_s
    more = speeds[step.new] - speeds[step.old]
    return all(
        load[broker] + more * num_bytes <= state.read_budgets[broker]
        for broker, num_bytes in step.job.reads.items()
        if broker in state.read_budgets
    )
