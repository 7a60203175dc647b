"""Delivery reports: each is checked and counted, and passed on to whoever wants it.

There is one for each record, so what one costs is most of what a `BalancedProducer` costs
(benchmarks/write/). The idea: records of one turn that have the same callback share one callable; nothing
is made for a single record.

A report without error but without offset is of a record that confluent-kafka 2.16 has lost on a new topic. It
reaches the caller as an error. A refusal keeps its code, and says which permission is missing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from types import MethodType

from confluent_kafka import KafkaError, Message

from evenload.kafka_connection.refusals import missing_permission
from evenload.kafka_plugin.producing.turn import Turn

_log = logging.getLogger(__name__)

# Records of a topic that doesn't exist fail by the hundred thousand.
_SAID_EACH_S = 10.0

DeliveryCallback = Callable[[KafkaError | None, Message], None]


class TopicReports:
    """Takes the reports of one topic's records, in whichever thread polls.

    Args:
        default_callback: Of the producer, for records without one of their own.
        has_offsets: Whether brokers say where they put a record (not with `acks=0`).
        clock: Monotonic seconds.

    Attributes:
        num_lost: How many records were acknowledged without an offset.
    """

    def __init__(
        self,
        default_callback: DeliveryCallback | None,
        *,
        has_offsets: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_lost = 0
        self._clock = clock
        # By topic and code: when it was said last, and how many records since.
        self._said: dict[tuple[str | None, int], tuple[float, int]] = {}
        self._default_callback = default_callback
        self._has_offsets = has_offsets
        self._latest: tuple[DeliveryCallback | None, Turn | None, DeliveryCallback] = (
            None,
            None,
            self.make(None, None),
        )

    def reporter(self, callback: DeliveryCallback | None, turn: Turn | None) -> DeliveryCallback:
        """What takes the report of a record.

        Args:
            callback: The record's own; None: the producer's.
            turn: Whose bytes the record's are; None: it is in no books.
        """
        latest, of_turn, reporter = self._latest
        if of_turn is turn and _is_same(callback, latest):
            return reporter
        reporter = self.make(callback, turn)
        self._latest = (callback, turn, reporter)
        return reporter

    def make(self, callback: DeliveryCallback | None, turn: Turn | None) -> DeliveryCallback:
        """As `reporter`, a new one."""
        callback = callback or self._default_callback
        has_offsets, failed = self._has_offsets, self._failed

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None or (message.offset() is None and has_offsets):
                error = failed(error, message, turn, is_told=callback is not None)
            if turn is not None:
                turn.num_reported = num_reported = turn.num_reported + 1
                if num_reported == turn.num_sent:
                    turn.settle()
            if callback is not None:
                callback(error, message)

        return report

    def _failed(
        self, error: KafkaError | None, message: Message, turn: Turn | None, *, is_told: bool
    ) -> KafkaError:
        if error is None:
            self.num_lost += 1
            reason = (
                f"acknowledged without an offset, so partition {message.partition()} may not have it; "
                "send it again"
            )
            error = KafkaError(KafkaError._FAIL, reason)
        else:
            error = explained(error, message.topic())
        if turn is not None:
            turn.lose(len(message) + len(message.key() or b""))
        if not is_told:
            self._say(message.topic(), error)
        return error

    def _say(self, topic: str | None, error: KafkaError) -> None:
        """Log what nobody else is told, at most each `_SAID_EACH_S` seconds, with how many there were."""
        key, now_s = (topic, error.code()), self._clock()
        said_at_s, num_unsaid = self._said.get(key, (-math.inf, 0))
        if now_s - said_at_s < _SAID_EACH_S:
            self._said[key] = (said_at_s, num_unsaid + 1)
            return
        self._said[key] = (now_s, 0)
        what = "a record was" if not num_unsaid else f"{num_unsaid + 1} more records were"
        _log.error(
            "topic %s: %s not stored: %s (said at most each %.0f s)", topic, what, error.str(), _SAID_EACH_S
        )


def explained(error: KafkaError, topic: str | None = None) -> KafkaError:
    """The same error; of brokers that don't allow this account to write, with what it has to be granted."""
    permission = missing_permission(error.code(), "WRITE")
    if permission is None:
        return error
    where = f" to topic {topic!r}" if topic is not None else ""
    return KafkaError(
        error.code(),
        f"brokers don't allow this account to write{where}: {permission}",
        fatal=error.fatal(),
        retriable=error.retriable(),
        txn_requires_abort=error.txn_requires_abort(),
    )


def _is_same(callback: DeliveryCallback | None, other: DeliveryCallback | None) -> bool:
    """Whether both are one; `self.told` is another object each time it is written down."""
    return callback is other or (type(callback) is MethodType and callback == other)
