"""What one producer has sent to a topic, and what of all that comes there is its own.

A snapshot can't know what was sent since it was measured, so a producer counts that itself (`OwnBytes`). And
who knows how much it will still send knows little where others write too: `OwnPart` says from measurements
what that means for the topic.

Payload in bytes; times in seconds of a clock that only grows.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

_HISTORY_INTERVAL_S = 0.2
_HISTORY_S = 120.0
_HISTORY_MAX = 100_000  # figures that are remembered
# Stored bytes are this much more than payload at most, when nobody else writes to the topic.
_FOREIGN_RATIO = 1.1
_PART_S = 60.0  # which part of what comes is ours, is judged by so long


class _Acknowledged(NamedTuple):
    at_s: float
    bytes_by_partition: dict[int, int]


class OwnBytes:
    """Payload that one producer has sent to one topic. Any thread may call any method.

    Args:
        queued_s: For how long a client may hold, at most, what counts as acknowledged, in seconds.
        clock: Seconds that only grow: somebody may set the machine's time while bytes are sent.
    """

    def __init__(self, queued_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._queued_s = queued_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sent: dict[int, int] = {}
        self._totals: deque[tuple[float, int]] = deque()  # all that was sent, by time
        self._acknowledged: dict[int, int] = {}
        self._acknowledged_s = math.inf  # the last time
        self._history: deque[_Acknowledged] = deque()

    def add_sent(self, partition: int, size_bytes: int) -> None:
        """A record was handed to the client."""
        with self._lock:
            now_s = self._clock()
            if not self._totals or now_s - self._totals[-1][0] >= _HISTORY_INTERVAL_S:
                self._totals.append((now_s, sum(self._sent.values())))
                while now_s - self._totals[0][0] > _HISTORY_S:
                    self._totals.popleft()
            self._sent[partition] = self._sent.get(partition, 0) + size_bytes

    def add_acknowledged(self, partition: int, size_bytes: int) -> None:
        """Brokers have a record that was sent before."""
        with self._lock:
            self._acknowledged[partition] = self._acknowledged.get(partition, 0) + size_bytes
            self._acknowledged_s = now_s = self._clock()
            # With thousands of partitions the whole would be a hundred megabytes.
            interval_s = max(_HISTORY_INTERVAL_S, _HISTORY_S * len(self._acknowledged) / _HISTORY_MAX)
            if not self._history or now_s - self._history[-1].at_s >= interval_s:
                self._history.append(_Acknowledged(now_s, dict(self._acknowledged)))
                while now_s - self._history[0].at_s > _HISTORY_S:
                    self._history.popleft()

    def add_lost(self, partition: int, size_bytes: int) -> None:
        """A record that was sent will never be stored."""
        with self._lock:
            self._sent[partition] = self._sent.get(partition, 0) - size_bytes

    def sent(self, partition: int) -> int:
        """What was sent to a partition so far."""
        with self._lock:
            return self._sent.get(partition, 0)

    def sent_by_partition(self) -> dict[int, int]:
        """What was sent so far; partitions that got nothing aren't in it."""
        with self._lock:
            return {partition: size_bytes for partition, size_bytes in self._sent.items() if size_bytes > 0}

    @property
    def total_sent(self) -> int:
        """All that was sent so far."""
        with self._lock:
            return sum(self._sent.values())

    def sent_before(self, at_s: float) -> int:
        """All that was sent by then, in the last two minutes, about: as if it had gone evenly in between."""
        with self._lock:
            known = [*self._totals, (self._clock(), sum(self._sent.values()))]
        place = bisect_left(known, at_s, key=lambda each: each[0])
        if place in (0, len(known)):
            return known[min(place, len(known) - 1)][1]
        (before_s, before), (after_s, after) = known[place - 1 : place + 1]
        return int(before + (after - before) * (at_s - before_s) / (after_s - before_s))

    def since(self, measured_at_s: float, stored: Mapping[int, float] | None = None) -> dict[int, int]:
        """By partition, what a snapshot of that time can't know; where in doubt, a little more.

        Args:
            measured_at_s: When the snapshot was measured, by this producer's own clock.
            stored: By partition, the payload that came to the topic while this producer wrote, as that
                snapshot holds it. Brokers have records some time before they are reported, and without this,
                those would count twice. It is only believed while it can all be this producer's.
        """
        with self._lock:
            known = self._acknowledged_at(measured_at_s - self._queued_s)
            if stored is None or sum(stored.values()) > _FOREIGN_RATIO * sum(self._sent.values()):
                stored = {}
            unknown = {
                partition: sent - max(known.get(partition, 0), int(stored.get(partition, 0)))
                for partition, sent in self._sent.items()
            }
            return {partition: size_bytes for partition, size_bytes in unknown.items() if size_bytes > 0}

    def acknowledged_before(self, measured_at_s: float) -> int:
        """Payload that was acknowledged when a snapshot of that time was measured."""
        with self._lock:
            return sum(self._acknowledged_at(measured_at_s).values())

    def _acknowledged_at(self, measured_at_s: float) -> Mapping[int, int]:
        if self._acknowledged_s <= measured_at_s:
            return self._acknowledged
        for entry in reversed(self._history):
            if entry.at_s <= measured_at_s:
                return entry.bytes_by_partition
        return {}


class _Growth(NamedTuple):
    at_s: float
    own_bytes: int
    topic_bytes: float


class OwnPart:
    """Which part of what comes to a topic is one producer's own, by the last minute. For one thread.

    A hundred producers that each look at their own rest alone would all send it to the emptiest broker.
    """

    def __init__(self) -> None:
        self._growth: deque[_Growth] = deque()

    def add(self, measured_at_s: float, own_bytes: int, topic_bytes: float) -> None:
        """A snapshot has come.

        Args:
            measured_at_s: When it was measured.
            own_bytes: What this producer had sent by then.
            topic_bytes: By how many stored bytes the topic had grown by then, by whoever's hand.
        """
        while self._growth and measured_at_s - self._growth[0].at_s > _PART_S:
            self._growth.popleft()
        self._growth.append(_Growth(measured_at_s, own_bytes, topic_bytes))

    def of_all(self, remaining_bytes: int, sent_bytes: int, *, stored_ratio: float = 1.0) -> int | None:
        """What all producers will still send, if that part stays as it is; None while it isn't known.

        What can be all our own is taken for it: one that writes alone is not to be misled by what is on its
        way. So others seem less than they are at first, and where our client's queue is long.

        Args:
            remaining_bytes: What this producer will.
            sent_bytes: What it has sent by now.
            stored_ratio: Stored bytes for each byte of payload, as far as that is known by now.
        """
        before, latest = self._growth[0], self._growth[-1]
        if latest.own_bytes <= before.own_bytes:
            return None
        grown_bytes = (latest.topic_bytes - before.topic_bytes) / stored_ratio
        return int(remaining_bytes * max(1.0, grown_bytes / (sent_bytes - before.own_bytes)))
