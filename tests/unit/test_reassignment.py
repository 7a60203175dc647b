"""Moves that Kafka doesn't take back in time stay ours, and throttled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_plugin import reassignment
from kafka_plugin.balance_config import BalanceConfig
from kafka_plugin.balance_record import BalanceRecord, Target, ThrottleRecord
from kafka_plugin.errors import BalanceInterruptedError
from kafka_plugin.reassignment import Mover
from telemetry_collector.snapshot import TopicPartition

AT = TopicPartition("t", 0)


class StubbornCluster:
    """A cluster that hears of a cancellation and goes on; no real one can be made to."""

    def __init__(self) -> None:
        self.cancelled: list[TopicPartition] = []

    def reassignments(self) -> dict[TopicPartition, Any]:
        return {AT: SimpleNamespace(adding_ids=(2,), target_ids=frozenset({2}))}

    def cancel(self, partitions: list[TopicPartition]) -> None:
        self.cancelled += partitions


class Log:
    """Where a balance writes down what is its own."""

    def __init__(self, record: BalanceRecord) -> None:
        self.record: BalanceRecord | None = record

    def read(self) -> BalanceRecord | None:
        return self.record

    def write(self, record: BalanceRecord) -> BalanceRecord:
        self.record = record
        return record

    def clear(self) -> None:
        self.record = None


def test_what_is_not_taken_back_in_time_stays_noted_and_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment, "_CANCEL_TIMEOUT_S", 0.0)
    throttle = ThrottleRecord(replicas={"t": {"leader.replication.throttled.replicas": ["0:1"]}})
    begun = BalanceRecord.begin(None)
    target = Target(topic="t", partition=0, replica_ids=(2,))
    record = begun.model_copy(update={"targets": (target,), "throttle": throttle})
    cluster, log = StubbornCluster(), Log(record)
    with (
        pytest.raises(BalanceInterruptedError, match="1 moves are still going on after 0 s, throttled"),
        Mover(cluster, log, record, BalanceConfig()),  # type: ignore[arg-type]
    ):
        raise KeyboardInterrupt
    assert cluster.cancelled == [AT]
    assert log.record is not None
    assert log.record.targets == (target,)
    assert log.record.throttle == throttle
