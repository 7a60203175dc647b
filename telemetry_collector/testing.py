"""What tests of anything above the collector need: snapshots and sources that are made, not measured.

Shipped with the package so that a plugin's author tests a goal or a score function without a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenload.telemetry_collector.errors import BrokerUnreachableError, CollectorClosedError
from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    PartitionSnapshot,
    TopicPartition,
)
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.observation import BrokerStorage, ClusterLayout
from evenload.telemetry_collector.sources.source import Observation, Question

__all__ = ["FakeCluster", "FakeMetricsSource", "FakeRequests", "FakeSource", "make_snapshot"]


def make_snapshot(
    used_bytes: Sequence[int],
    capacity_bytes: Sequence[int | None] | int | None = 1_000_000,
    *,
    topics: Mapping[str, Sequence[Sequence[int]]] | None = None,
    racks: Sequence[str | None] | None = None,
    stored_bytes: Mapping[tuple[str, int], int] | None = None,
    leaderless: Collection[tuple[str, int]] = (),
    in_sync: Mapping[tuple[str, int], Sequence[int]] | None = None,
    unreachable: Collection[int] = (),
    latency_s: Mapping[int, float] | None = None,
    ingest_bytes_per_s: Mapping[int, float] | None = None,
    request_latency_s: Mapping[int, float] | None = None,
    cordoned: Collection[int] = (),
    taken_at_s: float = 1000.0,
    cluster_id: str = "test-cluster",
) -> ClusterSnapshot:
    """A snapshot of brokers 1, 2, ... with the given bytes.

    Args:
        used_bytes: what each broker holds; broker i + 1 is entry i.
        capacity_bytes: one for each broker, or one for all; None where it is unknown.
        topics: by name, the replica ids of partitions 0, 1, ..., the leader first; an empty sequence is a
            partition without replicas or leader.
        racks: one for each broker.
        stored_bytes: stored bytes of (topic, partition) on each of its replicas, 0 where absent. Part
            of `used_bytes`, not added to it.
        leaderless: the (topic, partition) pairs that have replicas but no leader.
        in_sync: the replicas of (topic, partition) that are in sync; all of them where absent.
        unreachable: ids of brokers that have not answered since `taken_at_s`.
        latency_s: round trips by broker id.
        ingest_bytes_per_s: what comes in a second, by broker id; unknown where absent.
        request_latency_s: how long a producer's request takes, by broker id; unknown where absent.
        cordoned: ids of brokers whose operator wants nothing new on them.
        taken_at_s: seconds since 1970.
        cluster_id: the id of the cluster.
    """
    num_brokers = len(used_bytes)
    capacities = capacity_bytes if isinstance(capacity_bytes, Sequence) else [capacity_bytes] * num_brokers
    layouts = topics or {}
    held: dict[int, dict[TopicPartition, int]] = {broker_id: {} for broker_id in range(1, num_brokers + 1)}
    for name, layout in layouts.items():
        for partition, replica_ids in enumerate(layout):
            for broker_id in replica_ids:
                stored = (stored_bytes or {}).get((name, partition), 0)
                held.get(broker_id, {})[TopicPartition(name, partition)] = stored
    return ClusterSnapshot(
        cluster_id=cluster_id,
        taken_at_s=taken_at_s,
        brokers={
            broker_id: BrokerSnapshot(
                broker_id=broker_id,
                rack=racks[broker_id - 1] if racks else None,
                capacity_bytes=capacities[broker_id - 1],
                used_bytes=used_bytes[broker_id - 1],
                bytes_by_topic_partition=held[broker_id],
                unreachable_since_s=taken_at_s if broker_id in unreachable else None,
                latency_s=(latency_s or {}).get(broker_id),
                ingest_bytes_per_s=(ingest_bytes_per_s or {}).get(broker_id),
                request_latency_s=(request_latency_s or {}).get(broker_id),
                is_cordoned=broker_id in cordoned,
            )
            for broker_id in range(1, num_brokers + 1)
        },
        topics={
            name: {
                partition: PartitionSnapshot(
                    leader_id=replica_ids[0] if replica_ids and (name, partition) not in leaderless else None,
                    replica_ids=tuple(replica_ids),
                    isr_ids=tuple((in_sync or {}).get((name, partition), replica_ids)),
                )
                for partition, replica_ids in enumerate(layout)
            }
            for name, layout in layouts.items()
        },
    )


@dataclass
class FakeCluster:
    """A cluster that consists of a snapshot, for a collector to measure. Change it from any thread.

    Attributes:
        snapshot: what measuring it gives; replace it to let time go by.
        killed: the brokers that refuse connections and that the cluster doesn't list any more.
        paused: the brokers that accept a question and never answer, though the cluster lists them.
        delay_s: how long a broker takes to answer, by id.
        metrics: what a `FakeMetricsSource` tells of a broker, by id.
    """

    snapshot: ClusterSnapshot
    killed: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    delay_s: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, BrokerMetrics] = field(default_factory=dict)

    def sources(self) -> tuple[FakeSource, FakeSource]:
        """What a collector needs to measure it: one for its layout, one for its brokers."""
        return FakeSource(self, is_per_broker=False), FakeSource(self, is_per_broker=True)


class FakeSource:
    """Answers about a `FakeCluster` as the cluster's own sources do; keeps their contract.

    Attributes:
        questions: all that it was asked, in order.
        fault: raised instead of an answer while it is set.
    """

    is_essential = True

    def __init__(self, cluster: FakeCluster, *, is_per_broker: bool) -> None:
        self.name = "log_dirs" if is_per_broker else "cluster_metadata"
        self.is_per_broker = is_per_broker
        self.questions: list[Question] = []
        self.fault: Exception | None = None
        self._cluster = cluster
        self._is_closed = False

    async def answer(self, question: Question) -> Observation:
        """What the snapshot says, after the broker's delay."""
        if self._is_closed:
            raise CollectorClosedError("the source has been closed")
        self.questions.append(question)
        if self.fault is not None:
            raise self.fault
        if self.is_per_broker:
            assert question.broker_id is not None
            await self._reach(question.broker_id, question.timeout_s)
            return self._storage(question.broker_id, question)
        if not self._running():
            await self._reach(min(self._cluster.snapshot.brokers), question.timeout_s)
        return self._layout(question)

    async def close(self) -> None:
        """Answer no more."""
        self._is_closed = True

    def _running(self) -> set[int]:
        return set(self._cluster.snapshot.brokers) - self._cluster.killed - self._cluster.paused

    async def _reach(self, broker_id: int, timeout_s: float) -> None:
        if broker_id in self._cluster.killed or broker_id not in self._cluster.snapshot.brokers:
            raise BrokerUnreachableError(broker_id, "connection refused")
        delay_s = self._cluster.delay_s.get(broker_id, 0.0)
        if broker_id in self._cluster.paused or delay_s > timeout_s:
            await asyncio.sleep(timeout_s)
            raise BrokerUnreachableError(broker_id, f"no answer within {timeout_s:g} s")
        await asyncio.sleep(delay_s)

    def _layout(self, question: Question) -> ClusterLayout:
        snapshot = self._cluster.snapshot
        topics: Mapping[str, Mapping[int, PartitionSnapshot]] | None = None
        if question.topics is not None:
            topics = {name: snapshot.topics[name] for name in question.topics if name in snapshot.topics}
        elif question.is_full:
            topics = snapshot.topics
        return ClusterLayout(
            cluster_id=snapshot.cluster_id,
            racks={b: broker.rack for b, broker in snapshot.brokers.items() if b not in self._cluster.killed},
            topics=topics,
        )

    def _storage(self, broker_id: int, question: Question) -> BrokerStorage:
        broker = self._cluster.snapshot.brokers[broker_id]
        sizes: Mapping[TopicPartition, int] | None = None
        if question.topics is not None:
            held = broker.bytes_by_topic_partition.items()
            sizes = {partition: size for partition, size in held if partition.topic in question.topics}
        elif question.is_full:
            sizes = broker.bytes_by_topic_partition
        return BrokerStorage(
            capacity_bytes=broker.capacity_bytes,
            used_bytes=broker.used_bytes,
            usable_bytes=broker.usable_bytes,
            bytes_by_topic_partition=sizes,
            is_cordoned=broker.is_cordoned,
            log_dirs=broker.log_dirs,
        )


