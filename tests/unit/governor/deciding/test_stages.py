"""Places for those who waited too long, and sizes that are worth having."""

from __future__ import annotations

from evenload.governor.deciding.curves import interpolated
from evenload.governor.deciding.stages import give_places, round_down
from evenload.governor.testing import make_job, make_state

NODES = interpolated({1: 100.0, 4: 400.0, 8: 800.0}, among=(1, 4, 8))


def test_a_place_is_taken_from_those_who_lose_least() -> None:
    short = make_job("short", samples_left=1e3)
    long = make_job("long", submitted_s=1.0, samples_left=1e6)
    owed = make_job("owed", submitted_s=2.0, waiting_s=600.0, min_size=2)
    sizes = give_places(make_state(short, long, owed), {"short": 4, "long": 4}, wait_max_s=600.0)
    assert sizes == {"short": 4, "long": 2, "owed": 2}


def test_a_whole_job_gives_its_place_where_no_other_is_over_its_least() -> None:
    short = make_job("short", samples_left=1e3, min_size=4)
    long = make_job("long", submitted_s=1.0, samples_left=1e6, min_size=4)
    owed = make_job("owed", submitted_s=2.0, waiting_s=600.0)
    sizes = give_places(make_state(short, long, owed), {"short": 4, "long": 4}, wait_max_s=600.0)
    assert sizes == {"short": 4, "long": 0, "owed": 1}


def test_a_large_one_is_not_passed_over_by_small_ones_that_waited_less() -> None:
    in_turn = make_job("in turn", size=1, waiting_s=600.0, running_s=100.0)
    large = make_job("large", submitted_s=1.0, waiting_s=900.0, min_size=4)
    small = make_job("small", submitted_s=2.0, waiting_s=700.0)
    state = make_state(in_turn, large, small, num_slots=4)
    assert give_places(state, {}, wait_max_s=600.0) == {"in turn": 1, "large": 0, "small": 0}


def test_what_rounding_frees_goes_where_it_gains_most() -> None:
    a = make_job("a", speed=NODES, samples_left=1e6, asked_size=1)
    b = make_job("b", submitted_s=1.0, speed=NODES, samples_left=1e5, asked_size=1)
    assert round_down(make_state(a, b), {"a": 5, "b": 3}, num_used=8) == {"a": 4, "b": 4}
    assert round_down(make_state(a, b), {"a": 5, "b": 2}, num_used=7) == {"a": 4, "b": 1}


def test_the_size_that_was_asked_for_stays() -> None:
    asked = make_job("asked", speed=NODES, asked_size=6)
    assert round_down(make_state(asked), {"asked": 6}, num_used=6) == {"asked": 6}


def test_one_that_needs_more_than_there_is_holds_up_nobodys_turn() -> None:
    large = make_job("large", min_size=8, asked_size=8, waiting_s=900.0)
    small = make_job("small", waiting_s=700.0, submitted_s=1.0)
    running = make_job("running", size=4, submitted_s=2.0, held_s=1e4, running_s=1e4)
    state = make_state(large, small, running, num_slots=4)
    assert give_places(state, {"running": 4}, wait_max_s=600.0) == {"large": 0, "small": 1, "running": 3}
