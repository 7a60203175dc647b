"""What a producer says that may not write, and that its collector ends whatever goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from evenload.kafka_connection import Connection
from evenload.kafka_plugin import producer as producer_module
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.telemetry_collector.collector import Collector

ADDRESS = "127.0.0.1:1"
REFUSED = KafkaException(
    KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Failed to acquire idempotence PID", fatal=True)
)


@pytest.fixture
def producer() -> Iterator[BalancedProducer]:
    collector = Collector(Connection(bootstrap_servers=ADDRESS))
    config = ProducerConfig(new_topic_timeout_s=0.01)
    made = BalancedProducer({"bootstrap.servers": ADDRESS}, collector=collector, config=config)
    yield made
    made._unopened.close()
    made._routes.close()


def _raising(error: BaseException, cause: BaseException | None = None) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error from cause

    return call


@pytest.mark.parametrize("method", ["flush", "close"])
@pytest.mark.parametrize(
    ("error", "cause"), [(REFUSED, None), (SystemError("returned a result with an exception set"), REFUSED)]
)
def test_an_account_that_may_write_nowhere_hears_what_it_needs(
    producer: BalancedProducer,
    method: str,
    error: BaseException,
    cause: BaseException | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, f"_{method}", _raising(error, cause))
    with pytest.raises(KafkaException, match="it needs WRITE on a topic") as caught:
        getattr(producer, method)()
    assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    assert caught.value.args[0].fatal()


@pytest.mark.parametrize("error", [KafkaException("mine"), KafkaException(), SystemError("mine")])
def test_what_a_callback_raises_is_passed_on_as_it_is(
    producer: BalancedProducer, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "_flush", _raising(error))
    with pytest.raises(type(error)) as caught:
        producer.flush()
    assert caught.value is error


def test_a_topic_that_may_not_be_written_is_refused_with_the_permission(
    producer: BalancedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        partitions: dict[int, object] = {}  # noqa: RUF012

    class Found:
        topics = {"secret": Refused}  # noqa: RUF012

    monkeypatch.setattr(BalancedProducer, "list_topics", lambda *_, **__: Found)
    told: list[tuple[KafkaError, Message]] = []
    producer.produce("secret", b"x", "k", on_delivery=lambda *report: told.append(report))
    assert producer.flush(60) == 0
    ((error, message),) = told
    assert "to topic 'secret': it needs WRITE on the topic" in error.str()
    assert (message.topic(), message.key(), message.value()) == ("secret", b"k", b"x")


@pytest.mark.parametrize("method", ["poll", "flush"])
def test_whoever_waits_hears_of_what_fails_meanwhile(producer: BalancedProducer, method: str) -> None:
    told: list[KafkaError | None] = []
    producer.produce("t", b"x", on_delivery=lambda error, _: told.append(error))
    purging = threading.Timer(0.2, producer.purge)
    purging.start()
    while not told:  # other events of the client end a poll, too
        getattr(producer, method)(600)
    purging.join()
    (error,) = told
    assert error is not None
    assert error.code() == KafkaError._PURGE_QUEUE


def test_a_flush_that_may_not_wait_tells_what_has_failed(producer: BalancedProducer) -> None:
    told: list[KafkaError | None] = []
    producer.produce("t", b"x", on_delivery=lambda error, _: told.append(error))
    producer.purge()
    assert producer.flush(0) == 0
    assert len(told) == 1


def test_a_batch_with_something_that_is_no_record_is_refused_as_a_whole(producer: BalancedProducer) -> None:
    with pytest.raises(TypeError):
        producer.produce_batch("t", [{"value": b"good"}, {"value": 5}])
    assert producer._unopened.num_waiting == 0


def test_the_collector_ends_though_the_client_does_not_end_well(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    close = Collector.close
    monkeypatch.setattr(Collector, "close", lambda self: (ended.append(self), close(self)))
    producer = BalancedProducer({"bootstrap.servers": ADDRESS})
    monkeypatch.setattr(producer_module, "_close", _raising(ZeroDivisionError("in a callback")))
    with pytest.raises(ZeroDivisionError):
        producer.close()
    assert len(ended) == 1
