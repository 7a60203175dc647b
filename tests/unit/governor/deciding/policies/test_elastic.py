"""Rules that resize, on states that are small enough to reckon by hand."""

from __future__ import annotations

import pytest

from evenload.governor.deciding.policies import afs, elastic, hesrpt, smartfill
from evenload.governor.deciding.state import Policy
from evenload.governor.testing import make_curve, make_job, make_state

ALL = (elastic.elastic_fifo, elastic.equi, elastic.optimus, elastic.power_mean, afs.afs, hesrpt.hesrpt)
FLAT = make_curve(lambda size: 100.0 * size**0.1, 8)


def test_elastic_fifo_serves_the_first_and_deals_in_turn() -> None:
    state = make_state(
        make_job("a", min_size=2),
        make_job("b", submitted_s=1, min_size=4, speed=make_curve(lambda size: float(size), 4)),
        make_job("c", submitted_s=2, min_size=3),
    )
    assert elastic.elastic_fifo(state) == {"a": 4, "b": 4}


def test_equal_parts_go_to_those_who_had_least_first() -> None:
    state = make_state(
        make_job("had much", slot_seconds=10), make_job("had none", submitted_s=1), num_slots=3
    )
    assert elastic.equi(state) == {"had none": 2, "had much": 1}


def test_optimus_gives_where_most_time_is_saved() -> None:
    state = make_state(make_job("long", samples_left=9e5), make_job("short", samples_left=1e5), num_slots=4)
    assert elastic.optimus(state) == {"long": 3, "short": 1}


def test_the_power_mean_does_not_care_how_long_a_job_is() -> None:
    state = make_state(make_job("long", samples_left=9e5), make_job("short", samples_left=1e5), num_slots=4)
    assert elastic.power_mean(state) == {"long": 2, "short": 2}


def test_afs_prefers_the_short_unless_the_long_speeds_up_by_more() -> None:
    long, short = make_job("long", samples_left=9e5), make_job("short", samples_left=1e5)
    assert afs.afs(make_state(long, short, num_slots=1)) == {"short": 1, "long": 0}
    flat = make_job("short", samples_left=1e5, speed=FLAT)
    assert afs.afs(make_state(long, flat, num_slots=4)) == {"short": 1, "long": 3}


def test_hesrpt_gives_the_shortest_most_and_everybody_something() -> None:
    jobs = [make_job(name, samples_left=left) for name, left in (("a", 3e5), ("b", 2e5), ("c", 1e5))]
    # Of 64 slots, ((i/3) ** 2.5 - ((i-1)/3) ** 2.5): 4.1, 19.1, 40.8; a curve may not end before.
    curve = make_curve(lambda size: size**0.6, 64)
    state = make_state(
        *(make_job(job.job_id, samples_left=job.samples_left, speed=curve) for job in jobs), num_slots=64
    )
    assert hesrpt.hesrpt(state) == {"a": 4, "b": 19, "c": 41}


def test_nobody_gets_more_than_makes_it_faster() -> None:
    small = make_curve(lambda size: float(min(size, 2)), 8)
    state = make_state(make_job("a", speed=small), make_job("b", submitted_s=1, speed=small))
    for policy in ALL:
        assert policy(state) == {"a": 2, "b": 2}


@pytest.mark.parametrize("policy", [*ALL, smartfill.smartfill])
def test_of_equal_jobs_the_first_gets_no_less_than_the_next(policy: Policy) -> None:
    curve = make_curve(lambda size: size**0.5, 8)
    sizes = policy(make_state(*(make_job(f"{n}", submitted_s=n, speed=curve) for n in range(4)), num_slots=7))
    assert [sizes.get(f"{n}", 0) for n in range(4)] == sorted(sizes.values(), reverse=True)


@pytest.mark.parametrize("policy", [*ALL, smartfill.smartfill])
def test_without_slots_nobody_gets_any(policy: Policy) -> None:
    assert not any(policy(make_state(make_job("a"), num_slots=0)).values())
