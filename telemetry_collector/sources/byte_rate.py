"""How many bytes come in a second, from totals that were read now and then.

The idea: each two readings in a row bound an interval. Where the total grew, the interval is believed: it
adds its growth and its length. Where it fell, something was deleted (retention, a counter that began anew
with its broker), so that nobody knows what came meanwhile: the interval is left out, bytes and time. The rate
is the growth of the intervals of about the last minute over their length.

So what is deleted in the same interval as more comes is missed: of used bytes, the rate is a lower bound; of
a counter, it is exact.

Invariants, checked in tests/property/telemetry_collector/test_byte_rate.py:
1. A rate is never negative, and never above the fastest interval's.
2. Totals that grow evenly give their rate exactly, however unevenly they are read.
3. Neither the zero of the clock nor that of the total matters.
4. A fall, or a pause that was said with `interrupt`, adds no bytes.

Times are monotonic seconds. Read next: observation.py, which reads totals of brokers.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["ByteRate"]

_WINDOW_S = 60.0


class _Interval(NamedTuple):
    until_s: float
    length_s: float
    growth_bytes: float


class ByteRate:
    """The rate of one total. Costs memory for the readings of a minute."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque()
        self._latest: tuple[float, float] | None = None  # when, and the total

    def read(self, total_bytes: float, *, at_s: float) -> None:
        """Enter a total; one that is not newer than the latest is ignored."""
        if self._latest is not None:
            before_s, before_bytes = self._latest
            if at_s <= before_s:
                return
            if total_bytes >= before_bytes:
                self._intervals.append(_Interval(at_s, at_s - before_s, total_bytes - before_bytes))
        self._latest = (at_s, total_bytes)
        while self._intervals and self._intervals[0].until_s <= at_s - _WINDOW_S:
            self._intervals.popleft()

    def interrupt(self) -> None:
        """What comes until the next reading is not to be counted: the two may not be of the same thing."""
        self._latest = None

    @property
    def bytes_per_s(self) -> float | None:
        """The rate; None where the last minute has no interval to tell it from."""
        length_s = sum(interval.length_s for interval in self._intervals)
        if not length_s:
            return None
        return sum(interval.growth_bytes for interval in self._intervals) / length_s
