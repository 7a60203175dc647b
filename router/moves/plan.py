"""What a move plan is: reassignments of replicas, in an order in which each fits after those before it.

Values only; planning.py makes them, kafka_plugin/balancing/reassignment.py carries them out. Bytes are stored
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenload.telemetry_collector.snapshot import TopicPartition

__all__ = ["Move", "MovePlan", "is_internal_topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition that gets other replicas, as Kafka takes a reassignment.

    Attributes:
        topic_partition: which one.
        size_bytes: what each new copy takes.
        replica_ids_before: the brokers that hold it now, in Kafka's order.
        leader_id_before: the one of them that leads.
        replica_ids: those that shall hold it, the one that shall lead first.
    """

    topic_partition: TopicPartition
    size_bytes: int
    replica_ids_before: tuple[int, ...]
    leader_id_before: int
    replica_ids: tuple[int, ...]

    @property
    def added_ids(self) -> tuple[int, ...]:
        """Brokers that get a copy."""
        return tuple(sorted(set(self.replica_ids) - set(self.replica_ids_before)))

    @property
    def removed_ids(self) -> tuple[int, ...]:
        """Brokers that drop theirs once the new copies are complete."""
        return tuple(sorted(set(self.replica_ids_before) - set(self.replica_ids)))

    @property
    def moved_bytes(self) -> int:
        """Bytes that go over the network for it."""
        return self.size_bytes * len(self.added_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """What to move, and what comes of it.

    Attributes:
        moves: in an order in which each fits once those before it are complete.
        before: utilisation of each broker now, by id.
        after: and after all moves, as long as nobody writes.
        spread_before: highest minus lowest utilisation now, over the brokers that are levelled: those that
            can be reached and are not being emptied.
        spread_after: the same after all moves.
        least_bytes: no moves at all that reach `spread_after` take fewer bytes (a linear program's bound,
            in which partitions can be cut anywhere).
        notes: sentences about what is left as it is, and what deserves a second look.
    """

    moves: tuple[Move, ...]
    before: Mapping[int, float]
    after: Mapping[int, float]
    spread_before: float
    spread_after: float
    least_bytes: int
    notes: tuple[str, ...]

    @property
    def moved_bytes(self) -> int:
        """Bytes that go over the network for all of them."""
        return sum(move.moved_bytes for move in self.moves)


def is_internal_topic(topic: str) -> bool:
    """Whether Kafka or evenload keeps its own books there."""
    return topic.startswith(("__", "evenload.", "evenload-governor.", "evenload-service."))
