"""Take each volume of a broker as a broker of its own, where a broker has several.

The idea: Kafka keeps a partition in one log dir, so what fills up is a volume, not a broker: one with 60 %
of its bytes free can still have a volume without room, and then its partitions there can't be written.
Instead of telling every step of a decision about volumes, the snapshot is rewritten once: each log dir
becomes a broker with an id of its own, and the topic's replicas are said to lie there. All that follows
(levelling, limits, own bytes) works as it is. A snapshot without such brokers is returned as it came.

Ids: the broker's own number is in the lower 32 bits (Kafka's ids are below 2**31), the log dir's place, from
1, above them. `broker_of` takes it out again.

Invariants, checked in tests/property/router/test_volumes.py:
1. No bytes appear or vanish: over its volumes, a broker holds what it held.
2. Each replica of the topic is on one volume of the broker that held it.

Where a replica lies is unknown for a moment after it was made: it is then said to be on the fullest volume,
which is the careful guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    LogDirSnapshot,
    PartitionSnapshot,
    TopicPartition,
)

__all__ = ["broker_of", "by_volume", "name_of"]

_PLACE_BITS = 32


def broker_of(place_id: int) -> int:
    """The broker that a volume (or a broker) belongs to."""
    return place_id & ((1 << _PLACE_BITS) - 1)


def name_of(place_id: int) -> str:
    """How a volume (or a broker) is called in a sentence."""
    place = place_id >> _PLACE_BITS
    return f"{broker_of(place_id)} (volume {place})" if place else str(place_id)


def by_volume(snapshot: ClusterSnapshot, topic: str) -> ClusterSnapshot:
    """The snapshot with a broker for each volume and only `topic`; itself where no broker has several."""
    divided = {broker_id: broker for broker_id, broker in snapshot.brokers.items() if broker.log_dirs}
    if not divided:
        return snapshot
    brokers: dict[int, BrokerSnapshot] = {}
    for broker_id, broker in snapshot.brokers.items():
        for volume in _volumes(broker) if broker_id in divided else (broker,):
            brokers[volume.broker_id] = volume

    def place_of(broker_id: int, partition: int) -> int:
        broker = divided.get(broker_id)
        return broker_id if broker is None else _place(broker, TopicPartition(topic, partition))

    layout = {
        number: PartitionSnapshot(
            leader_id=None if placed.leader_id is None else place_of(placed.leader_id, number),
            replica_ids=tuple(place_of(broker_id, number) for broker_id in placed.replica_ids),
            isr_ids=tuple(place_of(broker_id, number) for broker_id in placed.isr_ids),
        )
        for number, placed in snapshot.topics.get(topic, {}).items()
    }
    return replace(snapshot, brokers=brokers, topics={topic: layout} if layout else {})


def _volumes(broker: BrokerSnapshot) -> Iterator[BrokerSnapshot]:
    """Each log dir as a broker; what loads have announced is divided by free bytes."""
    free = {path: max(0, each.capacity_bytes - each.used_bytes) for path, each in broker.log_dirs.items()}
    total_free = sum(free.values()) or 1
    left = broker.announced_bytes
    in_order = sorted(broker.log_dirs.items())
    for path, log_dir in in_order:
        announced = left if path == in_order[-1][0] else broker.announced_bytes * free[path] // total_free
        left -= announced
        yield replace(
            broker,
            broker_id=_id(broker, path),
            capacity_bytes=log_dir.capacity_bytes,
            used_bytes=log_dir.used_bytes,
            usable_bytes=free[path],
            bytes_by_topic_partition={
                key: broker.bytes_by_topic_partition.get(key, 0) for key in log_dir.topic_partitions
            },
            announced_bytes=announced,
            log_dirs={},
        )


def _place(broker: BrokerSnapshot, key: TopicPartition) -> int:
    for path, log_dir in broker.log_dirs.items():
        if key in log_dir.topic_partitions:
            return _id(broker, path)
    return _id(broker, max(broker.log_dirs, key=lambda path: _utilisation(broker.log_dirs[path])))


def _utilisation(log_dir: LogDirSnapshot) -> float:
    return log_dir.used_bytes / max(1, log_dir.capacity_bytes)


def _id(broker: BrokerSnapshot, path: str) -> int:
    place = sorted(broker.log_dirs).index(path) + 1
    return broker.broker_id | place << _PLACE_BITS
