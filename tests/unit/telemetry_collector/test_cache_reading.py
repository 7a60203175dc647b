"""Reading the cache: a reference and an age, and no lock."""

from __future__ import annotations

import threading

import pytest

from evenload.telemetry_collector import SnapshotCache
from evenload.telemetry_collector.testing import make_snapshot


def test_an_empty_cache_has_no_latest_snapshot() -> None:
    assert SnapshotCache(1.0).latest() is None


def test_readers_get_the_very_snapshot_that_was_put_in_last() -> None:
    cache = SnapshotCache(1.0)
    cache.put(make_snapshot([1]))
    newest = make_snapshot([2])
    cache.put(newest)
    cached = cache.latest()
    assert cached is not None
    assert cached.snapshot is newest


def test_a_snapshot_measured_elsewhere_is_as_old_as_it_says() -> None:
    cache = SnapshotCache(10.0, wall_clock=lambda: 1004.0, monotonic_clock=lambda: 50.0)
    cache.put(make_snapshot([1], taken_at_s=1000.0))
    cached = cache.latest()
    assert cached is not None
    assert (cached.age_s, cached.is_stale) == (4.0, False)


def test_an_age_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="age_max_s is 0"):
        SnapshotCache(0.0)


def test_a_reader_always_sees_a_snapshot_together_with_its_own_age() -> None:
    # Each snapshot says in its bytes how old it was when put; a reader that mixed two would see a
    # wrong age. The monotonic clock stands still, so ages don't grow.
    cache = SnapshotCache(1e9, wall_clock=lambda: 1000.0, monotonic_clock=lambda: 0.0)
    snapshots = [make_snapshot([age], taken_at_s=1000.0 - age) for age in range(50)]
    cache.put(snapshots[0])
    reader_has_ended = threading.Event()

    def write() -> None:
        while not reader_has_ended.is_set():
            for snapshot in snapshots:
                cache.put(snapshot)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20_000):
            cached = cache.latest()
            assert cached is not None
            assert cached.age_s == cached.snapshot.brokers[1].used_bytes
    finally:
        reader_has_ended.set()
        writer.join()
