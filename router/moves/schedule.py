"""Which moves of a plan may begin now: several at the same time on each broker, and never more than fit.

The idea: Kafka's throttle holds what each broker sends and takes, so a cluster is done soonest when no
broker that has much to move ever waits. A move occupies the broker that sends it (its leader) and those
that get a copy. Each of them has up to `AT_ONCE` moves under way (as many as Cruise Control), or more while
all of them together are small. As soon as one is complete, the next one begins.

Room is kept for moves that come earlier in the plan: a later one begins before an earlier only if the
target has room for both. Each move of a plan fits once those before it are complete (order.py), so none is
ever shut out.

Invariants, checked in tests/property/router/moves/test_schedule.py:
1. At no moment is a broker above its limit because of a move.
2. As long as nothing else fills brokers, all moves of a plan come to their end.
3. The schedule takes at most 1.3 times as long as the busiest broker needs (where each has a throttle of
   its own).

Pure: the time that moves take is their business. Bytes are stored bytes. Read next:
kafka_plugin/balancing/reassignment.py, which carries moves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from evenload.router.moves.plan import Move
from evenload.router.moves.state import MoveState
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition

__all__ = ["AT_ONCE", "MoveSchedule"]

AT_ONCE = 5


class MoveSchedule:
    """What of a plan waits, what is under way, and what may begin. For one thread.

    Args:
        moves: in the order of the plan.
        small_bytes: a broker with less than this under way can begin another move, however many it has.
        utilisation_limit: no broker is filled above this by a move.

    Attributes:
        running: what is under way, by partition.
    """

    def __init__(self, moves: Sequence[Move], *, small_bytes: float, utilisation_limit: float = 0.95) -> None:
        self.running: dict[TopicPartition, Move] = {}
        self._waiting = list(moves)
        self._small_bytes = small_bytes
        self._utilisation_limit = utilisation_limit
        self._room_bytes: dict[int, float] = {}
        self._size_bytes: dict[TopicPartition, int] = {}
        self._held_back: dict[TopicPartition, str] = {}  # and why

    @property
    def num_waiting(self) -> int:
        """How many moves have not begun."""
        return len(self._waiting)

    def look(self, snapshot: ClusterSnapshot) -> tuple[str, ...]:
        """Take in a newer measurement; returns why moves are left out for good.

        What isn't possible at the moment (a copy not in sync, a target away) is held back until it is.
        """
        state = MoveState(
            snapshot, draining=(), excluded=self.running, utilisation_limit=self._utilisation_limit
        )
        self._size_bytes |= {at: partition.size_bytes for at, partition in state.movable.items()}
        room = (state.ceiling - state.used).tolist()
        self._room_bytes = dict(zip(state.broker_ids, room, strict=True))
        for move in self.running.values():  # part of it may be there already, and counts twice
            self._take_room(move)
        targets = {b for b, is_target in zip(state.broker_ids, state.is_target, strict=True) if is_target}
        elsewhere = [move for move in self._waiting if _is_elsewhere(snapshot, move)]
        self._waiting = [move for move in self._waiting if not _is_elsewhere(snapshot, move)]
        reasons = {move.topic_partition: _why_not(state, move, targets) for move in self._waiting}
        self._held_back = {at: reason for at, reason in reasons.items() if reason is not None}
        return tuple(f"{_named(move)} is not where it was any more; it stays." for move in elsewhere)

    def begin(self) -> tuple[Move, ...]:
        """The moves that begin now; they are under way from now on. None before the first `look`."""
        room = dict(self._room_bytes)
        under_way = Counter[int]()
        bytes_under_way = Counter[int]()
        for move in self.running.values():
            _occupy(move, under_way, bytes_under_way)
        begun = []
        for move in self._waiting:
            if move.topic_partition in self._held_back:
                continue
            size_bytes = self._size_of(move)
            fits = all(room.get(broker_id, 0.0) >= size_bytes for broker_id in move.added_ids)
            for broker_id in move.added_ids:  # also of one that has to wait, or a later one would shut it out
                room[broker_id] = room.get(broker_id, 0.0) - size_bytes
            is_free = all(
                under_way[broker_id] < AT_ONCE or bytes_under_way[broker_id] < self._small_bytes
                for broker_id in _occupied(move)
            )
            if fits and is_free:
                _occupy(move, under_way, bytes_under_way)
                self._take_room(move)
                begun.append(move)
        self.running |= {move.topic_partition: move for move in begun}
        self._waiting = [move for move in self._waiting if move.topic_partition not in self.running]
        return tuple(begun)

    def end(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These are under way no more. What they have left behind is room once it was measured."""
        for topic_partition in topic_partitions:
            del self.running[topic_partition]

    def give_up(self) -> tuple[str, ...]:
        """Leave out what still waits; returns sentences that say why."""
        left, self._waiting = self._waiting, []
        no_room = "stays: there is no room for it any more."
        return tuple(f"{_named(move)} {self._held_back.get(move.topic_partition, no_room)}" for move in left)

    def _take_room(self, move: Move) -> None:
        for broker_id in move.added_ids:
            self._room_bytes[broker_id] = self._room_bytes.get(broker_id, 0.0) - self._size_of(move)

    def _size_of(self, move: Move) -> int:
        """What a new copy takes by now: producers may have written since the plan was made."""
        return self._size_bytes.get(move.topic_partition, move.size_bytes)


def _is_elsewhere(snapshot: ClusterSnapshot, move: Move) -> bool:
    """Whether somebody else has moved it, or deleted it."""
    topic, number = move.topic_partition
    placed = snapshot.topics.get(topic, {}).get(number)
    return placed is None or set(placed.replica_ids) != set(move.replica_ids_before)


def _why_not(state: MoveState, move: Move, targets: set[int]) -> str | None:
    if move.topic_partition not in state.movable:
        return "is not in sync, or on a broker that doesn't answer; it stays."
    if not targets >= set(move.added_ids):
        return "stays: where it was to go takes nothing now."
    return None


def _named(move: Move) -> str:
    topic, number = move.topic_partition
    return f"partition {number} of {topic!r}"


def _occupied(move: Move) -> set[int]:
    return {move.leader_id_before, *move.added_ids}


def _occupy(move: Move, under_way: Counter[int], bytes_under_way: Counter[int]) -> None:
    for broker_id in _occupied(move):
        under_way[broker_id] += 1
        bytes_under_way[broker_id] += move.size_bytes
