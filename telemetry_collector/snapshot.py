"""What was known about a cluster at one instant, as values that never change.

The idea: whoever measures builds a new snapshot and swaps a reference; whoever decides reads the one it
holds, without locks, for as long as it likes. Nothing here does I/O or asks the time: `now_s` comes in.

Two kinds of bytes are kept apart. `used_bytes` and `bytes_by_topic_partition` are what a broker *holds*,
every replica counted (disk). `ClusterSnapshot.leader_bytes` is what a broker *leads*, one copy of each
partition (read speed). Both are bytes as stored, after compression, without index files.

Invariants, checked in tests/unit/telemetry_collector/test_snapshot.py:
1. Every broker is filed under its own id.
2. Byte counts and capacities are not negative.
3. A broker without a known capacity has no utilisation and takes no part in the spread.
4. A snapshot survives pickling.

Times are seconds since 1970 (`time.time()`). Read next: router/levelling.py, which decides from snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "BrokerSnapshot",
    "ClusterSnapshot",
    "LogDirSnapshot",
    "PartitionSnapshot",
    "ReplicationThrottles",
    "TopicPartition",
]


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirSnapshot:
    """One of several log dirs of a broker, or those of them that share a volume.

    Attributes:
        capacity_bytes: what its volume may hold.
        used_bytes: what its volume holds.
        topic_partitions: the replicas in it, of the topics that were asked for.
    """

    capacity_bytes: int
    used_bytes: int
    topic_partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSnapshot:
    """One broker as it was last seen; one that doesn't answer keeps what was last known of it.

    Attributes:
        broker_id: Kafka's id of the broker.
        rack: `broker.rack`, or None where none is set.
        capacity_bytes: what its log dirs may hold, or None when neither broker nor configuration tells.
        used_bytes: what its log dirs hold, all topics and all replicas.
        usable_bytes: what is left on its volumes, which others may fill too, or None when it can't tell.
        bytes_by_topic_partition: stored bytes of each replica on it, led by it or not. May cover only the
            topics that were asked for.
        unreachable_since_s: when it stopped answering; None while it answers, or is only late by an answer or
            two (observation.py says when it counts as unreachable).
        latency_s: round trip of the latest request that it answered, or None before the first.
        ingest_bytes_per_s: bytes that come to its log dirs in a second, all replicas, over about the last
            minute; None where it isn't known yet.
        request_latency_s: how long it takes over a producer's request, as its own metrics or clients'
            say (of what clients push, at most what pushed/felt.py lets count); None where neither is there.
        is_cordoned: whether its operator wants nothing new on it (Kafka 4.3, KIP-1066).
        announced_bytes: stored bytes that loads have announced for it, and that have not come yet.
        log_dirs: by path (of those that share a volume, the first), where it has several volumes that it
            tells the capacity of; else empty.
    """

    broker_id: int
    rack: str | None = None
    capacity_bytes: int | None = None
    used_bytes: int = 0
    usable_bytes: int | None = None
    bytes_by_topic_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    unreachable_since_s: float | None = None
    latency_s: float | None = None
    ingest_bytes_per_s: float | None = None
    request_latency_s: float | None = None
    is_cordoned: bool = False
    announced_bytes: int = 0
    log_dirs: Mapping[str, LogDirSnapshot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("capacity_bytes", "used_bytes", "usable_bytes", "announced_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"broker {self.broker_id}: {name} is {value}, it can't be negative")

    @property
    def is_reachable(self) -> bool:
        """Whether it answers; one that is only late counts as if it did."""
        return self.unreachable_since_s is None

    @property
    def utilisation(self) -> float | None:
        """Used over capacity (over 1 when more is held than was configured); None without a capacity."""
        if not self.capacity_bytes:
            return None
        return self.used_bytes / self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    """Where one partition is kept.

    Attributes:
        leader_id: the broker that accepts writes, or None while there is none.
        replica_ids: all brokers that keep a copy, the preferred leader first, as Kafka orders them.
        isr_ids: those of them that are in sync.
    """

    leader_id: int | None
    replica_ids: tuple[int, ...]
    isr_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What a topic's configuration says that matters to whoever writes to it; None where that isn't known.

    Attributes:
        partition_max_bytes: the most stored bytes that each replica of its partitions will hold on a broker,
            as Kafka then deletes what is oldest; None without a limit by size.
        max_age_s: how old what a broker keeps of it gets, up to a segment; None without a limit by age.
        segment_bytes: how large a segment of its log gets, of which Kafka deletes none but whole ones.
        min_in_sync: how many replicas of a partition have to be in sync, or a record that waits for all of
            them (`acks=all`) is refused.
    """

    partition_max_bytes: int | None = None
    max_age_s: float | None = None
    segment_bytes: int | None = None
    min_in_sync: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationThrottles:
    """Settings that hold replication back, whoever has made them, and whether anything moves.

    Attributes:
        bytes_per_s: by broker id, the rate that is set there; the lower one, where sending and taking differ.
        num_replicas: by topic name, how many of its replicas are held to it; those with none are absent.
        num_moving: partitions that are being reassigned; None where that isn't known.
    """

    bytes_per_s: Mapping[int, int] = field(default_factory=dict)
    num_replicas: Mapping[str, int] = field(default_factory=dict)
    num_moving: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """A cluster at one instant. Shared freely between threads; nobody may change its mappings.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        taken_at_s: when the measurement was made, seconds since 1970.
        brokers: every broker known, by id.
        topics: by topic name, the layout of each of its partitions by number. May cover only some topics.
        topic_configs: by topic name; those of which nothing is known are absent.
        throttles: for people; only a collector service asks for them. None where they aren't known.
    """

    cluster_id: str
    taken_at_s: float
    brokers: Mapping[int, BrokerSnapshot]
    topics: Mapping[str, Mapping[int, PartitionSnapshot]]
    topic_configs: Mapping[str, TopicConfig] = field(default_factory=dict)
    throttles: ReplicationThrottles | None = None

    def __post_init__(self) -> None:
        for broker_id, broker in self.brokers.items():
            if broker_id != broker.broker_id:
                raise ValueError(f"broker {broker.broker_id} is filed under {broker_id}")

    @property
    def utilisation_spread(self) -> float:
        """Highest minus lowest utilisation over the brokers with a known capacity; 0 for fewer than two."""
        known = [u for broker in self.brokers.values() if (u := broker.utilisation) is not None]
        return max(known) - min(known) if known else 0.0

    def leader_bytes(self, topic: str) -> dict[int, int]:
        """Stored bytes of `topic` by the broker that leads them: one copy of each partition.

        Every broker of the snapshot is there, with 0 where it leads nothing. Partitions without a leader, or
        whose leader is not in the snapshot, count nowhere; so does a topic that the snapshot does not hold.
        """
        led = dict.fromkeys(self.brokers, 0)
        for partition, placed in self.topics.get(topic, {}).items():
            leader = None if placed.leader_id is None else self.brokers.get(placed.leader_id)
            if leader is not None:
                key = TopicPartition(topic, partition)
                led[leader.broker_id] += leader.bytes_by_topic_partition.get(key, 0)
        return led

    def config_of(self, topic: str) -> TopicConfig:
        """What is known of a topic's configuration."""
        return self.topic_configs.get(topic, TopicConfig())

    def growth_max_bytes(self, topic: str, partition: int) -> int | None:
        """Stored bytes by which each replica of a partition can grow before as much is deleted as comes.

        None where its topic has no limit by size. Of replicas that differ, the fullest counts.
        """
        max_bytes = self.config_of(topic).partition_max_bytes
        if max_bytes is None:
            return None
        key = TopicPartition(topic, partition)
        placed = self.topics.get(topic, {}).get(partition)
        # Its own replicas only: a thousand brokers for each of 3,000 partitions would take too long.
        replicas = (self.brokers.get(broker_id) for broker_id in (placed.replica_ids if placed else ()))
        held = (broker.bytes_by_topic_partition.get(key, 0) for broker in replicas if broker is not None)
        return max(0, max_bytes - max(held, default=0))

    def age_s(self, now_s: float) -> float:
        """Seconds from the measurement to `now_s`; 0 when the clock was set back in between."""
        return max(0.0, now_s - self.taken_at_s)
