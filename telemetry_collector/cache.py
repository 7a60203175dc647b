"""The latest snapshot, for whoever decides: a reference that is swapped, never a lock that is waited for.

The idea: a snapshot is immutable, so one writer may replace the reference while any number of readers use
the old one. What is read together is stored together: the entry holds the snapshot and the clock readings
that its age follows from, so a reader can't see one without the other.

An age is what it was when the snapshot was put in (by wall clock, as the snapshot may have been measured
elsewhere) plus what a monotonic clock counted since: setting the machine's time makes nothing fresh or stale.

Invariants, checked in tests/property/telemetry_collector/test_cache.py:
1. Without a new snapshot, the age never falls.
2. A snapshot is stale exactly when its age is above `age_max_s`.
3. Nothing that happens to the wall clock after `put` changes an age.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["CachedSnapshot", "SnapshotCache"]


class CachedSnapshot(NamedTuple):
    """A snapshot as it was read: with its age in seconds at that moment, and whether that is too old."""

    snapshot: ClusterSnapshot
    age_s: float
    is_stale: bool


class _Entry(NamedTuple):
    snapshot: ClusterSnapshot
    age_when_put_s: float
    put_at_s: float  # monotonic


class SnapshotCache:
    """Holds the latest snapshot. One thread puts, any thread reads; neither ever waits.

    Args:
        age_max_s: a snapshot older than this is stale; above 0.
        wall_clock: seconds since 1970.
        monotonic_clock: seconds that only grow.
    """

    def __init__(
        self,
        age_max_s: float,
        *,
        wall_clock: Callable[[], float] = time.time,
        monotonic_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not age_max_s > 0:
            raise ValueError(f"age_max_s is {age_max_s}, it must be above 0")
        self.age_max_s = age_max_s
        self._wall_clock = wall_clock
        self._monotonic_clock = monotonic_clock
        self._entry: _Entry | None = None

    def put(self, snapshot: ClusterSnapshot, age_s: float | None = None) -> None:
        """Replace what readers get from now on.

        Args:
            snapshot: the new one.
            age_s: how old it is by now; None: as the wall clock says.
        """
        if age_s is None:
            age_s = snapshot.age_s(self._wall_clock())
        self._entry = _Entry(snapshot, max(0.0, age_s), self._monotonic_clock())

    def forget(self) -> None:
        """Hold none until the next is put in: what the last one said holds no longer, however young it is."""
        self._entry = None

    def latest(self) -> CachedSnapshot | None:
        """The snapshot put in last; None before the first or if forgotten. Costs about a microsecond."""
        entry = self._entry
        if entry is None:
            return None
        age_s = entry.age_when_put_s + max(0.0, self._monotonic_clock() - entry.put_at_s)
        return CachedSnapshot(entry.snapshot, age_s, age_s > self.age_max_s)
