"""Workloads in virtual time, reckoned by hand."""

from __future__ import annotations

import pytest

from evenload.governor.policies.elastic import elastic_fifo
from evenload.governor.policies.rigid import fifo, round_robin
from evenload.governor.simulation import Submission, simulate
from evenload.governor.testing import make_curve

LINEAR = make_curve(lambda size: 10.0 * size, 4)


def submission(
    job_id: str, submitted_s: float = 0.0, *, samples: float = 4000.0, asked_size: int = 4
) -> Submission:
    return Submission(
        job_id=job_id, submitted_s=submitted_s, asked_size=asked_size, samples=samples, speed=LINEAR
    )


def test_one_job_waits_for_a_decision_starts_and_trains() -> None:
    (ended,) = simulate([submission("a", 7.0)], fifo, num_slots=4, resize_cost_s=15.0)
    assert (ended.started_s, ended.ended_s) == (22.5, 122.5)
    assert (ended.completion_s, ended.num_resizes, ended.slot_seconds) == (115.5, 0, 460.0)


def test_who_runs_alone_shrinks_for_the_next_and_grows_again() -> None:
    workload = [submission("a", samples=8000.0), submission("b", 100.0, samples=1000.0)]
    b, a = simulate(workload, elastic_fifo, num_slots=4, resize_cost_s=15.0)
    # a trains 85.5 s at 40/s, then 15 s stand still and both train at 20/s until b ends.
    assert (b.job.job_id, b.ended_s) == ("b", pytest.approx(100.5 + 15 + 50))
    left = 8000 - 85 * 40 - 50 * 20 - 0.5 * 20
    assert a.ended_s == pytest.approx(b.ended_s + 0.5 + 15 + left / 40)
    assert (a.num_resizes, b.num_resizes) == (2, 0)


def test_round_robin_changes_at_the_first_minute_after_a_turn() -> None:
    workload = [submission("a", samples=40_000.0), submission("b", 10.0)]
    b, a = simulate(workload, round_robin, num_slots=4, resize_cost_s=15.0)
    assert 300 < b.started_s - 15 < 380
    assert a.num_resizes == 1
