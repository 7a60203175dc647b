"""Who is resized, and who stays as it is because that wouldn't pay."""

from __future__ import annotations

from evenload.governor.deciding.stages import hold
from evenload.governor.testing import make_curve, make_job, make_state

SETTLED = {"held_s": 1000.0, "resize_cost_s": 15.0}


def test_one_that_has_begun_just_now_or_ends_soon_stays() -> None:
    new = make_job("new", size=2, held_s=29.0)
    ending = make_job("ending", size=2, samples_left=200 * 29.0, held_s=1000.0)
    assert hold(make_state(new, ending), {"new": 4, "ending": 1}) == {"new": 2, "ending": 2}


def test_it_is_said_why_a_job_stays() -> None:
    new = make_job("new", size=2, held_s=29.0)
    ending = make_job("ending", size=2, samples_left=200 * 29.0, held_s=1000.0)
    speed = make_curve(lambda size: 100 + 5.0 * size, 8)
    flat = make_job("flat", size=2, speed=speed, samples_left=110 * 100.0, **SETTLED)
    grown = make_job("grown", size=1, **SETTLED)
    notes: dict[str, str] = {}
    sizes = {"new": 4, "ending": 1, "flat": 3, "grown": 2}
    hold(make_state(new, ending, flat, grown), sizes, notes=notes)
    assert notes == {
        "new": "stays at 2, and doesn't go to 4: it has been there for 29 s only",
        "ending": "stays at 2, and doesn't go to 1: it ends in 29 s",
        "flat": "stays at 2, and doesn't go to 3: it wouldn't win back the 15 s that this costs",
    }


def test_one_grows_where_it_wins_back_what_that_costs() -> None:
    # 100 s left at size 2: at size 3 half as fast again, for 85 s; that is worth 42 s, and costs 15.
    pays = make_job("a", size=2, samples_left=200 * 100.0, **SETTLED)
    assert hold(make_state(pays), {"a": 3}) == {"a": 3}
    flat = make_job(
        "a", size=2, speed=make_curve(lambda size: 100 + 5.0 * size, 8), samples_left=110 * 100.0, **SETTLED
    )
    assert hold(make_state(flat), {"a": 3}) == {"a": 2}


def test_nobody_shrinks_further_than_others_take_its_slots() -> None:
    running = make_job("a", size=8, **SETTLED)
    assert hold(make_state(running), {"a": 3}) == {"a": 8}
    starting = make_job("b", submitted_s=1.0)
    assert hold(make_state(running, starting), {"a": 3, "b": 2}) == {"a": 6, "b": 2}


def test_one_that_is_to_stop_goes_on_whole_or_not_at_all() -> None:
    running = make_job("a", size=8, **SETTLED)
    assert hold(make_state(running), {"a": 0}) == {"a": 8}
    starting = make_job("b", submitted_s=1.0)
    assert hold(make_state(running, starting), {"a": 0, "b": 2}) == {"a": 0, "b": 2}


def test_who_gains_least_waits_where_one_that_stays_holds_its_slots() -> None:
    stays = make_job("stays", size=4, held_s=0.0)
    short = make_job("short", submitted_s=1.0, samples_left=1e3)
    long = make_job("long", submitted_s=2.0, samples_left=1e6)
    state = make_state(stays, short, long)
    sizes = {"stays": 1, "short": 4, "long": 3}
    assert hold(state, sizes) == {"stays": 4, "short": 4, "long": 0}
    assert hold(state, sizes, overriding=frozenset({"long"})) == {"stays": 4, "short": 0, "long": 3}


def test_where_slots_were_lost_what_was_decided_is_done() -> None:
    state = make_state(make_job("a", size=4, held_s=0.0), make_job("b", size=4, held_s=0.0), num_slots=6)
    assert hold(state, {"a": 4, "b": 2}) == {"a": 4, "b": 2}


def test_one_whose_bounds_were_changed_follows_them_though_nobody_wants_its_slots() -> None:
    over = make_job("over", size=4, most_size=2, speed=make_curve(lambda size: 100.0 * size, 4), **SETTLED)
    assert hold(make_state(over), {"over": 2}) == {"over": 2}
    under = make_job("under", size=1, min_size=2, held_s=0.0)
    assert hold(make_state(under), {"under": 2}) == {"under": 2}
