"""Prices of SmartFill, against the results that are known."""

from __future__ import annotations

import math

import pytest

from evenload.governor.deciding.policies.smartfill import priced_gains, smartfill
from evenload.governor.simulating.simulation import Costs, Submission, simulate
from evenload.governor.testing import make_curve, make_job, make_state


def test_with_square_roots_the_prices_are_those_of_hesrpt() -> None:
    num_slots = 4096
    curve = make_curve(lambda size: math.sqrt(size / num_slots), num_slots)
    jobs = tuple(make_job(f"{n}", samples_left=10.0 * n, speed=curve) for n in (3, 2, 1))
    prices, _ = priced_gains(jobs, num_slots)
    assert [prices["3"], prices["2"], prices["1"]] == pytest.approx([1, math.sqrt(3), math.sqrt(5)], rel=1e-3)


def test_with_one_curve_the_sum_of_completions_is_the_sum_of_prices_times_samples() -> None:
    # Enough slots that whole ones are nearly as good as parts.
    curve = make_curve(lambda size: size**0.7, 500)
    samples = [900_000.0, 700_000.0, 650_000.0, 300_000.0, 100_000.0]
    jobs = tuple(make_job(f"{n}", samples_left=left, speed=curve) for n, left in enumerate(samples))
    prices, _ = priced_gains(jobs, 500)
    workload = [
        Submission(job_id=f"{n}", submitted_s=0.0, asked_size=1, samples=left, speed=curve)
        for n, left in enumerate(samples)
    ]
    ended = simulate(workload, smartfill, num_slots=500, costs=Costs(start_s=0.0))
    total_s = sum(each.completion_s for each in ended)
    assert total_s == pytest.approx(sum(prices[f"{n}"] * left for n, left in enumerate(samples)), rel=2e-3)


def test_all_slots_go_to_the_largest_gains() -> None:
    assert smartfill(make_state(make_job("alone"), num_slots=5)) == {"alone": 5}
    assert smartfill(make_state()) == {}


def test_a_heavier_job_gets_more() -> None:
    curve = make_curve(lambda size: size**0.5, 8)
    light, heavy = make_job("light", speed=curve), make_job("heavy", speed=curve, weight=4.0)
    sizes = smartfill(make_state(light, heavy, num_slots=8))
    assert sizes["heavy"] > sizes["light"]
    prices, _ = priced_gains((heavy,), 8)
    assert prices == {"heavy": pytest.approx(4 / 8**0.5)}
