"""A bound below what any policy does."""

from __future__ import annotations

import statistics

import pytest

from evenload.governor.deciding.policies.elastic import equi
from evenload.governor.deciding.policies.rigid import srtf
from evenload.governor.deciding.policies.smartfill import smartfill
from evenload.governor.deciding.state import Policy
from evenload.governor.simulating.bound import mean_completion_bound
from evenload.governor.simulating.simulation import Costs, Submission, simulate
from evenload.governor.testing import make_curve

LINEAR = make_curve(lambda size: 10.0 * size, 4)


def workload(*samples: float) -> list[Submission]:
    return [
        Submission(job_id=f"{n}", submitted_s=60.0 * n, asked_size=4, samples=each, speed=LINEAR)
        for n, each in enumerate(samples)
    ]


def test_for_one_job_it_is_nearly_what_the_job_takes_alone() -> None:
    bound = mean_completion_bound(workload(400_000.0), 4)
    assert bound == pytest.approx(10_000, rel=0.05)
    assert bound <= 10_000


def test_for_many_that_use_all_slots_it_is_nearly_shortest_first() -> None:
    jobs = workload(90_000, 30_000, 60_000, 20_000, 50_000, 10_000)
    shortest_first = statistics.mean(
        each.completion_s for each in simulate(jobs, srtf, num_slots=4, costs=Costs(start_s=0.0))
    )
    bound = mean_completion_bound(jobs, 4, num_steps=2000)
    assert 0.9 * shortest_first < bound < shortest_first


@pytest.mark.parametrize("policy", [equi, smartfill])
def test_no_policy_is_below_it(policy: Policy) -> None:
    flat = make_curve(lambda size: size**0.5, 8)
    jobs = [
        Submission(job_id=f"{n}", submitted_s=50.0 * n, asked_size=4, samples=100.0 + 37 * n % 90, speed=flat)
        for n in range(20)
    ]
    ended = simulate(jobs, policy, num_slots=8, costs=Costs(start_s=0.0))
    assert mean_completion_bound(jobs, 8) < statistics.mean(each.completion_s for each in ended)
