"""Invariants of a rate, for any course of readings."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector.sources.byte_rate import ByteRate

WINDOW_S = 60.0


class _Read(NamedTuple):
    after_s: int
    total_bytes: int
    is_interrupted: bool = False


steps_s = st.integers(1, 40)
totals = st.integers(0, 1 << 50)
courses = st.lists(st.builds(_Read, steps_s, totals, st.booleans()), min_size=1, max_size=40)


def _rate(course: list[_Read], *, zero_s: float = 0.0, zero_bytes: float = 0.0) -> float | None:
    rate, now_s = ByteRate(), zero_s
    for reading in course:
        now_s += reading.after_s
        if reading.is_interrupted:
            rate.interrupt()
        rate.read(zero_bytes + reading.total_bytes, at_s=now_s)
    return rate.bytes_per_s


def _slopes(course: list[_Read]) -> list[float]:
    """Bytes a second of all intervals in which nothing fell and nobody interrupted."""
    return [
        (after.total_bytes - before.total_bytes) / after.after_s
        for before, after in itertools.pairwise(course)
        if after.total_bytes >= before.total_bytes and not after.is_interrupted
    ]


@given(courses)
def test_a_rate_lies_between_the_slowest_and_the_fastest_interval_without_a_fall(course: list[_Read]) -> None:
    slopes = _slopes(course)
    bytes_per_s = _rate(course)
    if bytes_per_s is not None:
        assert 0 <= min(slopes) * 0.999 <= bytes_per_s <= max(slopes) * 1.001
    elif slopes:
        assert sum(reading.after_s for reading in course) > WINDOW_S


@given(st.lists(steps_s, min_size=2, max_size=40), st.integers(0, 1 << 30), st.data())
def test_totals_that_grow_evenly_give_their_rate_exactly_whatever_is_deleted_in_between(
    steps: list[int], bytes_per_s: int, data: st.DataObject
) -> None:
    course, total_bytes = [], 1 << 50
    for n, after_s in enumerate(steps):
        is_deleted = 0 < n < len(steps) - 1 and data.draw(st.booleans())
        total_bytes += -(1 << 40) if is_deleted else bytes_per_s * after_s
        course.append(_Read(after_s, total_bytes))
    assert _rate(course) == pytest.approx(bytes_per_s)


@given(courses, st.integers(-(10**9), 10**9), st.integers(0, 1 << 50))
def test_neither_the_zero_of_the_clock_nor_that_of_the_total_matters(
    course: list[_Read], zero_s: int, zero_bytes: int
) -> None:
    assert _rate(course, zero_s=zero_s, zero_bytes=zero_bytes) == _rate(course)


@given(courses)
def test_what_came_longer_than_a_minute_ago_does_not_count(course: list[_Read]) -> None:
    quiet = [_Read(1, course[-1].total_bytes) for _ in range(int(WINDOW_S))]
    assert _rate([*course, *quiet]) == 0


@given(courses, st.integers(1, 10))
def test_a_rate_is_not_known_when_a_minute_brought_nothing_but_falls(
    course: list[_Read], step_s: int
) -> None:
    falls = [_Read(step_s, course[-1].total_bytes - n) for n in range(1, int(WINDOW_S) + 1)]
    assert _rate([*course, *falls]) is None


@given(courses, st.integers(0, 1 << 50))
def test_a_pause_that_was_said_adds_no_bytes(course: list[_Read], total_bytes: int) -> None:
    paused = _rate([*course, _Read(1, total_bytes, is_interrupted=True)])
    assert paused is None or paused <= max(_slopes(course)) * 1.001


def test_a_reading_that_is_not_newer_is_ignored() -> None:
    rate = ByteRate()
    for at_s, total_bytes in ((0.0, 0), (10.0, 100), (10.0, 10_000), (5.0, 20_000)):
        rate.read(total_bytes, at_s=at_s)
    assert rate.bytes_per_s == 10.0


def test_a_total_that_is_read_every_hour_has_a_rate_as_well() -> None:
    assert _rate([_Read(3600, total) for total in (0, 3600, 10_800)]) == 2.0
