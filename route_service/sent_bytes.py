"""What all producers of a topic say that they have sent, and which of it a measurement can't know.

The idea: each producer tells running totals by partition, so that a lost word costs nothing. Their sum is
remembered by time; what is more now than when brokers were measured was sent since. A producer that is gone
has sent what it has sent: its totals stay.

Invariants, checked in tests/property/route_service/test_sent_bytes.py:
1. What a producer tells again isn't counted again. A lower total is another producer's by the same name,
   which begins anew.
2. What was heard of before a measurement doesn't count after it, but for a moment's (or some seconds', where
   a topic has thousands of partitions).
3. A producer's first word only says where it stands: how long ago it sent that, nobody knows.

Pure; payload in bytes, times in seconds of a clock that only grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["SentBytes"]

_HISTORY_S = 120.0
_HISTORY_MAX = 100_000  # figures that are remembered
_INTERVAL_S = 0.2
_TOLD_MAX = 1_000_000  # figures of producers that are remembered


class _Sum(NamedTuple):
    at_s: float
    by_partition: dict[int, int]


class SentBytes:
    """Of one topic. For one thread."""

    def __init__(self) -> None:
        self._totals: dict[str, Mapping[int, int]] = {}
        self._num_told = 0
        self._sum: dict[int, int] = {}
        self._heard_s = self._begun_s = float("-inf")
        self._history: deque[_Sum] = deque([_Sum(float("-inf"), {})])

    def hear(self, producer: str, totals: Mapping[int, int], *, now_s: float) -> None:
        """A producer tells what it has sent to each partition so far."""
        earlier = self._totals.pop(producer, None)
        self._totals[producer] = dict(totals)
        self._num_told += len(totals) - len(earlier or ())
        # Whoever was silent longest counts anew, if it ever speaks again.
        while self._num_told > _TOLD_MAX and len(self._totals) > 1:
            self._num_told -= len(self._totals.pop(next(iter(self._totals))))
        if earlier is None:
            return  # nobody knows since when it has sent that
        more = {number: total - earlier.get(number, 0) for number, total in totals.items()}
        if not any(size_bytes > 0 for size_bytes in more.values()):
            return
        interval_s = max(_INTERVAL_S, _HISTORY_S * len(self._sum) / _HISTORY_MAX)
        if now_s - self._begun_s >= interval_s:
            self._history.append(_Sum(self._heard_s, dict(self._sum)))  # as it was since the last word
            self._begun_s = now_s
            while len(self._history) > 1 and now_s - self._history[1].at_s > _HISTORY_S:
                self._history.popleft()
        self._heard_s = now_s
        for number, size_bytes in more.items():
            if size_bytes > 0:
                self._sum[number] = self._sum.get(number, 0) + size_bytes

    def since(self, measured_at_s: float) -> dict[int, int]:
        """What was heard of after that time, by partition; where in doubt, a little more."""
        if measured_at_s >= self._heard_s:
            return {}
        known = next(
            (each for each in reversed(self._history) if each.at_s <= measured_at_s), self._history[0]
        )
        return {
            number: size_bytes
            for number, total in self._sum.items()
            if (size_bytes := total - known.by_partition.get(number, 0)) > 0
        }
