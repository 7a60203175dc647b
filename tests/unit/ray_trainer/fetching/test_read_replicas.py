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

    def broker(self, broker_id: int) -> BrokerAddress | None:
        return BROKERS.get(broker_id)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def make_replicas(rack: str = "a") -> tuple[ReadReplicas, Leaders, Clock]:
    leaders, clock = Leaders(), Clock()
    return ReadReplicas(leaders, topic="t", rack=rack, clock=clock), leaders, clock  # type: ignore[arg-type]


def leader(*, takes_nearer: bool) -> ReadSource:
    return ReadSource(BROKERS[1], is_follower=False, takes_nearer=takes_nearer)


def follower(broker_id: int) -> ReadSource:
    return ReadSource(BROKERS[broker_id], is_follower=True, takes_nearer=False)


def test_who_says_no_rack_asks_leaders_and_names_no_other() -> None:
    replicas, _, _ = make_replicas(rack="")
    assert replicas.source_of(0) == leader(takes_nearer=False)


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
    assert (replicas.source_of(0), replicas.source_of(1)) == (follower(3), leader(takes_nearer=True))
    clock.now_s += 1
    assert replicas.source_of(0) == leader(takes_nearer=True)


def test_a_follower_that_fails_is_left_for_a_minute_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas, _, clock = make_replicas()
    with caplog.at_level(logging.WARNING):
        for partition in (0, 1):
            replicas.note_nearer(partition, 3)
        for partition in (0, 0, 1):
            replicas.leave(partition, 3, "it hangs")
    (said,) = caplog.messages
    assert said == (
        "topic 't' is read from leaders for 60 s where broker 3, in rack 'a', was read from: it hangs"
    )
    clock.now_s += 59
    assert replicas.source_of(0) == leader(takes_nearer=False)
    clock.now_s += 1
    assert replicas.source_of(0) == leader(takes_nearer=True)


def test_what_a_follower_failed_at_before_another_was_named_says_nothing_of_that_one() -> None:
    replicas, _, _ = make_replicas()
    replicas.note_nearer(0, 3)
    replicas.leave(0, 2, "it hung")
    assert replicas.source_of(0) == follower(3)


def test_a_broker_that_nobody_knows_or_that_leads_by_now_is_not_taken_for_a_follower() -> None:
    replicas, leaders, _ = make_replicas()
    replicas.note_nearer(0, 9)
    assert replicas.source_of(0) == leader(takes_nearer=False)
    replicas.note_nearer(1, 2)
    leaders.by_partition[1] = BROKERS[2]
    assert replicas.source_of(1) == ReadSource(BROKERS[2], is_follower=False, takes_nearer=False)