class FakeMetricsSource:
    """Tells a `FakeCluster`'s metrics, as a broker's exporter does: apart from whether the broker answers.

    Attributes:
        is_silent: whether questions are accepted and never answered.
        fault: raised instead of an answer while it is set.
    """

    name = "metrics"
    is_per_broker = True
    is_essential = False

    def __init__(self, cluster: FakeCluster, name: str = "metrics") -> None:
        self.name = name
        self.is_silent = False
        self.fault: Exception | None = None
        self._cluster = cluster
        self._is_closed = False

    async def answer(self, question: Question) -> BrokerMetrics:
        """What the cluster's `metrics` say of the broker, or nothing."""
        if self._is_closed:
            raise CollectorClosedError("the source has been closed")
        assert question.broker_id is not None
        if self.is_silent:
            await asyncio.sleep(question.timeout_s)
            raise BrokerUnreachableError(question.broker_id, f"no answer within {question.timeout_s:g} s")
        if self.fault is not None:
            raise self.fault
        return self._cluster.metrics.get(question.broker_id, BrokerMetrics())

    async def close(self) -> None:
        """Answer no more."""
        self._is_closed = True


class FakeRequests:
    """Answers requests from a function, as `KafkaRequests` does from brokers.

    Args:
        answer: makes the response, or a coroutine that does, of whom is asked and the request.

    Attributes:
        asked: all that it was asked, in order.
    """

    bootstrap_nodes = ("bootstrap-0",)

    def __init__(self, answer: Callable[[int | str, Any], Any]) -> None:
        self._answer = answer
        self.asked: list[tuple[int | str, Any]] = []

    async def ask(self, node: int | str, request: Any, *, timeout_s: float) -> Any:
        """What `answer` makes of it."""
        assert timeout_s > 0
        self.asked.append((node, request))
        answer = self._answer(node, request)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def learn_brokers(self, metadata_response: Any) -> None:
        """Nothing to learn."""
        assert metadata_response.brokers

    def hang_up(self, node: int | str) -> None:
        """Nothing to hang up."""
        assert isinstance(node, str)
