"""Workloads in virtual time, reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenload.governor.deciding.brokers import TOLERANCE
from evenload.governor.deciding.curves import SpeedCurve, interpolated
from evenload.governor.deciding.policies.elastic import elastic_fifo
from evenload.governor.deciding.policies.rigid import fifo, fifo_backfill, round_robin, srtf
from evenload.governor.errors import StuckError
from evenload.governor.simulating.simulation import Costs, SimulatedEngine, Submission, simulate
from evenload.governor.testing import make_curve

LINEAR = make_curve(lambda size: 10.0 * size, 4)
# Runs on four workers or not at all.
LINEAR_OF_FOUR = interpolated({1: 10.0, 4: 40.0}, among=(4,))


def submission(
    job_id: str, submitted_s: float = 0.0, *, samples: float = 4000.0, asked_size: int = 4
) -> Submission:
    return Submission(
        job_id=job_id, submitted_s=submitted_s, asked_size=asked_size, samples=samples, speed=LINEAR
    )


def test_one_job_waits_for_a_decision_starts_and_trains() -> None:
    (ended,) = simulate([submission("a", 7.0)], fifo, num_slots=4)
    assert (ended.longest_wait_s, ended.ended_s) == (0.5, 122.5)
    assert (ended.completion_s, ended.num_resizes, ended.slot_seconds) == (115.5, 0, 460.0)


def test_who_runs_alone_shrinks_for_the_next_and_grows_again() -> None:
    workload = [submission("a", samples=8000.0), submission("b", 100.0, samples=1000.0)]
    b, a = simulate(workload, elastic_fifo, num_slots=4)
    # a trains 85.5 s at 40/s, then 15 s stand still and both train at 20/s until b ends.
    assert (b.job.job_id, b.ended_s) == ("b", pytest.approx(100.5 + 15 + 50))
    left = 8000 - 85 * 40 - 50 * 20 - 0.5 * 20
    assert a.ended_s == pytest.approx(b.ended_s + 0.5 + 15 + left / 40)
    assert (a.num_resizes, b.num_resizes) == (2, 0)


def test_round_robin_changes_at_the_first_minute_after_a_turn() -> None:
    workload = [submission("a", samples=40_000.0), submission("b", 10.0)]
    b, a = simulate(workload, round_robin, num_slots=4)
    assert 290 < b.longest_wait_s < 370
    assert a.num_resizes == 1


def test_nobody_waits_longer_than_it_may_where_there_is_a_place_for_each() -> None:
    """Under shortest first, the long one would wait for all others."""
    workload = [submission("long", samples=40_000.0)]
    workload += [submission(f"{n}", 100.0 * n, samples=8_000.0) for n in range(1, 10)]
    ended = simulate(workload, srtf, num_slots=4)
    assert max(each.longest_wait_s for each in ended) > 1500
    ended = simulate(workload[:4], srtf, num_slots=4, wait_max_s=200.0)
    assert max(each.longest_wait_s for each in ended) < 200 + 2 * 60


def test_a_large_one_gets_its_turn_among_small_ones_that_come_and_go() -> None:
    small = SpeedCurve((0.0, 10.0, 10.0, 10.0, 10.0), (1,))
    workload = [
        Submission(job_id=f"{n}", submitted_s=50.0 * n, asked_size=1, samples=9_000.0, speed=small)
        for n in range(12)
    ]
    large = Submission(job_id="large", submitted_s=120.0, asked_size=4, samples=4000.0, speed=LINEAR_OF_FOUR)
    jobs = sorted([*workload, large], key=lambda job: job.submitted_s)
    ended = simulate(jobs, fifo_backfill, num_slots=4, wait_max_s=200.0)
    (of_large,) = (each for each in ended if each.job is large)
    assert of_large.longest_wait_s < 200 + 300 + 2 * 60


def test_a_policy_that_starts_nothing_is_an_error() -> None:
    needs_four = replace(submission("a"), min_size=4)
    for job, policy in ((needs_four, fifo), (submission("a"), lambda _: {})):
        with pytest.raises(StuckError, match=r"none of the 1 jobs that wait \(a\) on 3 free slots: was"):
            simulate([job], policy, num_slots=3)


def test_one_that_asks_for_more_than_there_is_runs_with_what_there_is() -> None:
    (ended,) = simulate([submission("a", samples=3000.0)], fifo, num_slots=3)
    assert ended.ended_s == pytest.approx(0.5 + 15 + 100)


def test_no_workload_ends_at_once() -> None:
    assert simulate([], fifo, num_slots=3) == []


def test_readers_of_a_broker_that_is_asked_for_too_much_are_slowed_down_alike() -> None:
    """It gives 40 samples a second, and each of the two could take as many."""
    jobs = [replace(submission(name), reads={1: 100.0}) for name in ("a", "b")]
    costs = Costs(start_s=0.0, broker_bytes_per_s={1: 4000.0})
    ended = simulate(jobs, fifo, num_slots=8, costs=costs, knows_brokers=False)
    assert [each.ended_s for each in ended] == pytest.approx([0.5 + 4000 / 20] * 2)
    jobs[1] = replace(jobs[1], samples=1000.0)
    b, a = simulate(jobs, fifo, num_slots=8, costs=costs, knows_brokers=False)
    assert b.ended_s == pytest.approx(0.5 + 1000 / 20)
    assert a.ended_s == pytest.approx(0.5 + 1000 / 20 + 3000 / 40)


def test_a_budget_is_kept_and_costs_nobody_anything() -> None:
    """Two read from one broker; what they can't use, a third one gets."""
    jobs = [replace(submission(name), reads={1: 100.0}) for name in ("a", "b")] + [submission("c")]
    costs = Costs(broker_bytes_per_s={1: 4000.0})
    means, most = [], []

    def look(engine: SimulatedEngine) -> None:
        most.append(engine.most_bytes_per_s[1])

    for knows_brokers in (False, True):
        ended = simulate(
            jobs, elastic_fifo, num_slots=8, costs=costs, knows_brokers=knows_brokers, on_end=look
        )
        means.append(sum(each.completion_s for each in ended) / len(ended))
    assert most[0] > TOLERANCE * 4000.0 >= most[1]
    assert means[1] < means[0]
