"""Rules that give what was asked for, or nothing."""

from __future__ import annotations

from evenload.governor.deciding.policies import rigid
from evenload.governor.testing import make_job, make_state


def test_first_in_first_out_waits_for_the_first_that_does_not_fit() -> None:
    state = make_state(
        make_job("runs", asked_size=4, size=3),  # was resized by another policy
        make_job("large", submitted_s=1, asked_size=6),
        make_job("small", submitted_s=2, asked_size=1),
    )
    assert rigid.fifo(state) == {"runs": 3}
    assert rigid.fifo_backfill(state) == {"runs": 3, "small": 1}


def test_where_slots_were_lost_the_first_go_on() -> None:
    state = make_state(make_job("a", size=4), make_job("b", submitted_s=1, size=4), num_slots=7)
    assert rigid.fifo(state) == {"a": 4}


def test_round_robin_ends_a_turn_before_the_next_begins() -> None:
    in_turn = make_job("in turn", asked_size=8, size=8, running_s=299)
    waits = make_job("waits", asked_size=8, waiting_s=1000)
    assert rigid.round_robin(make_state(in_turn, waits)) == {"in turn": 8}
    had_it = make_job("had it", asked_size=8, size=8, running_s=300)
    assert rigid.round_robin(make_state(had_it, waits)) == {"waits": 8}


def test_who_had_little_comes_first_and_then_who_came_first() -> None:
    state = make_state(
        make_job("had much", slot_seconds=60_000),
        make_job("second", submitted_s=1, slot_seconds=50_000),
        make_job("third", submitted_s=2),
    )
    assert rigid.las(state) == {"second": 4, "third": 4}


def test_the_shortest_at_its_asked_size_comes_first() -> None:
    state = make_state(
        make_job("long", samples_left=900),
        make_job("short", submitted_s=1, samples_left=1000, asked_size=8),
        num_slots=8,
    )
    assert rigid.srtf(state) == {"short": 8}
