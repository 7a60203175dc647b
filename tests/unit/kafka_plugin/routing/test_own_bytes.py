"""A producer's own bytes: all it sent, less what a snapshot can know."""

from __future__ import annotations

from evenload.kafka_plugin.routing.own_bytes import OwnBytes


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_acknowledged_before_the_snapshot_is_not_counted_again() -> None:
    clock = Clock()
    own = OwnBytes(clock=clock)
    own.add_sent(0, 100)
    own.add_sent(1, 50)
    own.add_acknowledged(0, 100)  # at 1000
    clock.now_s = 1010.0
    own.add_sent(0, 30)
    own.add_acknowledged(0, 30)  # at 1010
    assert own.since(999.0) == {0: 130, 1: 50}
    assert own.since(1005.0) == {0: 30, 1: 50}
    assert own.since(1010.0) == {1: 50}
    assert own.acknowledged_before(1005.0) == 100
    assert own.total_sent == 180


def test_what_a_client_still_holds_is_not_taken_for_stored() -> None:
    clock = Clock()
    own = OwnBytes(30.0, clock)
    own.add_sent(0, 100)
    own.add_acknowledged(0, 100)  # by a client that says nothing of when it sends
    assert own.since(1019.0) == {0: 100}
    assert own.since(1019.0, stored={0: 40.0}) == {0: 60}
    assert own.since(1031.0) == {}


def test_what_was_sent_by_a_time_is_known_about() -> None:
    clock = Clock()
    own = OwnBytes(clock=clock)
    assert own.sent_before(1000.0) == 0
    for _ in range(100):
        own.add_sent(0, 10)
        clock.now_s += 0.05
    assert own.sent_before(1005.0) == 1000
    assert own.sent_before(1002.5) in range(480, 521)
    assert own.sent_before(999.0) == 0


def test_between_two_notes_a_little_more_is_counted_never_less() -> None:
    clock = Clock()
    own = OwnBytes(clock=clock)
    for _ in range(10):
        own.add_sent(0, 10)
        own.add_acknowledged(0, 10)
        clock.now_s += 0.05
    assert own.since(clock.now_s - 0.051)[0] in range(1, 51)
    assert own.since(clock.now_s) == {}  # the last of them was before


def test_lost_records_are_not_counted() -> None:
    own = OwnBytes(clock=Clock())
    own.add_sent(2, 10)
    own.add_lost(2, 10)
    assert own.since(0.0) == {}


def test_the_past_is_forgotten_after_a_while() -> None:
    clock = Clock()
    own = OwnBytes(clock=clock)
    for _ in range(1000):
        own.add_sent(0, 1)
        own.add_acknowledged(0, 1)
        clock.now_s += 1.0
    assert len(own._history) <= 125


def test_what_is_remembered_is_bounded_however_many_partitions_there_are() -> None:
    clock = Clock()
    own = OwnBytes(clock=clock)
    for _ in range(1200):
        clock.now_s += 0.1
        for partition in range(0, 3000, 10):
            own.add_acknowledged(partition, 1)
    remembered = sum(len(entry.bytes_by_partition) for entry in own._history)
    assert 50_000 < remembered <= 110_000
    assert own.acknowledged_before(clock.now_s) > 0
