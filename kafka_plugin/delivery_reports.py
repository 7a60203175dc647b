"""Delivery reports: each is checked and counted, and passed on to whoever wants it.

There is one for each record, so what one costs is most of what a `BalancedProducer` costs
(benchmarks/write.py). The idea: the records of a topic that have the same callback share one callable;
nothing is made for a single record.

A report without error but without offset is of a record that confluent-kafka 2.16 has lost on a new topic. It
reaches the caller as an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import MethodType
from typing import Any

from confluent_kafka import KafkaError, Message

from kafka_plugin.routing import TopicRouting

_log = logging.getLogger(__name__)

DeliveryCallback = Callable[[KafkaError | None, Message], None]


class TopicReports:
    """Takes the reports of one topic's records, in whichever thread polls.

    Args:
        routing: Whose books are kept.
        default_callback: Of the producer, for records without one of their own.
        has_offsets: Whether brokers say where they put a record (not with `acks=0`).

    Attributes:
        counted: Takes reports of records that the router chose a partition for, and that have no callback.
        num_lost: How many were acknowledged without an offset.
    """

    def __init__(
        self, routing: TopicRouting, default_callback: DeliveryCallback | None, *, has_offsets: bool
    ) -> None:
        self.routing = routing
        self.num_lost = 0
        self._has_offsets = has_offsets
        self.counted = self._make(default_callback, is_counted=True)
        self._uncounted = self._make(default_callback, is_counted=False)
        self._latest: tuple[DeliveryCallback | None, bool, DeliveryCallback] = (None, True, self.counted)

    def reporter(self, callback: DeliveryCallback | None, *, is_counted: bool) -> DeliveryCallback:
        """What takes the report of a record.

        Args:
            callback: The record's own; None: the producer's.
            is_counted: Whether the record's bytes are in the books of what was sent.
        """
        if callback is None:
            return self.counted if is_counted else self._uncounted
        latest, was_counted, reporter = self._latest
        if was_counted == is_counted and _is_same(callback, latest):
            return reporter
        reporter = self._make(callback, is_counted=is_counted)
        self._latest = (callback, is_counted, reporter)
        return reporter

    def _make(self, callback: DeliveryCallback | None, *, is_counted: bool) -> DeliveryCallback:
        has_offsets = self._has_offsets
        add_report: Callable[[Any, int], None] = self.routing.own_bytes.add_report

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None or (message.offset() is None and has_offsets):
                error = self._failed(error, message, is_counted=is_counted, is_told=callback is not None)
            elif is_counted:
                key = message.key()
                add_report(message.partition(), len(message) if key is None else len(message) + len(key))
            if callback is not None:
                callback(error, message)

        return report

    def _failed(
        self, error: KafkaError | None, message: Message, *, is_counted: bool, is_told: bool
    ) -> KafkaError:
        partition = message.partition()
        if error is None:
            self.num_lost += 1
            reason = (
                f"acknowledged without an offset, so partition {partition} may not have it; send it again"
            )
            error = KafkaError(KafkaError._FAIL, reason)
        if is_counted and partition is not None:
            self.routing.own_bytes.add_lost(partition, len(message) + len(message.key() or b""))
        if not is_told:
            _log.error("a record for topic %s was not stored: %s", message.topic(), error.str())
        return error


def _is_same(callback: DeliveryCallback, other: DeliveryCallback | None) -> bool:
    """Whether both are one; `self.told` is another object each time it is written down."""
    return callback is other or (type(callback) is MethodType and callback == other)
