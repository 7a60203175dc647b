"""Whom a partition is asked of: what its leader said, for as long as that is believed."""

from __future__ import annotations

import logging

import pytest

from evenload.kafka_connection.topic_leaders import BrokerAddress
from evenload.ray_trainer.fetching.read_replicas import ReadReplicas, ReadSource

BROKERS = {broker_id: BrokerAddress(broker_id, "there", 9000 + broker_id) for broker_id in (1, 2, 3)}


class Leaders:
    """Broker 1 leads partitions 0 and 1, nobody leads partition 2."""

    def __init__(self) -> None:
        self.by_partition = {0: BROKERS[1], 1: BROKERS[1]}

    def leader_of(self, partition: int) -> BrokerAddress | None:
        return self.by_partition.get(partition)

    def epoch_of(self, partition: int) -> int:
        return 10 + partition

    def broker(self, broker_id: int) -> BrokerAddress | None:
        return BROKERS.get(broker_id)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_replicas() -> tuple[ReadReplicas, Leaders, Clock]:
    leaders, clock = Leaders(), Clock()
    return ReadReplicas(leaders, topic="t", clock=clock), leaders, clock  # type: ignore[arg-type]


def leader(partition: int = 0, *, takes_nearer: bool) -> ReadSource:
    return ReadSource(BROKERS[1], takes_nearer=takes_nearer, leader_epoch=10 + partition)


def follower(broker_id: int) -> ReadSource:
    return ReadSource(BROKERS[broker_id], is_follower=True)


def test_a_partition_without_a_leader_is_asked_of_nobody_even_where_a_follower_was_named() -> None:
    replicas, leaders, _ = make_replicas()
    assert replicas.source_of(2) is None
    replicas.note_nearer(0, 2)
    del leaders.by_partition[0]
    assert replicas.source_of(0) is None


def test_a_named_follower_is_asked_for_five_minutes_then_its_leader_anew() -> None:
    replicas, _, clock = make_replicas()
    assert replicas.source_of(0) == leader(takes_nearer=True)
    replicas.note_nearer(0, 3)
    clock.now_s += 299
    assert (replicas.source_of(0), replicas.source_of(1)) == (follower(3), leader(1, takes_nearer=True))
    clock.now_s += 1
    assert replicas.source_of(0) == leader(takes_nearer=True)


def test_a_partition_that_a_follower_does_not_give_is_asked_of_its_leader_for_a_minute() -> None:
    replicas, _, clock = make_replicas()
    for partition in (0, 1):
        replicas.note_nearer(partition, 3)
    replicas.leave(0, 3, "it lags")
    clock.now_s += 59
    replicas.note_nearer(0, 3)  # the answer to an older question
    assert (replicas.source_of(0), replicas.source_of(1)) == (leader(takes_nearer=False), follower(3))
    clock.now_s += 1
    assert replicas.source_of(0) == leader(takes_nearer=True)


def test_a_broker_that_can_not_be_talked_to_is_left_with_all_partitions_and_longer_each_time() -> None:
    replicas, _, clock = make_replicas()

    def name_again() -> None:
        for partition in (0, 1):
            replicas.note_nearer(partition, 3)

    for term_s in (60, 120, 240, 480, 900, 900):
        name_again()
        assert replicas.source_of(0) == follower(3)
        for _ in range(2):  # two links' worth of ranges come back
            replicas.leave_broker(3, "it hangs")
        clock.now_s += term_s - 1
        name_again()
        assert replicas.source_of(0) == leader(takes_nearer=False)
        assert replicas.source_of(1) == leader(1, takes_nearer=False)
        clock.now_s += 1
    clock.now_s += 2000  # long after, it is as new
    replicas.leave_broker(3, "it hangs")
    clock.now_s += 60
    name_again()
    assert replicas.source_of(0) == follower(3)


def test_that_a_follower_is_left_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    replicas, _, _ = make_replicas()
    with caplog.at_level(logging.WARNING):
        for partition in (0, 1):
            replicas.note_nearer(partition, 3)
            replicas.leave(partition, 3, "it lags")
        replicas.note_nearer(1, 2)
        replicas.leave_broker(2, "it hangs")
    assert caplog.messages == [
        "topic 't': broker 3 was nearer, but partition 0 is read from leaders for 60 s: it lags",
        "topic 't': broker 2 was nearer, but what it was read for is read from leaders for 60 s: it hangs",
    ]


def test_what_a_follower_failed_at_before_another_was_named_says_nothing_of_that_one() -> None:
    replicas, _, _ = make_replicas()
    replicas.note_nearer(0, 3)
    replicas.leave(0, 2, "it hung")
    assert replicas.source_of(0) == follower(3)


def test_where_a_named_broker_listens_is_asked_for_and_the_leader_read_if_nobody_knows() -> None:
    replicas, _, clock = make_replicas()
    assert not replicas.note_nearer(0, 9)
    assert replicas.source_of(0) == leader(takes_nearer=False)
    clock.now_s += 60
    assert replicas.source_of(0) == leader(takes_nearer=True)
    assert replicas.note_nearer(0, 2)


def test_a_follower_that_leads_by_now_is_asked_as_the_leader() -> None:
    replicas, leaders, _ = make_replicas()
    replicas.note_nearer(1, 2)
    leaders.by_partition[1] = BROKERS[2]
    assert replicas.source_of(1) == ReadSource(BROKERS[2], leader_epoch=11)
