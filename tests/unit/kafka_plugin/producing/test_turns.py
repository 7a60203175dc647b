"""A producer's books hold in bytes, whatever ends a turn, whoever sends and whoever hears of it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from evenload.kafka_plugin.producing.delivery_reports import TopicReports
from evenload.kafka_plugin.producing.topic_turns import TopicTurns, whole_batches
from evenload.kafka_plugin.producing.turn import Turn
from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.route import Route

TURN_S = 10.0
BATCH = 1000
SHARES = {0: 0.5, 1: 0.3, 2: 0.2}


class HeldRouting(TopicRouting):
    """Chooses a partition only while it is let go on."""

    def __init__(self) -> None:
        super().__init__("t", 3, router=None, cache=None, batch_bytes=BATCH)
        self._route = Route(SHARES, batch_bytes=BATCH)
        self.is_held = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def partition_for(self, size_bytes: int) -> int:
        self.is_held.set()
        assert self.go_on.wait(30)
        return super().partition_for(size_bytes)


@pytest.fixture
def routing() -> HeldRouting:
    return HeldRouting()


def _turns(routing: TopicRouting) -> TopicTurns:
    reports = TopicReports(None, has_offsets=True)
    return TopicTurns(routing, reports, turn_s=TURN_S, full_bytes=10**6, recount=lambda routing: None)  # noqa: ARG005


def _send(turn: Turn, size_bytes: int) -> None:
    turn.num_sent += 1
    turn.sent_bytes += size_bytes


def test_shares_hold_in_bytes_though_turns_end_early_or_late(routing: HeldRouting) -> None:
    turns, chance = _turns(routing), random.Random(1)
    stored = dict.fromkeys(SHARES, 0)
    for _ in range(2000):
        turn, _report = turns.current
        size_bytes = chance.choice([3, 500, 2500])
        _send(turn, size_bytes)
        stored[turn.partition] += size_bytes
        turns.next(turn)
    turn, _report = turns.current
    turn.end()
    total = sum(stored.values())
    assert routing.own_bytes.total_sent == total
    for partition, share in SHARES.items():
        assert abs(stored[partition] - share * total) < 4 * 2500


def test_what_the_client_refuses_is_in_no_books(routing: HeldRouting) -> None:
    turns = _turns(routing)
    own = routing.own_bytes
    turn, report = turns.next(turns.current[0])
    _send(turn, 400)
    _send(turn, 100)
    turn.take_back(1, 100)
    report(None, _Stored())  # type: ignore[arg-type]
    turns.next(turn)
    assert own.acknowledged_before(1e12) == 400
    assert own.total_sent == 400 + BATCH  # what the next turn has been lent

    batch = turns.of_batch(3, 900)
    batch.refuse(2, 500)
    assert own.total_sent == 400 + BATCH + 400


def test_while_a_turn_begins_others_go_on_with_the_one_before(routing: HeldRouting) -> None:
    turns = _turns(routing)
    ended, _report = turns.current
    routing.is_held.clear()
    routing.go_on.clear()
    thread = threading.Thread(target=turns.next, args=(ended,))
    thread.start()
    assert routing.is_held.wait(30)
    assert turns.next(ended)[0] is ended
    routing.go_on.set()
    thread.join(30)
    assert turns.current[0] is not ended
    assert turns.next(ended) is turns.current


def test_a_topic_of_which_nothing_was_sent_has_no_bytes_in_the_books(routing: HeldRouting) -> None:
    turn, _report = _turns(routing).current
    assert turn.sent_bytes >= turn.size_bytes  # so the first record begins another
    assert routing.own_bytes.total_sent == 0


def test_a_turn_ends_by_time_though_little_was_sent(routing: HeldRouting) -> None:
    turns = _turns(routing)
    before_s = time.monotonic()
    turn, _report = turns.next(turns.current[0])
    assert before_s + TURN_S <= turn.ends_s <= time.monotonic() + TURN_S


@pytest.mark.usefixtures("often_switched")
def test_threads_that_send_and_hear_at_once_lose_no_byte(routing: HeldRouting) -> None:
    turn = Turn(routing, 0, 10**9)
    report = TopicReports(None, has_offsets=True).make(None, turn)
    message: Any = _Stored()

    def send_and_hear() -> None:
        for _ in range(20_000):
            _send(turn, 3)
            report(None, message)

    threads = [threading.Thread(target=send_and_hear) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert turn.num_sent == turn.num_reported
    assert turn.sent_bytes == 4 * 20_000 * 3
    turn.settle()
    assert routing.own_bytes._acknowledged == {0: 4 * 20_000 * 3}


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads are switched as often as can be."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


class _Stored:
    def offset(self) -> int:
        return 1


def test_small_records_take_more_than_their_payload(routing: HeldRouting) -> None:
    assert routing.overhead_ratio == 1.0
    turns = _turns(routing)
    turn, _report = turns.next(turns.current[0])
    turn.num_sent, turn.sent_bytes = 1, 100
    turns.next(turn)
    assert routing.overhead_ratio == pytest.approx(1.1)
    turns.of_batch(9, 900)
    assert routing.overhead_ratio == pytest.approx(1.1)
    turns.of_batch(1, 10**6)
    assert routing.overhead_ratio == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("usual_bytes", "turn_bytes", "expected"),
    [(1.9e6, 4e6, 0), (2e6, 4e6, 2e6), (2.6e6, 4e6, 3e6), (9e6, 4.2e6, 4e6), (9e6, 0.9e6, 0), (0.0, 4e6, 0)],
)
def test_a_turn_ends_with_a_full_batch_where_batches_get_full_in_time(
    usual_bytes: float, turn_bytes: float, expected: float
) -> None:
    assert whole_batches(usual_bytes, 10**6, int(turn_bytes)) == expected
