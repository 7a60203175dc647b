"""Carry out one step of a move plan: throttled, watched, and taken back when it is given up.

The order is what makes it safe against kill -9: the record says what will be ours, then throttles are put on,
then Kafka is told. Afterwards throttles are taken off, then the record says that nothing is ours. Whoever
comes next after a death finds in the record all that there may be to undo, and at most one step's worth.

Who has been fenced by another balance can neither write nor change anything any more (log.py): the
other has found in the record what is to be undone, and does it.

A step that doesn't get on (a broker is down, paused or slow) is waited for, and that is said; after
`stall_timeout_s` it is taken back. Given up in any way (Ctrl-C too), it is taken back: moves that are
complete stay, copies on their way are dropped, and these partitions are as they were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from evenload.dataset_catalog.errors import CatalogError
from evenload.kafka_connection import KafkaConnectionError
from evenload.kafka_plugin.balancing.admin import BalanceAdmin
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.log import BalanceLog
from evenload.kafka_plugin.balancing.record import BalanceRecord, Target
from evenload.kafka_plugin.balancing.replication_throttle import lift_throttle, plan_throttle, set_throttle
from evenload.kafka_plugin.errors import (
    BalanceCancelledError,
    BalanceInterruptedError,
    BalanceRefusedError,
    ReassignmentRefusedError,
)
from evenload.router.moves.plan import Move
from evenload.telemetry_collector.snapshot import TopicPartition

__all__ = ["Mover", "StepProgress", "ours_running"]

_log = logging.getLogger(__name__)
_CANCEL_TIMEOUT_S = 30.0
_HEARTBEAT_S = 10.0
_METADATA_DELAY_S = 10.0  # by which a broker may be behind the controller


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a step is.

    Attributes:
        moved_bytes: of all copies to come, as far as brokers say.
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
    """Carries out steps in the name of one balance; a context manager, for one thread.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (self._record.targets or self._record.throttle is not None):
            self.take_back()
        if self._record.throttle is None:
            self._log.clear()

    def carry_out(self, moves: Sequence[Move], progress: Callable[[StepProgress], None]) -> int:
        """Makes some moves at the same time; returns the bytes moved, when all copies are complete.

        Raises:
            ReassignmentRefusedError: Kafka refuses one.
            BalanceInterruptedError: Brokers don't answer, or it made no progress.
            BalanceCancelledError: Somebody else took moves back, or over.
            BalanceRefusedError: A permission is missing.
        """
        throttle = plan_throttle(self._admin, moves, self._config.throttle_bytes_per_s)
        left_behind = self._record.throttle.rates if self._record.throttle is not None else {}
        rates = {
            broker_id: {**left_behind.get(broker_id, {}), **throttle.rates.get(broker_id, {})}
            for broker_id in {*left_behind, *throttle.rates}
        }
        noted = throttle.model_copy(update={"rates": rates})
        self._note(targets=tuple(map(Target.of, moves)), throttle=noted)
        set_throttle(self._admin, throttle, timeout_s=self._config.timeout_s)
        refused = self._admin.reassign({move.topic_partition: move.replica_ids for move in moves})
        for move in moves:
            if reason := refused.get(move.topic_partition):
                topic, partition = move.topic_partition
                raise ReassignmentRefusedError(topic, partition, list(move.replica_ids), reason)
        sizes = {
            (broker_id, move.topic_partition): move.size_bytes
            for move in moves
            for broker_id in move.added_ids
        }
        self._wait(sizes, progress)
        self._check_arrived()
        self._lift()
        return sum(sizes.values())

    def finish_left(self, progress: Callable[[StepProgress], None]) -> int:
        """Waits for reassignments that a dead balance has ordered, under its throttle, then takes that off.

        Returns:
            How many there were.
        """
        running = self._ours_running()
        self._wait({(b, at): 0 for at, adding in running.items() for b in adding}, progress)
        self._lift()
        return len(running)

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

    def _wait(
        self,
        sizes: Mapping[tuple[int, TopicPartition], int],
        progress: Callable[[StepProgress], None],
    ) -> None:
        """Returns when Kafka is at none of our moves any more."""
        watch = _Watch(self._admin, sizes, self._config)
        heard_s = time.monotonic()
        while True:
            problem = None
            try:
                running = self._ours_running()
            except BalanceInterruptedError as error:
                problem = error.reason
            else:
                if not running:
                    break
                problem = watch.look(running)
            progress(StepProgress(watch.moved_bytes, problem or watch.waiting_for()))
            if watch.quiet_s() > self._config.stall_timeout_s:
                reason = f"nothing has moved for {watch.quiet_s():.0f} s ({problem or 'brokers say no more'})"
                raise BalanceInterruptedError("copying", reason)
            if time.monotonic() - heard_s > _HEARTBEAT_S:
                self._give_sign_of_life()
                heard_s = time.monotonic()
            time.sleep(self._config.poll_s)
        progress(StepProgress(sum(sizes.values())))

    def _give_sign_of_life(self) -> None:
        try:
            self._note()
        except (CatalogError, KafkaConnectionError, BalanceInterruptedError) as error:
            # The record may lie on the very broker that is waited for; moving doesn't depend on it.
            _log.warning("no sign of life could be written: %s", error)

    def _check_arrived(self) -> None:
        """Kafka is at nothing of ours any more also when somebody has cancelled it."""
        deadline_s = time.monotonic() + _METADATA_DELAY_S
        while elsewhere := self._num_elsewhere():
            if time.monotonic() > deadline_s:
                raise BalanceCancelledError(elsewhere)
            time.sleep(self._config.poll_s)

    def _num_elsewhere(self) -> int:
        there = self._admin.replicas({target.topic for target in self._record.targets})
        return sum(
            set(there[target.topic_partition]) != set(target.replica_ids)
            for target in self._record.targets
            if target.topic_partition in there
        )


class _Watch:
    """How many bytes have come, and since when none have."""

    def __init__(
        self, admin: BalanceAdmin, sizes: Mapping[tuple[int, TopicPartition], int], config: BalanceConfig
    ) -> None:
        self._admin = admin
        self._sizes = sizes
        self._config = config
        self._copied = dict.fromkeys(sizes, 0)
        self._num_running = len(sizes)
        self._moved_s = time.monotonic()

    @property
    def moved_bytes(self) -> int:
        """So far, at most what there was to move at the beginning."""
        return sum(min(done, self._sizes[at]) for at, done in self._copied.items())

    def quiet_s(self) -> float:
        """Seconds since anything came."""
        return time.monotonic() - self._moved_s

    def waiting_for(self) -> str | None:
        """A sentence once it has been quiet for a while."""
        if self.quiet_s() < self._config.quiet_s:
            return None
        return f"nothing has moved for {self.quiet_s():.0f} s; still waiting"

    def look(self, running: Mapping[TopicPartition, tuple[int, ...]]) -> str | None:
        """Asks the brokers that get copies; returns a sentence about one that doesn't answer."""
        problem = None
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
