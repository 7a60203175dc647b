"""What is measured of a kind of job: the median of few, and what is new."""

from __future__ import annotations

import pytest

from evenload.governor.governing.engine import StintId
from evenload.governor.governing.kinds import NUM_KEPT, RESIZE_COST_S, Kind


def test_a_speed_is_the_median_over_stints_and_one_outlier_changes_nothing() -> None:
    kind = Kind()
    for number, speed in enumerate([100.0, 102.0, 5.0, 101.0, 99.0]):
        kind = kind.with_speed(2, StintId("a", number), speed)
    assert kind.measured == {2: 100.0}


def test_a_stint_that_is_measured_for_longer_counts_once_and_only_where_it_says_something_new() -> None:
    kind = Kind().with_speed(2, StintId("a", 1), 100.0)
    assert kind.with_speed(2, StintId("a", 1), 104.0) is kind
    assert kind.with_speed(2, StintId("a", 1), 120.0).measured == {2: 120.0}


def test_what_is_long_ago_is_forgotten() -> None:
    kind = Kind()
    for number in range(3 * NUM_KEPT):
        kind = kind.with_speed(1, StintId("a", number), 1.0 + number).with_resize(float(number))
    assert len(kind.speeds[1]) == len(kind.resize_costs_s) == NUM_KEPT
    assert kind.measured[1] > 2 * NUM_KEPT
    assert kind.resize_cost_s == pytest.approx(3 * NUM_KEPT - 1 - NUM_KEPT // 2)


def test_a_resize_that_nobody_measured_is_guessed() -> None:
    assert Kind().resize_cost_s == RESIZE_COST_S
