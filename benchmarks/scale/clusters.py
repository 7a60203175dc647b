"""The clusters that `benchmarks scale` simulates: how full a thousand brokers are, and where a topic lies.

All have one topic of 3,000 partitions among 100,000, with 3 replicas each: every broker leads as many, as
Kafka places them, and followers are drawn by seed, as they lie after years of moves. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    PartitionSnapshot,
    TopicPartition,
)

Numbers = NDArray[np.float64]
Layout = Mapping[int, PartitionSnapshot]

TOPIC = "topic"
OTHER_TOPIC_PARTITIONS = 100
REPLICATION = 3
CAPACITY_BYTES = 100 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a simulated cluster is.

    Attributes:
        num_brokers: Brokers.
        num_partitions: Partitions of the topic that is written.
        num_all_partitions: Partitions of all topics.
    """

    num_brokers: int = 1_000
    num_partitions: int = 3_000
    num_all_partitions: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster before anything is written. Arrays have one entry for each broker, whose id is its place.

    Attributes:
        capacity_bytes: What each may hold.
        used_bytes: What each holds.
        layout: The topic's partitions.
        dead_ids: Brokers that answer no more; what they led has another leader.
    """

    capacity_bytes: Numbers
    used_bytes: Numbers
    layout: Layout
    dead_ids: frozenset[int] = frozenset()

    @property
    def replicas(self) -> NDArray[np.intp]:
        """[num_partitions, 3] the brokers of each partition."""
        return np.array([placed.replica_ids for placed in self.layout.values()], dtype=np.intp)

    @property
    def writable(self) -> NDArray[np.bool_]:
        """[num_partitions] which partitions have no copy on a dead broker."""
        return np.array([self.dead_ids.isdisjoint(placed.replica_ids) for placed in self.layout.values()])

    def added_bytes(self, bytes_by_partition: Numbers) -> Numbers:
        """[num_brokers] what each holds more once the partitions [num_partitions] got that."""
        each = np.repeat(bytes_by_partition, REPLICATION)
        return np.bincount(self.replicas.ravel(), each, minlength=len(self.used_bytes)).astype(np.float64)

    def snapshot(self, used_bytes: Numbers, taken_at_s: float) -> ClusterSnapshot:
        """What a collector that watches only the topic tells when brokers hold `used_bytes` [num_brokers]."""
        brokers = {
            broker_id: BrokerSnapshot(
                broker_id=broker_id,
                capacity_bytes=capacity,
                used_bytes=used,
                unreachable_since_s=0.0 if broker_id in self.dead_ids else None,
            )
            for broker_id, (capacity, used) in enumerate(
                zip(
                    self.capacity_bytes.astype(np.int64).tolist(),
                    used_bytes.astype(np.int64).tolist(),
                    strict=True,
                )
            )
        }
        return ClusterSnapshot(
            cluster_id="simulated", taken_at_s=taken_at_s, brokers=brokers, topics={TOPIC: self.layout}
        )


def place(num_partitions: int, num_brokers: int, draw: np.random.Generator) -> list[tuple[int, ...]]:
    """The replicas of each partition: leaders in turn, followers drawn; leader first."""
    placed = []
    for leader in (number % num_brokers for number in range(num_partitions)):
        others = draw.choice(num_brokers - 1, REPLICATION - 1, replace=False)
        placed.append((leader, *(int(other + (other >= leader)) for other in others)))
    return placed


def _even(size: Size, draw: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Capacities, and utilisations around 30 %."""
    return np.full(size.num_brokers, 1.0), draw.normal(0.3, 0.02, size.num_brokers)


def _skewed(size: Size, draw: np.random.Generator) -> tuple[Numbers, Numbers]:
    capacity, _ = _even(size, draw)
    group = np.arange(size.num_brokers) * 3 // size.num_brokers
    return capacity, np.array([0.7, 0.2, 0.1])[group] + draw.normal(0, 0.01, size.num_brokers)


def _three_sizes(size: Size, draw: np.random.Generator) -> tuple[Numbers, Numbers]:
    """As if bytes had been spread evenly so far: the smallest are fullest."""
    capacity = draw.choice([0.5, 1.0, 2.0], size.num_brokers)
    return capacity, (0.3 + draw.normal(0, 0.01, size.num_brokers)) / capacity


def _joined(size: Size, draw: np.random.Generator) -> tuple[Numbers, Numbers]:
    """The topic was made after 20 of 1,000 brokers had joined, so they have as many partitions as others."""
    capacity, utilisation = _even(size, draw)
    return capacity, np.where(np.arange(size.num_brokers) < max(1, size.num_brokers // 50), 0.0, utilisation)


STATES: Mapping[str, Callable[[Size, np.random.Generator], tuple[Numbers, Numbers]]] = {
    "even": _even,
    "70/20/10 over groups": _skewed,
    "three sizes": _three_sizes,
    "20 joined empty": _joined,
    "10 dead": _even,
}
DEAD_STATE = "10 dead"


def make_cluster(state: str, size: Size, seed: int) -> Cluster:
    """A cluster in one of `STATES`; the same seed gives the same one."""
    draw = np.random.default_rng(seed)
    capacity, utilisation = STATES[state](size, draw)
    num_dead = max(1, size.num_brokers // 100) if state == DEAD_STATE else 0
    dead = frozenset(draw.choice(size.num_brokers, num_dead, replace=False).tolist())
    capacity_bytes = capacity * CAPACITY_BYTES
    return Cluster(
        capacity_bytes=capacity_bytes,
        used_bytes=np.floor(np.clip(utilisation, 0.0, 1.0) * capacity_bytes),
        layout=_layout(place(size.num_partitions, size.num_brokers, draw), dead),
        dead_ids=dead,
    )


def whole_snapshot(cluster: Cluster, size: Size, seed: int) -> ClusterSnapshot:
    """What a collector that watches all topics tells: the layout and size of every partition."""
    draw = np.random.default_rng(seed)
    others = place(size.num_all_partitions - size.num_partitions, size.num_brokers, draw)
    topics = {TOPIC: cluster.layout}
    for first in range(0, len(others), OTHER_TOPIC_PARTITIONS):
        topics[f"other-{first}"] = _layout(others[first : first + OTHER_TOPIC_PARTITIONS], cluster.dead_ids)
    held: list[dict[TopicPartition, int]] = [{} for _ in range(size.num_brokers)]
    for topic, layout in topics.items():
        for number, placed in layout.items():
            key, stored = TopicPartition(topic, number), int(draw.integers(10**6, 10**9))
            for broker_id in placed.replica_ids:
                held[broker_id][key] = stored
    brokers = {
        broker_id: BrokerSnapshot(
            broker_id=broker_id,
            capacity_bytes=int(capacity),
            used_bytes=int(used),
            bytes_by_topic_partition=held[broker_id],
        )
        for broker_id, (capacity, used) in enumerate(
            zip(cluster.capacity_bytes, cluster.used_bytes, strict=True)
        )
    }
    return ClusterSnapshot(cluster_id="simulated", taken_at_s=0.0, brokers=brokers, topics=topics)


def _layout(placed: list[tuple[int, ...]], dead_ids: frozenset[int]) -> dict[int, PartitionSnapshot]:
    layout = {}
    for number, replicas in enumerate(placed):
        in_sync = tuple(broker_id for broker_id in replicas if broker_id not in dead_ids)
        leader_id = in_sync[0] if in_sync else None
        layout[number] = PartitionSnapshot(leader_id=leader_id, replica_ids=replicas, isr_ids=in_sync)
    return layout
