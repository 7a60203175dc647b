"""Snapshots encoded for those who ask: once for each snapshot and set of topics, however many ask.

Only what is of the latest snapshot is kept, as an older one is large and nobody asks for it again; a set that
nobody has asked for lately makes room for another. What takes long is encoded in a thread, and whoever asks
for the same meanwhile waits for that. Belongs to one asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from evenload.telemetry_collector.service.compressed import Part
from evenload.telemetry_collector.service.wire import encode_snapshot
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["Answers"]

# What is kept of one snapshot: ten times all of 100,000 partitions.
_KEPT_MAX_BYTES = 96 << 20
# Fewer partitions and brokers than this are encoded in a few milliseconds, right in the loop.
_SMALL = 300


class Answers:
    """Encoded snapshots.

    Args:
        max_sets: of how many sets of topics the encoded snapshot is kept.
    """

    def __init__(self, max_sets: int) -> None:
        self._max_sets = max_sets
        self._snapshot: ClusterSnapshot | None = None
        self._kept: OrderedDict[frozenset[str] | None, asyncio.Future[Part]] = OrderedDict()  # of that one
        self.num_encoded = 0

    async def encoded(self, snapshot: ClusterSnapshot, topics: frozenset[str] | None) -> Part:
        """A snapshot, restricted to topics (None: not at all), as `wire.encode_snapshot` says it."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._kept.clear()
        encoded = self._kept.get(topics)
        if encoded is None or _has_failed(encoded):
            encoded = self._kept[topics] = self._begin(snapshot, topics)
            if len(self._kept) > self._max_sets:
                self._kept.popitem(last=False)
        self._kept.move_to_end(topics)
        part = await asyncio.shield(encoded)  # others may wait for it too, so no one's leaving ends it
        self._trim()
        return part

    def _trim(self) -> None:
        """Keep no more than fits, whatever sets are asked for: each of a large cluster takes megabytes."""
        sizes = {
            topics: sum(map(len, encoded.result()))
            for topics, encoded in self._kept.items()
            if encoded.done() and not _has_failed(encoded)
        }
        too_much = sum(sizes.values()) - _KEPT_MAX_BYTES
        for topics, size_bytes in sizes.items():  # the one that was asked for longest ago comes first
            if too_much <= 0:
                return
            del self._kept[topics]
            too_much -= size_bytes

    def _begin(self, snapshot: ClusterSnapshot, topics: frozenset[str] | None) -> asyncio.Future[Part]:
        self.num_encoded += 1
        loop = asyncio.get_running_loop()
        if _size(snapshot, topics) > _SMALL:
            return loop.run_in_executor(None, _encode, snapshot, topics)
        encoded: asyncio.Future[Part] = loop.create_future()
        encoded.set_result(_encode(snapshot, topics))
        return encoded


def _encode(snapshot: ClusterSnapshot, topics: frozenset[str] | None) -> Part:
    return Part.of(encode_snapshot(snapshot, topics))


def _size(snapshot: ClusterSnapshot, topics: frozenset[str] | None) -> int:
    held = sum(len(broker.bytes_by_topic_partition) for broker in snapshot.brokers.values())
    wanted = snapshot.topics.keys() if topics is None else snapshot.topics.keys() & topics
    # All that is held is looked through, though it is cheap.
    return len(snapshot.brokers) + sum(len(snapshot.topics[topic]) for topic in wanted) + held // 20


def _has_failed(encoded: asyncio.Future[Part]) -> bool:
    return encoded.done() and (encoded.cancelled() or encoded.exception() is not None)
