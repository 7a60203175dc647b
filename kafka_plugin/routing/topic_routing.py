"""Deciding the shares of one topic by what is measured, while bytes are sent to it.

The router is pure; this gives it what it asks for. It is told the collector's latest snapshot and the bytes
that this producer has sent and the snapshot can't know yet: all that was sent, less what had been
acknowledged when the snapshot was taken. Without that, the broker that was emptiest at the last measurement
would be flooded until the next.

With no fresh snapshot the router falls back to even shares, which is counted.
"""

from __future__ import annotations

import time
from dataclasses import replace

from evenload.kafka_plugin.routing.own_bytes import OwnPart
from evenload.kafka_plugin.routing.topic_route import PartitionCounter, TopicRoute
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.router.scoring import Willingness
from evenload.telemetry_collector.cache import SnapshotCache
from evenload.telemetry_collector.reports import RouteReport
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition

_MEASURABLE_BYTES = 4 << 20


class TopicRouting(TopicRoute):
    """A topic's route, and what decides it. `refresh` is for one thread at a time.

    Args:
        topic: As `TopicRoute` takes it, and so on.
        router: Decides the shares.
        cache: Where snapshots come from; None for even shares by bytes, whatever is known (round robin).
        is_shared: Whether others may write to the topic at the same time.
    """

    def __init__(
        self,
        topic: str,
        num_partitions: int,
        *,
        router: Router | None,
        cache: SnapshotCache | None,
        batch_bytes: int,
        is_shared: bool = False,
        queued_s: float = 0.0,
        count_partitions: PartitionCounter | None = None,
    ) -> None:
        super().__init__(
            topic,
            num_partitions,
            batch_bytes=batch_bytes,
            queued_s=queued_s,
            count_partitions=count_partitions,
        )
        self._is_shared = is_shared
        self.is_part_unknown = False  # no measurement has shown yet what of a shared topic is ours
        self._router = router
        self._cache = cache
        self._stored_ratio: float | None = None
        self._earlier: dict[int, float] = {}  # stored bytes by partition, from before this producer
        self._own_part = OwnPart()

    def refresh(self, remaining_bytes: int | None, *, expected_ratio: float = 1.0) -> Route:
        """Decide the shares anew.

        Args:
            remaining_bytes: Payload that this producer will still send; None when nobody knows.
            expected_ratio: Stored bytes for each byte of payload, until it can be measured.
        """
        if self._router is None or self._cache is None:
            return self._route
        cached = self._cache.latest()
        snapshot = cached.snapshot if cached is not None and not cached.is_stale else None
        previous: Route | None = self._route
        if snapshot is not None and self.is_recounted(len(snapshot.topics.get(self.topic, ()))):
            previous = None  # it would be followed further while brokers are even: without the new partitions
        ratio = self.stored_ratio or expected_ratio
        own_bytes, is_least = {}, False
        now_s = 0.0
        if cached is not None and snapshot is not None:
            now_s = snapshot.taken_at_s + cached.age_s  # whatever our wall clock says
            measured_at_s = time.monotonic() - cached.age_s
            grown_bytes = self._grown_bytes(snapshot, ratio)
            stored = {partition: size_bytes / ratio for partition, size_bytes in grown_bytes.items()}
            own_bytes = self.own_bytes.since(measured_at_s, stored)
            if self._is_shared and remaining_bytes is not None:
                grown = sum(grown_bytes.values())
                of_all_bytes = self._remaining_of_all(remaining_bytes, grown, measured_at_s, ratio)
                is_least = self.is_part_unknown = of_all_bytes is None
                remaining_bytes = remaining_bytes if of_all_bytes is None else of_all_bytes
        route = self._router.route(
            snapshot,
            self.topic,
            num_partitions=self.num_partitions,
            remaining_bytes=remaining_bytes,
            is_least=is_least,
            own_bytes=own_bytes,
            now_s=now_s,
            previous=previous,
            stored_ratio=ratio,
        )
        return self.follow(route)

    def _remaining_of_all(
        self, remaining_bytes: int, grown_bytes: float, measured_at_s: float, ratio: float
    ) -> int | None:
        """What all producers of the topic will still send; None until a measurement shows our part."""
        self._own_part.add(measured_at_s, self.own_bytes.sent_before(measured_at_s), grown_bytes)
        return self._own_part.of_all(remaining_bytes, self.own_bytes.total_sent, stored_ratio=ratio)

    def report(self, producer: str, remaining_bytes: int | None) -> RouteReport:
        """As `TopicRoute`, and why: what score functions say."""
        asked = self._ask_why()
        return (
            super()
            .report(producer, remaining_bytes)
            .model_copy(
                update={
                    "put_aside": asked.put_aside,
                    "willingness": asked.by_broker,
                    "scores": asked.scores,
                }
            )
        )

    def _ask_why(self) -> Willingness:
        """What score functions say of the brokers that hold the topic."""
        cached = self._cache.latest() if self._cache is not None else None
        if self._router is None or cached is None or cached.is_stale:
            return Willingness(by_broker={}, scores={}, vetoes={}, put_aside={})
        snapshot, now_s = cached.snapshot, cached.snapshot.taken_at_s + cached.age_s
        layout = snapshot.topics.get(self.topic, {})
        holding = {broker_id for placed in layout.values() for broker_id in placed.replica_ids}
        held = replace(snapshot, brokers={b: known for b, known in snapshot.brokers.items() if b in holding})
        return self._router.explain(held, self.topic, now_s=now_s)

    def stored_bytes_to_come(self, remaining_bytes: int, *, expected_ratio: float = 1.0) -> dict[int, int]:
        """What each broker would get of payload still to come, by the shares in use; all copies count."""
        cached = self._cache.latest() if self._cache is not None else None
        layout = cached.snapshot.topics.get(self.topic, {}) if cached is not None else {}
        stored = remaining_bytes * (self.stored_ratio or expected_ratio)
        by_broker: dict[int, float] = {}
        for partition, share in self._route.shares.items():
            placed = layout.get(partition)
            for broker_id in placed.replica_ids if placed is not None else ():
                by_broker[broker_id] = by_broker.get(broker_id, 0.0) + share * stored
        return {broker_id: int(size_bytes) for broker_id, size_bytes in by_broker.items()}

    def _grown_bytes(self, snapshot: ClusterSnapshot, ratio: float) -> dict[int, float]:
        """Stored bytes by partition that came to the topic, by whoever's hand, since this producer came."""
        grown: dict[int, float] = {}
        for partition, placed in snapshot.topics.get(self.topic, {}).items():
            leader = snapshot.brokers.get(placed.leader_id) if placed.leader_id is not None else None
            if leader is not None:
                size_bytes = leader.bytes_by_topic_partition.get(TopicPartition(self.topic, partition), 0)
                own_bytes = self.own_bytes.sent(partition) * ratio
                earlier_bytes = self._earlier.setdefault(partition, max(0.0, size_bytes - own_bytes))
                grown[partition] = max(0.0, size_bytes - earlier_bytes)
        return grown

    @property
    def stored_ratio(self) -> float | None:
        """Stored bytes for each byte of payload, as measured; None before. Only for a topic of one's own."""
        return self._stored_ratio

    def measure_stored_ratio(self, *, earlier_bytes: int = 0) -> None:
        """Compare what brokers hold of this topic with what was sent to it, by nobody else.

        Args:
            earlier_bytes: Payload that was in the topic before this producer came.
        """
        cached = self._cache.latest() if self._cache is not None else None
        if cached is None:
            return
        snapshot = cached.snapshot
        payload = earlier_bytes + self.own_bytes.acknowledged_before(time.monotonic() - cached.age_s)
        if payload >= _MEASURABLE_BYTES:
            stored = sum(snapshot.leader_bytes(self.topic).values())
            self._stored_ratio = min(2.0, max(0.01, stored / payload))
