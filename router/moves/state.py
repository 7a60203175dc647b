"""Where every replica would be while moves are being chosen, and which moves are allowed.

Arrays have one entry for each broker, in the order of `broker_ids`; brokers and partitions are places in
arrays here. A *hop* takes one copy of a partition from a source to a target; hops of a partition add up to
one `Move`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenload.router.brokers import BoolArray, tabulate
from evenload.router.min_max import FloatArray
from evenload.router.moves.plan import Move
from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    PartitionSnapshot,
    TopicPartition,
)

__all__ = ["Hop", "IntArray", "MoveState"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hop:
    """A copy of a partition (its place in `MoveState.partitions`) goes from one broker (place) to another."""

    partition: int
    source: int
    target: int


@dataclass(slots=True)
class _Movable:
    topic_partition: TopicPartition
    size_bytes: int  # of a new copy: what its leader holds
    held_bytes: Mapping[int, int]  # what the copies take that are there now, by broker's place
    before: tuple[int, ...]  # places
    leader_before: int
    replicas: list[int]
    leader: int

    def bytes_on(self, broker: int) -> int:
        return self.held_bytes.get(broker, self.size_bytes)


class MoveState:
    """A cluster of which replicas can be moved, in thought.

    Args:
        snapshot: the cluster; sizes of partitions that it doesn't tell can't be moved.
        draining: brokers that shall be emptied.
        excluded: partitions that have to stay.
        utilisation_limit: no broker is filled above this by a move.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        *,
        draining: Collection[int],
        excluded: Collection[TopicPartition],
        utilisation_limit: float,
    ) -> None:
        table = tabulate(snapshot, {})
        brokers = [snapshot.brokers[broker_id] for broker_id in table.broker_ids]
        self.broker_ids = table.broker_ids
        self.capacity: FloatArray = np.maximum(table.capacity_bytes, 1.0)
        self.used: FloatArray = table.used_bytes.copy()
        self.used_before: FloatArray = table.used_bytes.copy()
        room = np.array([_room_bytes(broker, utilisation_limit) for broker in brokers])
        self.ceiling: FloatArray = np.minimum(utilisation_limit * self.capacity, self.used + room)
        reachable = np.array([broker.is_reachable for broker in brokers], dtype=bool)
        self.is_draining: BoolArray = np.isin(self.broker_ids, list(draining)) & reachable
        self.is_levelled: BoolArray = reachable & ~np.isin(self.broker_ids, list(draining))
        self._is_divided = np.array([len(broker.log_dirs) > 1 for broker in brokers], dtype=bool)
        cordoned = np.array([broker.is_cordoned for broker in brokers], dtype=bool)
        self.is_target: BoolArray = self.is_levelled & ~cordoned
        self._racks = [
            broker.rack if broker.rack is not None else f"only broker {broker.broker_id}"
            for broker in brokers
        ]
        self.num_led = _leader_counts(snapshot, table.broker_ids)
        self.num_led_before = self.num_led.copy()
        self.partitions: list[_Movable] = []
        self.num_left = 0  # partitions that can't be moved, for whatever reason
        self._add_partitions(snapshot, excluded)
        self.on_broker: list[set[int]] = [set() for _ in brokers]
        for place, partition in enumerate(self.partitions):
            for broker in partition.replicas:
                self.on_broker[broker].add(place)
        self.movable_bytes: FloatArray = np.array(
            [
                sum(self.partitions[place].bytes_on(broker) for place in places)
                for broker, places in enumerate(self.on_broker)
            ],
            dtype=np.float64,
        )
        self.movable = {partition.topic_partition: partition for partition in self.partitions}
        self.changed: set[int] = set()
        self._copies_by_broker: dict[int, tuple[IntArray, FloatArray, FloatArray]] = {}

    def held_by_a_volume(self) -> list[int]:
        """The brokers that can't take what would make all even, as their fullest volume hasn't the room."""
        even = self.used_before[self.is_levelled].sum() / max(1.0, self.capacity[self.is_levelled].sum())
        held = self._is_divided & self.is_target & (self.ceiling < even * self.capacity)
        return [self.broker_ids[place] for place in np.flatnonzero(held)]

    def spread(self) -> float:
        """Highest minus lowest utilisation over the brokers that are levelled."""
        return self.spread_of(self.used)

    def spread_of(self, used: FloatArray) -> float:
        """The same if they held `used`."""
        levels = (used / self.capacity)[self.is_levelled]
        return float(levels.max() - levels.min()) if len(levels) else 0.0

    def copies_on(self, broker: int) -> tuple[IntArray, FloatArray, FloatArray]:
        """The partitions on a broker, ascending, what each would take elsewhere, and what it takes here."""
        found = self._copies_by_broker.get(broker)
        if found is None:
            places = sorted(self.on_broker[broker])
            coming = np.array([self.partitions[place].size_bytes for place in places], dtype=np.float64)
            here = np.array([self.partitions[place].bytes_on(broker) for place in places], dtype=np.float64)
            found = np.array(places, dtype=np.int64), coming, here
            self._copies_by_broker[broker] = found
        return found

    def is_allowed(self, hop: Hop) -> bool:
        """Whether it leaves room, distinct brokers, as many racks, and leaders no less even."""
        partition = self.partitions[hop.partition]
        if not self.is_target[hop.target] or hop.target in partition.replicas:
            return False
        if hop.target in partition.before:  # back where it came from: two copies for nothing
            return False
        if self.used[hop.target] + partition.size_bytes > self.ceiling[hop.target]:
            return False
        after = [hop.target if broker == hop.source else broker for broker in partition.replicas]
        if self._num_racks(after) < self._num_racks(partition.before):
            return False
        return self._next_leader(partition, hop) is not None

    def apply(self, hop: Hop) -> None:
        """Makes an allowed hop."""
        partition = self.partitions[hop.partition]
        leader = self._next_leader(partition, hop)
        assert leader is not None, f"{hop} is not allowed"
        self._lead(partition, leader)
        partition.replicas[partition.replicas.index(hop.source)] = hop.target
        self._drop(hop.source, hop.partition)
        self._hold(hop.target, hop.partition)
        self._note_change(hop.partition)

    def take_back(self, place: int) -> None:
        """Leaves a partition where it was before all hops."""
        partition = self.partitions[place]
        for broker in partition.replicas:
            self._drop(broker, place)
        for broker in partition.before:
            self._hold(broker, place)
        partition.replicas = list(partition.before)
        self._lead(partition, partition.leader_before)
        self._note_change(place)

    def move_of(self, place: int) -> Move:
        """What all hops of a partition come to."""
        partition = self.partitions[place]
        order = [partition.leader, *(broker for broker in partition.replicas if broker != partition.leader)]
        return Move(
            topic_partition=partition.topic_partition,
            size_bytes=partition.size_bytes,
            replica_ids_before=self.ids(partition.before),
            leader_id_before=self.broker_ids[partition.leader_before],
            replica_ids=self.ids(order),
        )

    def ids(self, brokers: Iterable[int]) -> tuple[int, ...]:
        """The ids of brokers, from their places."""
        return tuple(self.broker_ids[broker] for broker in brokers)

    def _add_partitions(self, snapshot: ClusterSnapshot, excluded: Collection[TopicPartition]) -> None:
        places = {broker_id: place for place, broker_id in enumerate(self.broker_ids)}
        for topic in sorted(snapshot.topics):
            for number, placed in sorted(snapshot.topics[topic].items()):
                key = TopicPartition(topic, number)
                sizes = _sizes(snapshot, key, placed)
                if sizes is None or placed.leader_id is None or key in excluded:
                    self.num_left += 1
                    continue
                replicas = [places[broker_id] for broker_id in placed.replica_ids]
                leader = places[placed.leader_id]
                held = {places[broker_id]: size for broker_id, size in sizes.items()}
                self.partitions.append(
                    _Movable(key, sizes[placed.leader_id], held, tuple(replicas), leader, replicas, leader)
                )

    def _next_leader(self, partition: _Movable, hop: Hop) -> int | None:
        """Who leads after a hop; None where every choice would make leaders less even than they are.

        Whoever leads goes on unless its own copy goes. An only copy takes its leader along.
        """
        if partition.leader != hop.source:
            return partition.leader
        if len(partition.replicas) == 1:
            return hop.target
        members = [broker for broker in partition.replicas if broker != hop.source] + [hop.target]
        members = [broker for broker in members if not self.is_draining[broker]] or members
        chosen = min(members, key=lambda broker: (self.num_led[broker], broker))
        if not self.is_draining[hop.source] and self.num_led[chosen] >= self.num_led[hop.source]:
            return None
        return chosen

    def _lead(self, partition: _Movable, leader: int) -> None:
        if len(partition.replicas) > 1:
            self.num_led[partition.leader] -= 1
            self.num_led[leader] += 1
        partition.leader = leader

    def _hold(self, broker: int, place: int) -> None:
        self.on_broker[broker].add(place)
        self.used[broker] += self.partitions[place].bytes_on(broker)
        self._copies_by_broker.pop(broker, None)

    def _drop(self, broker: int, place: int) -> None:
        self.on_broker[broker].remove(place)
        self.used[broker] -= self.partitions[place].bytes_on(broker)
        self._copies_by_broker.pop(broker, None)

    def _num_racks(self, brokers: Collection[int]) -> int:
        return len({self._racks[broker] for broker in brokers})

    def _note_change(self, place: int) -> None:
        partition = self.partitions[place]
        if set(partition.replicas) == set(partition.before):
            self.changed.discard(place)
        else:
            self.changed.add(place)


