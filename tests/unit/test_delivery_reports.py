"""Reports are checked, counted and passed on; nothing is made for a single record."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kafka_plugin.delivery_reports import TopicReports
from kafka_plugin.routing import OwnBytes, TopicRouting


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


def _tell(reporter: Any, message: Told, error: KafkaError | None = None) -> None:
    reporter(error, message)


def test_a_report_without_error_and_offset_becomes_an_error(routing: TopicRouting) -> None:
    caller = Caller()
    reports = TopicReports(routing, None, has_offsets=True)
    routing.own_bytes.add_sent(7, 6)
    reporter = reports.reporter(caller.told, is_counted=True)
    _tell(reporter, Told(12))
    _tell(reporter, Told(None))
    assert (reports.num_lost, routing.own_bytes.total_sent) == (1, 3)
    stored, lost = caller.errors
    assert stored is None
    assert lost is not None
    assert "acknowledged without an offset, so partition 7 may not have it" in lost.str()


def test_an_error_that_nobody_wants_is_logged(routing: TopicRouting, caplog: Any) -> None:
    reports = TopicReports(routing, None, has_offsets=True)
    _tell(reports.counted, Told(None))
    _tell(reports.reporter(None, is_counted=False), Told(None), KafkaError(KafkaError._MSG_TIMED_OUT))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "a record for topic fresh was not stored"
    ] * 2
    assert reports.num_lost == 1


def test_without_acknowledgements_a_missing_offset_is_no_loss(routing: TopicRouting) -> None:
    reports = TopicReports(routing, None, has_offsets=False)
    _tell(reports.counted, Told(None))
    assert reports.num_lost == 0


def test_keys_count_and_what_the_router_did_not_choose_does_not(routing: TopicRouting) -> None:
    seconds = count(1.0)
    routing.own_bytes = OwnBytes(clock=lambda: next(seconds))
    reports = TopicReports(routing, None, has_offsets=True)
    routing.own_bytes.add_sent(7, 1 << 20)
    for _ in range(10_000):
        _tell(reports.counted, Told(1, b"four"))
        _tell(reports.reporter(None, is_counted=False), Told(2))
    known = (1 << 20) - routing.own_bytes.since(1e9)[7]
    assert 7 * 10_000 - (16 << 10) < known <= 7 * 10_000  # the history hears of 16 KiB at a time


def test_the_default_callback_hears_of_records_without_one_of_their_own(routing: TopicRouting) -> None:
    default, own = Caller(), Caller()
    reports = TopicReports(routing, default.told, has_offsets=True)
    for is_counted in (True, False):
        _tell(reports.reporter(None, is_counted=is_counted), Told(1))
        _tell(reports.reporter(own.told, is_counted=is_counted), Told(1))
    assert (default.errors, own.errors) == ([None, None], [None, None])


def test_the_same_callback_shares_a_reporter_and_another_one_has_another(routing: TopicRouting) -> None:
    reports = TopicReports(routing, None, has_offsets=True)
    one, other = Caller(), Caller()
    reporter = reports.reporter(one.told, is_counted=True)
    assert reports.reporter(one.told, is_counted=True) is reporter
    _tell(reports.reporter(other.told, is_counted=True), Told(1))
    _tell(reports.reporter(one.told, is_counted=False), Told(1))
    assert (len(one.errors), len(other.errors)) == (1, 1)


def test_callbacks_that_are_merely_equal_are_not_the_same(routing: TopicRouting) -> None:
    class Equal(Caller):
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, error: KafkaError | None, message: Any) -> None:
            self.told(error, message)

    reports = TopicReports(routing, None, has_offsets=True)
    one, other = Equal(), Equal()
    for caller in (one, other):
        _tell(reports.reporter(caller, is_counted=True), Told(1))
    assert (len(one.errors), len(other.errors)) == (1, 1)
