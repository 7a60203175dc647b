"""The last hour in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.service.page.history import History
from evenload.telemetry_collector.testing import make_snapshot

SPAN_S, STEP_S = 100.0, 10.0

waits = st.integers(0, 300) | st.integers(0, 3)
measured = st.lists(st.tuples(waits, st.lists(st.integers(0, 2000), max_size=4)), min_size=1, max_size=60)


@given(measured, waits)
def test_points_are_bounded_in_number_and_age_and_come_one_to_a_step(
    measured: list[tuple[int, list[int]]], last_wait_s: int
) -> None:
    history, now_s = History(span_s=SPAN_S, step_s=STEP_S), 50.0
    for wait_s, used in measured:
        now_s += wait_s
        history.add(make_snapshot(used, 1000), now_s)
    points = history.read(now_s + last_wait_s)
    assert len(points) <= SPAN_S / STEP_S + 1
    assert all(0 <= point.ago_s <= SPAN_S for point in points)
    steps = [math.floor((now_s + last_wait_s - point.ago_s) / STEP_S) for point in points]
    assert steps == sorted(set(steps))


@given(measured)
def test_the_newest_point_is_what_was_added_last(measured: list[tuple[int, list[int]]]) -> None:
    history, now_s = History(span_s=SPAN_S, step_s=STEP_S), 50.0
    for wait_s, used in measured:
        now_s += wait_s
        history.add(make_snapshot(used, 1000), now_s)
        newest = history.read(now_s, range(1, 6))[-1]
        assert newest.ago_s == 0
        assert newest.lowest == (min(used) / 1000 if used else None)
        assert newest.highest == (max(used) / 1000 if used else None)
        shown = [*(size / 1000 for size in used), *[None] * (5 - len(used))]
        assert newest.utilisations == tuple(u if u is None else pytest.approx(u, abs=1e-6) for u in shown)


def test_a_step_in_which_nobody_measured_has_no_point() -> None:
    history = History(span_s=SPAN_S, step_s=STEP_S)
    for now_s in (0, 5, 10, 60):
        history.add(make_snapshot([now_s], 1000), now_s)
    assert [point.ago_s for point in history.read(60.0)] == [55, 50, 0]


def test_a_broker_without_capacity_has_no_point_and_one_that_joins_has_none_before() -> None:
    history = History(span_s=SPAN_S, step_s=STEP_S)
    history.add(make_snapshot([100, 200], [1000, None]), 0.0)
    history.add(make_snapshot([100, 200, 300], [1000, None, 1000]), 10.0)
    assert [point.utilisations for point in history.read(10.0, [3, 2])] == [
        (None, None),
        (pytest.approx(0.3), None),
    ]


def test_an_hour_of_a_thousand_brokers_is_remembered_in_a_few_megabytes() -> None:
    history = History()
    snapshot = make_snapshot(list(range(1000)), 1000)
    for step in range(1000):
        history.add(snapshot, step * 10.0)
    kept = history._kept
    assert len(kept) == 361
    assert sum(len(point.utilisations) * point.utilisations.itemsize for point in kept) < 2_000_000
    assert len({id(point.index_by_broker) for point in kept}) == 1


@pytest.mark.parametrize(("span_s", "step_s"), [(10, 0), (10, -1), (5, 10), (math.inf, 10), (math.nan, 10)])
def test_a_span_that_is_no_span_is_refused(span_s: float, step_s: float) -> None:
    with pytest.raises(ValueError, match="0 < step_s <= span_s"):
        History(span_s=span_s, step_s=step_s)
