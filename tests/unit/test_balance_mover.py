"""What a step does where brokers don't do what they are told: whatever is ours stays written down."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from kafka_plugin import reassignment
from kafka_plugin.balance_admin import Reassignment, SettingChange
from kafka_plugin.balance_config import BalanceConfig
from kafka_plugin.balance_record import BalanceRecord, Target, ThrottleRecord
from kafka_plugin.errors import BalanceInterruptedError
from kafka_plugin.reassignment import Mover
from router.move_plan import Move
from telemetry_collector.snapshot import TopicPartition

LEADER, FOLLOWER = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
CONFIG = BalanceConfig(poll_s=0.001, throttle_bytes_per_s=2000)
AT = TopicPartition("t", 0)


class Log:
    def __init__(self, record: BalanceRecord) -> None:
        self.standing: BalanceRecord | None = record

    def read(self) -> BalanceRecord | None:
        return self.standing

    def write(self, record: BalanceRecord) -> BalanceRecord:
        self.standing = record
        return record

    def clear(self) -> None:
        self.standing = None


class Admin:
    """Brokers that keep settings, and make reassignments at once unless they are deaf."""

    def __init__(self) -> None:
        self.by_name: dict[int | str, dict[str, str]] = {}
        self.running: dict[TopicPartition, Reassignment] = {}
        self.placed: dict[TopicPartition, tuple[int, ...]] = {}

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        return self.running

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Told, and not done."""

    def reassign(self, replica_ids: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, str]:
        self.placed |= {at: tuple(ids) for at, ids in replica_ids.items()}
        return {}

    def replicas(self, topics: Collection[str]) -> dict[TopicPartition, tuple[int, ...]]:  # noqa: ARG002
        return self.placed

    def settings(self, of: int | str, names: Sequence[str]) -> dict[str, str]:
        return {name: value for name, value in self.by_name.get(of, {}).items() if name in names}

    def change_settings(self, of: int | str, changes: Sequence[SettingChange]) -> None:
        there = self.by_name.setdefault(of, {})
        for change in changes:
            if change.operation == "DELETE":
                there.pop(change.name)
            else:
                there[change.name] = change.value or ""


def _mover(admin: Any, **left: Any) -> tuple[Mover, Log]:
    record = BalanceRecord.begin(None).model_copy(update=left)
    log: Any = Log(record)
    return Mover(admin, log, record, CONFIG), log


def test_moves_that_kafka_goes_on_with_stay_ours_and_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment, "_CANCEL_TIMEOUT_S", 0.01)
    admin = Admin()
    admin.by_name = {1: {LEADER: "5"}}
    admin.running = {AT: Reassignment(replica_ids=(1, 2), adding_ids=(2,), removing_ids=(1,))}
    target = Target(topic="t", partition=0, replica_ids=(2,))
    mover, log = _mover(admin, targets=(target,), throttle=ThrottleRecord(rates={1: {LEADER: "5"}}))
    with pytest.raises(BalanceInterruptedError, match="still makes 1 of them"):
        mover.take_back()
    assert admin.by_name == {1: {LEADER: "5"}}
    assert log.standing is not None
    assert log.standing.targets == (target,)
    assert log.standing.throttle is not None


def test_a_rate_that_was_left_behind_is_taken_off_beside_a_new_one_of_the_same_broker() -> None:
    admin = Admin()
    # Both were ours on broker 1, which was down then; somebody has taken one of them off since.
    admin.by_name = {1: {LEADER: "1000"}}
    left = ThrottleRecord(rates={1: {LEADER: "1000", FOLLOWER: "1000"}})
    mover, log = _mover(admin, throttle=left)
    move = Move(
        topic_partition=AT, size_bytes=1, replica_ids_before=(1,), leader_id_before=1, replica_ids=(2,)
    )
    with mover:
        mover.carry_out([move], lambda _: None)
    assert not any(admin.by_name.values())
    assert log.standing is None