def _room_bytes(broker: BrokerSnapshot, utilisation_limit: float) -> float:
    """What fits on a broker; where it has several volumes, on any of them, as Kafka chooses which."""
    room = np.inf if broker.usable_bytes is None else float(broker.usable_bytes)
    on_volumes = (utilisation_limit * v.capacity_bytes - v.used_bytes for v in broker.log_dirs.values())
    return max(0.0, min((room, *on_volumes)))


def _leader_counts(snapshot: ClusterSnapshot, broker_ids: tuple[int, ...]) -> IntArray:
    """[num_brokers] how many partitions of several copies each broker leads."""
    leaders = Counter(
        placed.leader_id
        for layout in snapshot.topics.values()
        for placed in layout.values()
        if len(placed.replica_ids) > 1
    )
    return np.array([leaders[broker_id] for broker_id in broker_ids], dtype=np.int64)


def _sizes(
    snapshot: ClusterSnapshot, key: TopicPartition, placed: PartitionSnapshot
) -> dict[int, int] | None:
    """Bytes of each copy by broker id; None unless every copy is in sync, on a broker that tells its size."""
    if set(placed.isr_ids) != set(placed.replica_ids) or placed.leader_id not in placed.replica_ids:
        return None
    sizes: dict[int, int] = {}
    for broker_id in placed.replica_ids:
        broker = snapshot.brokers.get(broker_id)
        if broker is None or not broker.is_reachable or key not in broker.bytes_by_topic_partition:
            return None
        sizes[broker_id] = broker.bytes_by_topic_partition[key]
    return sizes
