"""Reports are checked, counted and passed on; nothing is made for a single record."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from evenload.kafka_plugin.producing.delivery_reports import TopicReports
from evenload.kafka_plugin.producing.turn import Turn
from evenload.kafka_plugin.routing.topic_routing import TopicRouting


class Told:
    """What confluent-kafka hands over for a record of three bytes."""

    def __init__(self, offset: int | None, key: bytes | None = None) -> None:
        self._offset = offset
        self._key = key

    def topic(self) -> str:
        return "fresh"

    def partition(self) -> int:
        return 7

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def __len__(self) -> int:
        return 3


class Caller:
    def __init__(self) -> None:
        self.errors: list[KafkaError | None] = []

    def told(self, error: KafkaError | None, message: Any) -> None:  # noqa: ARG002
        self.errors.append(error)


@pytest.fixture
def routing() -> TopicRouting:
    return TopicRouting("fresh", 8, router=None, cache=None, batch_bytes=100)


def _turn(routing: TopicRouting, num_records: int, size_bytes: int) -> Turn:
    routing.own_bytes.add_sent(7, size_bytes)
    turn = Turn(routing, 7, size_bytes)
    turn.num_sent, turn.sent_bytes = num_records, size_bytes
    return turn


def _tell(reporter: Any, message: Told, error: KafkaError | None = None) -> None:
    reporter(error, message)


def test_a_report_without_error_and_offset_becomes_an_error(routing: TopicRouting) -> None:
    caller = Caller()
    reports = TopicReports(None, has_offsets=True)
    reporter = reports.reporter(caller.told, _turn(routing, 2, 6))
    _tell(reporter, Told(12))
    _tell(reporter, Told(None))
    assert (reports.num_lost, routing.own_bytes.total_sent) == (1, 3)
    assert routing.own_bytes.acknowledged_before(1e12) == 3
    stored, lost = caller.errors
    assert stored is None
    assert lost is not None
    assert "acknowledged without an offset, so partition 7 may not have it" in lost.str()


def test_a_refusal_keeps_its_code_and_names_the_permission(routing: TopicRouting) -> None:
    caller = Caller()
    reporter = TopicReports(None, has_offsets=True).reporter(caller.told, _turn(routing, 1, 3))
    _tell(reporter, Told(None), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    (error,) = caller.errors
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert error.str() == (
        "brokers don't allow this account to write to topic 'fresh': it needs WRITE on the topic"
    )


def test_an_error_that_nobody_wants_is_logged(routing: TopicRouting, caplog: Any) -> None:
    reports = TopicReports(None, has_offsets=True)
    turn = _turn(routing, 1, 3)
    _tell(reports.reporter(None, turn), Told(None))
    _tell(reports.reporter(None, None), Told(None), KafkaError(KafkaError._MSG_TIMED_OUT))
    assert [record.message.partition(" not stored")[0] for record in caplog.records] == [
        "topic fresh: a record was"
    ] * 2
    assert reports.num_lost == 1
    assert routing.own_bytes.total_sent == 0


def test_what_fails_by_the_thousand_is_logged_now_and_then(caplog: Any) -> None:
    now_s = 100.0
    reporter = TopicReports(None, has_offsets=True, clock=lambda: now_s).reporter(None, None)
    for _ in range(1000):
        _tell(reporter, Told(None), KafkaError(KafkaError._MSG_TIMED_OUT))
        now_s += 0.015
    assert [record.message.partition(" not stored")[0] for record in caplog.records] == [
        "topic fresh: a record was",
        "topic fresh: 667 more records were",
    ]


def test_without_acknowledgements_a_missing_offset_is_no_loss() -> None:
    reports = TopicReports(None, has_offsets=False)
    _tell(reports.reporter(None, None), Told(None))
    assert reports.num_lost == 0


def test_what_a_turn_sent_is_acknowledged_when_all_its_reports_are_in(routing: TopicRouting) -> None:
    reports = TopicReports(None, has_offsets=True)
    reporter = reports.reporter(None, _turn(routing, 3, 20))
    _tell(reporter, Told(1))
    _tell(reporter, Told(2))
    assert routing.own_bytes.acknowledged_before(1e12) == 0
    _tell(reporter, Told(None, b"four"))
    assert routing.own_bytes.acknowledged_before(1e12) == 13


def test_the_default_callback_hears_of_records_without_one_of_their_own(routing: TopicRouting) -> None:
    default, own = Caller(), Caller()
    reports = TopicReports(default.told, has_offsets=True)
    for turn in (_turn(routing, 2, 6), None):
        _tell(reports.reporter(None, turn), Told(1))
        _tell(reports.reporter(own.told, turn), Told(1))
    assert (default.errors, own.errors) == ([None, None], [None, None])


def test_the_same_callback_shares_a_reporter_and_another_one_has_another(routing: TopicRouting) -> None:
    reports = TopicReports(None, has_offsets=True)
    one, other = Caller(), Caller()
    turn, next_turn = _turn(routing, 2, 6), _turn(routing, 1, 3)
    reporter = reports.reporter(one.told, turn)
    assert reports.reporter(one.told, turn) is reporter
    assert reports.reporter(one.told, next_turn) is not reporter
    _tell(reports.reporter(other.told, turn), Told(1))
    _tell(reports.reporter(one.told, None), Told(1))
    assert (len(one.errors), len(other.errors)) == (1, 1)


def test_callbacks_that_are_merely_equal_are_not_the_same() -> None:
    class Equal(Caller):
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, error: KafkaError | None, message: Any) -> None:
            self.told(error, message)

    reports = TopicReports(None, has_offsets=True)
    one, other = Equal(), Equal()
    for caller in (one, other):
        _tell(reports.reporter(caller, None), Told(1))
    assert (len(one.errors), len(other.errors)) == (1, 1)
