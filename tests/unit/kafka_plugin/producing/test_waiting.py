"""Records of topics that aren't open wait in order, and each is handed on once or told to have failed."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from evenload.kafka_plugin.producing import waiting
from evenload.kafka_plugin.producing.delivery_reports import TopicReports
from evenload.kafka_plugin.producing.settings import QueueLimits
from evenload.kafka_plugin.producing.waiting import UnopenedTopics, WaitingRecord

WaitUntil = Callable[[Callable[[], bool]], None]


class Client:
    """Opens topics when it is told to, and takes records while it has room.

    Attributes:
        ready: topics that can be opened.
        refused: topics that can't, and why.
        room: for how many records more there is room.
        taken: by topic, the records in the order in which they came.
        told: what was reported of records that failed: topic, value and error.
    """

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.refused: dict[str, BaseException] = {}
        self.room = 1 << 40
        self.taken: dict[str, list[Any]] = {}
        self.told: list[tuple[str, bytes, KafkaError]] = []
        self.num_tries = 0
        self.open_topics: dict[str, Any] = {}
        self.topics = self.keep()

    def keep(self, **limits: Any) -> UnopenedTopics:
        most = QueueLimits(max_records=1000, max_bytes=1 << 20, max_record_bytes=1000, lifetime_s=math.inf)
        return UnopenedTopics(
            self.open_topics,
            open_topic=self._open,
            send=self._take,
            reports=TopicReports(None, has_offsets=True),
            limits=most._replace(**limits),
        )

    def _open(self, topic: str) -> Any:
        self.num_tries += 1
        if topic in self.refused:
            raise self.refused[topic]
        return f"turns of {topic}" if topic in self.ready else None

    def _take(self, turns: Any, topic: str, record: WaitingRecord) -> None:
        assert turns == f"turns of {topic}"
        if record.value == b"bad":
            raise TypeError("no header can be that")
        if self.room <= 0:
            raise BufferError
        self.room -= 1
        self.taken.setdefault(topic, []).append(record.value)

    def hold(self, topic: str, value: Any) -> Any:
        return self.topics.hold(topic, value, None, -1, self._told, 0, None)

    def _told(self, error: KafkaError | None, message: Any) -> None:
        assert error is not None
        self.told.append((message.topic(), message.value(), error))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> Iterator[Client]:
    monkeypatch.setattr(waiting, "_AGAIN_S", 0.005)
    monkeypatch.setattr(waiting, "_AGAIN_MAX_S", 0.005)
    before = set(threading.enumerate())
    made = Client()
    yield made
    made.topics.close()
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_records_wait_until_their_topic_is_open_and_keep_their_order(
    client: Client, wait_until: WaitUntil
) -> None:
    values = [b"%d" % number for number in range(900)]
    for value in values[:500]:
        assert client.hold("t", value) is None
    assert client.topics.num_waiting == 500
    client.ready.add("t")
    for value in values[500:]:
        if client.hold("t", value) is not None:
            client.taken["t"].append(value)  # as a producer sends it itself from then on
    wait_until(lambda: not client.topics.num_waiting)
    assert client.taken["t"] == values
    assert client.hold("t", b"") == "turns of t"


def test_a_topic_that_can_not_be_opened_holds_up_no_other(client: Client, wait_until: WaitUntil) -> None:
    for number in range(100):
        client.hold(f"stuck-{number}", b"")
    client.ready.add("t")
    client.hold("t", b"x")
    wait_until(lambda: client.taken.get("t") == [b"x"])
    assert client.topics.num_waiting == 100


def test_as_many_wait_as_may(client: Client, wait_until: WaitUntil) -> None:
    client.topics = client.keep(max_records=2, max_bytes=10)
    client.hold("t", b"123456")
    with pytest.raises(BufferError):
        client.hold("u", b"12345")  # too many bytes
    client.hold("u", b"1234")
    with pytest.raises(BufferError):
        client.hold("u", b"")  # too many records
    client.ready |= {"t", "u"}
    wait_until(lambda: not client.topics.num_waiting)
    assert client.taken == {"t": [b"123456"], "u": [b"1234"]}


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"value": 5}, TypeError),
        ({"value": bytes(1001)}, KafkaException),
        ({"key": 1.5}, TypeError),
        ({"topic": None}, TypeError),
        ({"partition": "1"}, TypeError),
        ({"timestamp_ms": "now"}, TypeError),
        ({"headers": [("h", 5)]}, TypeError),
        ({"headers": {"h": 5}}, TypeError),
        ({"headers": ["h"]}, TypeError),
    ],
)
def test_what_can_never_be_sent_is_refused_at_once(
    client: Client, fields: dict[str, Any], refusal: type[Exception]
) -> None:
    record = {
        "topic": "t",
        "value": b"",
        "key": None,
        "partition": -1,
        "callback": None,
        "timestamp_ms": 0,
        "headers": None,
    }
    with pytest.raises(refusal):
        client.topics.hold(**{**record, **fields})
    assert client.topics.num_waiting == 0


def test_nothing_is_taken_while_that_is_refused(client: Client) -> None:
    client.topics.refusal = KafkaError(KafkaError._STATE)
    with pytest.raises(KafkaException):
        client.hold("t", b"")
    client.topics.refusal = None
    client.hold("t", b"")
    client.topics.refusal = KafkaError(KafkaError._STATE)
    with pytest.raises(KafkaException):  # though others wait
        client.hold("t", b"")
    assert client.topics.num_waiting == 1


def test_who_is_dropped_without_being_closed_is_gone(client: Client, wait_until: WaitUntil) -> None:
    client.hold("t", b"")
    dropped = weakref.ref(client.topics)
    client.topics = client.keep()

    def is_gone() -> bool:
        gc.collect()
        return dropped() is None

    wait_until(is_gone)


def test_what_the_client_has_no_room_for_waits_on(client: Client, wait_until: WaitUntil) -> None:
    client.room = 3
    values = [b"%d" % number for number in range(8)]
    for value in values:
        client.hold("t", value)
    client.ready.add("t")
    wait_until(lambda: client.taken.get("t") == values[:3])
    assert client.topics.num_waiting == 5
    client.room = 1000
    wait_until(lambda: not client.topics.num_waiting)
    assert client.taken["t"] == values


def test_why_a_topic_can_not_be_written_is_told_and_the_next_record_begins_anew(
    client: Client, wait_until: WaitUntil
) -> None:
    client.refused["t"] = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    client.hold("t", b"1")
    wait_until(lambda: client.topics.has_failed)
    assert client.topics.num_waiting == 1  # until it is told
    assert client.told == []
    assert client.topics.report() == 1
    ((topic, value, error),) = client.told
    assert (topic, value, error.code()) == ("t", b"1", KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert client.topics.num_waiting == 0
    client.refused.clear()
    client.ready.add("t")
    client.hold("t", b"2")
    wait_until(lambda: client.taken.get("t") == [b"2"])


def test_a_record_that_the_client_refuses_keeps_no_other_back(client: Client, wait_until: WaitUntil) -> None:
    for value in (b"1", b"bad", b"2"):
        client.hold("t", value)
    client.ready.add("t")
    wait_until(lambda: client.taken.get("t") == [b"1", b"2"])
    client.topics.report()
    ((_, value, error),) = client.told
    assert (value, error.code(), error.str()) == (b"bad", KafkaError._INVALID_ARG, "no header can be that")


def test_a_record_that_waits_for_too_long_has_failed(client: Client, wait_until: WaitUntil) -> None:
    client.topics = client.keep(lifetime_s=1.0)
    client.hold("t", b"old")
    wait_until(lambda: client.topics.has_failed)
    client.topics.report()
    ((_, value, error),) = client.told
    assert (value, error.code()) == (b"old", KafkaError._MSG_TIMED_OUT)
    client.ready.add("t")
    client.hold("t", b"new")
    wait_until(lambda: client.taken.get("t") == [b"new"])


def test_all_that_waits_can_be_given_up(client: Client) -> None:
    client.hold("t", b"1")
    client.hold("u", b"2")
    client.topics.fail_all(KafkaError(KafkaError._PURGE_QUEUE))
    assert client.topics.report() == 2
    assert {error.code() for _, _, error in client.told} == {KafkaError._PURGE_QUEUE}
    assert client.topics.num_waiting == 0


def test_a_callback_that_raises_loses_no_other_report(client: Client) -> None:
    def raising(*_: object) -> None:
        raise ZeroDivisionError

    client.topics.hold("t", None, None, -1, raising, 0, None)
    client.hold("t", b"2")
    client.topics.fail_all(KafkaError(KafkaError._PURGE_QUEUE))
    with pytest.raises(ZeroDivisionError):
        client.topics.report()
    assert client.topics.report() == 1
    assert client.topics.num_waiting == 0


def test_nothing_waits_for_a_producer_that_is_closed(client: Client) -> None:
    client.topics.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.hold("t", b"")
