"""Invariants of the cache, under any course of both clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenload.telemetry_collector import SnapshotCache
from evenload.telemetry_collector.testing import make_snapshot

seconds = st.floats(0, 1e6, allow_nan=False)
jumps = st.floats(-1e9, 1e9, allow_nan=False)


class _Clocks:
    def __init__(self) -> None:
        self.wall_s = 1e9
        self.monotonic_s = 0.0


def _cache_of(clocks: _Clocks, age_max_s: float) -> SnapshotCache:
    return SnapshotCache(
        age_max_s, wall_clock=lambda: clocks.wall_s, monotonic_clock=lambda: clocks.monotonic_s
    )


@given(
    age_max_s=st.floats(0.001, 1e6),
    age_when_put_s=seconds,
    course=st.lists(st.tuples(seconds, jumps), max_size=20),
)
def test_an_age_only_grows_and_follows_the_monotonic_clock_alone(
    age_max_s: float, age_when_put_s: float, course: list[tuple[float, float]]
) -> None:
    clocks = _Clocks()
    cache = _cache_of(clocks, age_max_s)
    cache.put(make_snapshot([1], taken_at_s=clocks.wall_s - age_when_put_s))
    first = cache.latest()
    assert first is not None
    put_at_s, age_before_s = clocks.monotonic_s, first.age_s
    for elapsed_s, wall_jump_s in course:
        clocks.monotonic_s += elapsed_s
        clocks.wall_s += wall_jump_s
        cached = cache.latest()
        assert cached is not None
        assert cached.age_s >= age_before_s
        assert cached.age_s == first.age_s + (clocks.monotonic_s - put_at_s)
        assert cached.is_stale == (cached.age_s > age_max_s)
        age_before_s = cached.age_s


@given(taken_later_s=st.floats(0, 1e9))
def test_a_snapshot_from_the_future_is_new_never_negative(taken_later_s: float) -> None:
    clocks = _Clocks()
    cache = _cache_of(clocks, 1.0)
    cache.put(make_snapshot([1], taken_at_s=clocks.wall_s + taken_later_s))
    cached = cache.latest()
    assert cached is not None
    assert (cached.age_s, cached.is_stale) == (0.0, False)
