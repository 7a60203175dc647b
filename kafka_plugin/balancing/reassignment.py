"""Carry out a move plan: several moves at a time, throttled, watched, and taken back when it is given up.

The order is what makes it safe against kill -9: the record says what will be ours, then throttles are put
on, then Kafka is told. When moves are complete, their throttles are taken off, then the record says that
they are not ours any more. Whoever comes next after a death finds in the record all that there may be to
undo: what was under way.

Who has been fenced by another balance can neither write nor change anything any more (log.py): the
other has found in the record what is to be undone, and does it.

Moves that don't get on (a broker is down, paused or slow) are waited for, and that is said; after
`stall_timeout_s` what is under way is taken back. Given up in any way (Ctrl-C too), it is taken back: moves
that are complete stay, copies on their way are dropped, and these partitions are as they were.

Which moves may begin, router/moves/schedule.py says.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from evenload.dataset_catalog.errors import CatalogError
from evenload.kafka_connection import KafkaConnectionError
from evenload.kafka_plugin.balancing.admin import BalanceAdmin
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.log import BalanceLog
from evenload.kafka_plugin.balancing.record import BalanceRecord, Target, ThrottleRecord
from evenload.kafka_plugin.balancing.replication_throttle import lift_throttle, plan_throttle, set_throttle
from evenload.kafka_plugin.errors import (
    BalanceCancelledError,
    BalanceInterruptedError,
    BalanceRefusedError,
)
from evenload.router.moves.schedule import MoveSchedule
from evenload.telemetry_collector.errors import CollectorError
from evenload.telemetry_collector.snapshot import ClusterSnapshot, TopicPartition

__all__ = ["MoveProgress", "Mover", "ours_running"]

_log = logging.getLogger(__name__)
_CANCEL_TIMEOUT_S = 30.0
_HEARTBEAT_S = 10.0
_METADATA_DELAY_S = 10.0  # by which a broker may be behind the controller


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """How far moves are.

    Attributes:
        moved_bytes: of all copies that have begun to come, as far as brokers say.
        waiting_for: why it seems to stand still, or None while it gets on.
    """

    moved_bytes: int
    waiting_for: str | None = None


def ours_running(admin: BalanceAdmin, record: BalanceRecord) -> dict[TopicPartition, tuple[int, ...]]:
    """Partitions that Kafka is still moving as a balance told it, and the brokers that get copies."""
    running = admin.reassignments()
    return {
        target.topic_partition: found.adding_ids
        for target in record.targets
        if (found := running.get(target.topic_partition)) is not None
        and found.target_ids == frozenset(target.replica_ids)
    }


class Mover:
    """Makes moves in the name of one balance; a context manager, for one thread.

    Left with an exception, Ctrl-C among them, it takes back what is on its way. Left in any way, nothing is
    ours any more, but what could not be taken off, or somebody else has taken over.

    Args:
        admin: the cluster.
        log: where what is ours is written down.
        record: what stands there, written by this process.
        config: rates and times.
    """

    def __init__(
        self, admin: BalanceAdmin, log: BalanceLog, record: BalanceRecord, config: BalanceConfig
    ) -> None:
        self._admin = admin
        self._log = log
        self._record = record
        self._config = config
        self._heard_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (self._record.targets or self._record.throttle is not None):
            self.take_back()
        if self._record.throttle is None:
            self._log.clear()

    def carry_out(
        self,
        schedule: MoveSchedule,
        measure: Callable[[], ClusterSnapshot],
        progress: Callable[[MoveProgress], None],
    ) -> tuple[int, list[str]]:
        """Makes all moves of a schedule that has been looked at.

        Args:
            schedule: what waits.
            measure: measures the cluster, each `look_s` while moves wait.
            progress: told a few times a second.

        Returns:
            The bytes that were moved, and a sentence for each move that was left out.

        Raises:
            BalanceInterruptedError: Brokers don't answer, or it made no progress.
            BalanceCancelledError: Somebody else took moves back, or over.
            BalanceRefusedError: A permission is missing.
            CollectorError: The cluster can't be measured, and nothing is under way meanwhile.
        """
        watch = _Watch(self._admin, self._config)
        notes: list[str] = []
        looked_s = busy_s = time.monotonic()
        while schedule.running or schedule.num_waiting:
            notes += self._begin(schedule, watch)
            if schedule.running:
                running = self._look(watch, progress)
                self._end(schedule.running.keys() - running.keys(), schedule)
                busy_s = time.monotonic()
                if not schedule.running:
                    looked_s = -math.inf  # what the last one has left behind may be room
            elif time.monotonic() - busy_s > self._config.patience_s:
                notes += schedule.give_up()
            else:
                progress(MoveProgress(watch.moved_bytes, "waiting for room, or for a broker that is away"))
                time.sleep(self._config.poll_s)
            if schedule.num_waiting and time.monotonic() - looked_s > self._config.look_s:
                notes += self._look_again(schedule, measure)
                looked_s = time.monotonic()
        return watch.moved_bytes, notes

    def finish_left(self, progress: Callable[[MoveProgress], None]) -> int:
        """Waits for reassignments that a dead balance has ordered, under its throttle, then takes that off.

        Returns:
            How many there were.
        """
        left = self._ours_running()
        watch = _Watch(self._admin, self._config)
        watch.add({(b, at): 0 for at, adding in left.items() for b in adding})
        while self._look(watch, progress):
            pass
        self._lift()
        return len(left)

    def take_back(self) -> list[TopicPartition]:
        """Cancels those of our reassignments that are not complete, and takes throttles off.

        Returns:
            The partitions whose moves were cancelled.

        Raises:
            BalanceInterruptedError: Kafka goes on with some. They stay ours, and throttled.
        """
        running = sorted(self._ours_running())
        self._admin.cancel(running)
        deadline_s = time.monotonic() + _CANCEL_TIMEOUT_S
        while left := self._ours_running():
            if time.monotonic() > deadline_s:
                reason = f"Kafka still makes {len(left)} of them {_CANCEL_TIMEOUT_S:.0f} s after it was told"
                raise BalanceInterruptedError("taking moves back", reason)
            time.sleep(self._config.poll_s)
        self._lift()
        return running

    @property
    def record(self) -> BalanceRecord:
        """What is written down as ours."""
        return self._record

    @property
    def has_left_throttles(self) -> bool:
        """Whether throttles of ours may be in place."""
        return self._record.throttle is not None

    @property
    def left_behind(self) -> tuple[int, ...]:
        """Brokers whose throttle rates could not be taken off, as they don't answer."""
        throttle = self._record.throttle
        return tuple(sorted(throttle.rates)) if throttle is not None else ()

    def _lift(self) -> None:
        left = None if self._record.throttle is None else lift_throttle(self._admin, self._record.throttle)
        self._note(targets=(), throttle=left)

    def _note(self, **changes: object) -> None:
        self._record = self._log.write(self._record.model_copy(update=changes))

    def _ours_running(self) -> dict[TopicPartition, tuple[int, ...]]:
        return ours_running(self._admin, self._record)

    def _begin(self, schedule: MoveSchedule, watch: _Watch) -> list[str]:
        """Begins what may begin; returns a sentence for each move that Kafka refuses."""
        moves = schedule.begin()
        if not moves:
            return []
        throttle = plan_throttle(self._admin, moves, self._config.throttle_bytes_per_s)
        self._note(
            targets=(*self._record.targets, *map(Target.of, moves)),
            throttle=(self._record.throttle or ThrottleRecord()).joined_with(throttle),
        )
        set_throttle(self._admin, throttle, timeout_s=self._config.timeout_s)
        refused = self._admin.reassign({move.topic_partition: move.replica_ids for move in moves})
        watch.add(
            {
                (broker_id, move.topic_partition): move.size_bytes
                for move in moves
                for broker_id in move.added_ids
                if move.topic_partition not in refused
            }
        )
        if refused:
            self._let_go(set(refused), schedule)
        return [
            f"partition {at.partition} of {at.topic!r} stays: Kafka refuses to move it ({reason})."
            for at, reason in sorted(refused.items())
        ]

    def _end(self, topic_partitions: set[TopicPartition], schedule: MoveSchedule) -> None:
        """Kafka is at these no more."""
        if topic_partitions:
            self._check_arrived(topic_partitions)
            self._let_go(topic_partitions, schedule)

    def _let_go(self, topic_partitions: set[TopicPartition], schedule: MoveSchedule) -> None:
        """These are not ours any more; rates stay for those that are under way."""
        schedule.end(topic_partitions)
        if not schedule.running:
            self._lift()
            return
        done, rest = (self._record.throttle or ThrottleRecord()).divided(topic_partitions)
        lift_throttle(self._admin, done, kept=rest)
        left = tuple(each for each in self._record.targets if each.topic_partition not in topic_partitions)
        self._note(targets=left, throttle=rest)

    def _look_again(self, schedule: MoveSchedule, measure: Callable[[], ClusterSnapshot]) -> tuple[str, ...]:
        """Takes in what has changed."""
        # Measuring may take a while, and who was silent for long counts as dead.
        self._give_sign_of_life()
        try:
            return schedule.look(measure())
        except CollectorError as error:
            if not schedule.running:
                raise
            _log.warning("brokers couldn't be measured while moves are under way: %s", error)
            return ()
        finally:
            self._give_sign_of_life()

    def _look(
        self, watch: _Watch, progress: Callable[[MoveProgress], None]
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """What of ours Kafka is at, or was when it was last heard of; waits a moment where that is something.

        Raises:
            BalanceInterruptedError: Nothing has moved for too long.
        """
        problem = None
        try:
            watch.running = self._ours_running()
        except BalanceInterruptedError as error:
            problem = error.reason
        else:
            problem = watch.look()
        progress(MoveProgress(watch.moved_bytes, problem or watch.waiting_for()))
        if watch.quiet_s() > self._config.stall_timeout_s:
            reason = f"nothing has moved for {watch.quiet_s():.0f} s ({problem or 'brokers say no more'})"
            raise BalanceInterruptedError("copying", reason)
        if time.monotonic() - self._heard_s > _HEARTBEAT_S:
            self._give_sign_of_life()
        if watch.running:
            time.sleep(self._config.poll_s)
        return watch.running

    def _give_sign_of_life(self) -> None:
        try:
            self._note()
        except (CatalogError, KafkaConnectionError, BalanceInterruptedError) as error:
            # The record may lie on the very broker that is waited for; moving doesn't depend on it.
            _log.warning("no sign of life could be written: %s", error)
        self._heard_s = time.monotonic()

    def _check_arrived(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Kafka is at a move of ours no more also when somebody has cancelled it."""
        deadline_s = time.monotonic() + _METADATA_DELAY_S
        while elsewhere := self._num_elsewhere(topic_partitions):
            if time.monotonic() > deadline_s:
                raise BalanceCancelledError(elsewhere)
            time.sleep(self._config.poll_s)

    def _num_elsewhere(self, topic_partitions: Collection[TopicPartition]) -> int:
        there = self._admin.replicas({at.topic for at in topic_partitions})
        return sum(
            set(there[target.topic_partition]) != set(target.replica_ids)
            for target in self._record.targets
            if target.topic_partition in topic_partitions and target.topic_partition in there
        )


class _Watch:
    """How many bytes have come, and since when none have."""

    def __init__(self, admin: BalanceAdmin, config: BalanceConfig) -> None:
        self._admin = admin
        self._sizes: dict[tuple[int, TopicPartition], int] = {}
        self._config = config
        self._copied: dict[tuple[int, TopicPartition], int] = {}
        self._num_running = 0
        self._moved_s = time.monotonic()
        self.running: dict[TopicPartition, tuple[int, ...]] = {}

    def add(self, sizes: Mapping[tuple[int, TopicPartition], int]) -> None:
        """These copies, by broker and partition, have begun to come."""
        self._sizes |= sizes
        self._copied |= dict.fromkeys(sizes, 0)
        self.running |= {at: () for _, at in sizes}

    @property
    def moved_bytes(self) -> int:
        """So far, of each copy at most what there was to move when it began."""
        return sum(min(done, self._sizes[at]) for at, done in self._copied.items())

    def quiet_s(self) -> float:
        """Seconds since anything came."""
        return time.monotonic() - self._moved_s

    def waiting_for(self) -> str | None:
        """A sentence once it has been quiet for a while."""
        if self.quiet_s() < self._config.quiet_s:
            return None
        return f"nothing has moved for {self.quiet_s():.0f} s; still waiting"

    def look(self) -> str | None:
        """Asks the brokers that get copies; returns a sentence about one that doesn't answer."""
        problem, running = None, self.running
        before = sum(self._copied.values()), self._num_running
        for (broker_id, at), size in self._sizes.items():
            if at not in running:
                self._copied[broker_id, at] = max(size, self._copied[broker_id, at])
        by_broker: dict[int, list[TopicPartition]] = {}
        for at, adding in running.items():
            for broker_id in adding:
                by_broker.setdefault(broker_id, []).append(at)
        for broker_id, partitions in sorted(by_broker.items()):
            try:
                held = self._admin.copy_bytes(broker_id, partitions)
            except (BalanceInterruptedError, BalanceRefusedError) as error:
                problem = f"broker {broker_id} doesn't answer ({error.reason}); waiting until it does"
                continue
            for at, size in held.items():
                if (broker_id, at) in self._copied:
                    self._copied[broker_id, at] = max(size, self._copied[broker_id, at])
        self._num_running = len(running)
        if (sum(self._copied.values()), self._num_running) != before:
            self._moved_s = time.monotonic()
        return problem
