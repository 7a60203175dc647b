"""Curves through measured speeds, and their hulls."""

from __future__ import annotations

import math

import pytest

from evenload.governor.deciding.curves import Corner, SpeedCurve, explored, interpolated


def test_between_two_measured_sizes_speed_is_linear() -> None:
    assert interpolated({1: 10.0, 2: 18.0, 4: 30.0}).samples_per_s == (0, 10, 18, 24, 30)


def test_only_sizes_that_are_faster_than_all_smaller_ones_are_worth_having() -> None:
    curve = interpolated({1: 10.0, 2: 8.0, 3: 12.0, 4: 12.0})
    assert curve.sizes == (1, 3)
    assert curve.best_size == 3


def test_only_sizes_that_a_job_can_have_count() -> None:
    curve = interpolated({1: 10.0, 2: 20.0, 3: 29.0, 4: 30.0}, among=(1, 4))
    assert curve.sizes == (1, 4)
    assert curve.hull == pytest.approx((0, 10, 50 / 3, 70 / 3, 30))


def test_the_hull_passes_over_a_dip() -> None:
    curve = interpolated({1: 10.0, 2: 11.0, 3: 12.0, 4: 28.0, 5: 27.0})
    assert curve.corners == (Corner(0, 0), Corner(1, 10), Corner(4, 28))
    assert curve.hull == (0, 10, 16, 22, 28, 28)
    assert curve.gains == (10, 6, 6, 6)


@pytest.mark.parametrize("speeds", [(), (0.0,), (1.0, 2.0), (0.0, 0.0), (0.0, math.nan), (0.0, math.inf)])
def test_what_is_no_curve_is_refused(speeds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="size"):
        SpeedCurve(speeds, (1,))


def test_from_what_was_measured_a_job_may_double_its_size_where_the_last_slot_paid() -> None:
    curve = explored({1: 10.0, 2: 16.0}, largest=8, guess_per_s=1.0)
    assert curve.samples_per_s == (0.0, 10.0, 16.0, 19.0, 22.0, 22.0, 22.0, 22.0, 22.0)
    assert curve.sizes == (1, 2, 3, 4)
    falling = explored({1: 10.0, 2: 9.0}, largest=4, guess_per_s=1.0)
    assert falling.sizes == (1,)


def test_while_nothing_was_measured_only_the_least_size_is_worth_having() -> None:
    assert explored({}, largest=4, among=range(2, 5), guess_per_s=7.0).sizes == (2,)


def test_what_was_measured_beyond_what_a_job_may_have_is_left_out() -> None:
    curve = explored({1: 10.0, 8: 40.0}, largest=2, guess_per_s=1.0)
    assert curve.samples_per_s == (0.0, 10.0, pytest.approx(10 + 30 / 7))
