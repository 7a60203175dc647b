"""Hulls of any curve."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.governor.deciding.curves import SpeedCurve, interpolated

speeds = st.floats(1e-3, 1e6)
curves = st.builds(
    lambda first, more, among: interpolated({1: first, **more}, among={1, *among}),
    speeds,
    st.dictionaries(st.integers(2, 40), speeds, max_size=8),
    st.sets(st.integers(2, 40)),
)


@given(curves)
def test_each_slot_adds_at_most_what_the_one_before_did(curve: SpeedCurve) -> None:
    tolerance = 1e-9 * max(curve.hull)
    assert all(after <= before + tolerance for before, after in pairwise(curve.gains))
    assert len(curve.gains) == curve.best_size
    assert all(gain > -tolerance for gain in curve.gains)


@given(curves)
def test_the_hull_is_nowhere_below_a_size_worth_having_and_touches_its_corners(curve: SpeedCurve) -> None:
    assert len(curve.hull) == len(curve.samples_per_s)
    assert all(curve.hull[size] >= curve.samples_per_s[size] * (1 - 1e-9) for size in curve.sizes)
    assert all(curve.hull[size] == pytest.approx(speed, rel=1e-9) for size, speed in curve.corners)
    assert set(curve.hull[curve.best_size :]) == {curve.hull[-1]}
