from __future__ import annotations

import pickle
import socket
import threading
from pathlib import Path

import pytest
from kafka.net.manager import KafkaConnectionManager

from evenload.kafka_connection import (
    BadConnectionFileError,
    BrokersUnreachableError,
    Connection,
    NoClusterError,
    NoCredentialsError,
)
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer, open_admin


@pytest.mark.parametrize(
    "error",
    [
        NoClusterError(Path("/home"), "there is none"),
        BadConnectionFileError(Path("/file"), "is not JSON"),
        BrokersUnreachableError("kafka:9092", "connection refused"),
        NoCredentialsError("a token", "/token can't be read"),
    ],
)
def test_errors_pickle_with_their_facts(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_an_address_without_a_broker_is_said_and_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    threads_before = set(threading.enumerate())

    with pytest.raises(BrokersUnreachableError) as caught:
        open_admin(Connection(bootstrap_servers=address), timeout_s=2.0)

    assert str(caught.value).startswith(f"no Kafka broker answers at {address}: connection refused")
    assert set(threading.enumerate()) == threads_before


def test_an_admin_client_that_is_given_up_while_it_waits_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KafkaConnectionManager, "bootstrap", give_up)
    threads_before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        open_admin(Connection(bootstrap_servers="127.0.0.1:1"), timeout_s=0.5)
    assert set(threading.enumerate()) == threads_before


def test_something_that_is_no_broker_is_said_to_be_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}")

        with pytest.raises(BrokersUnreachableError, match="doesn't answer as a Kafka broker"):
            open_admin(connection, timeout_s=0.5)


def test_neither_client_prints_when_no_broker_answers(capfd: pytest.CaptureFixture[str]) -> None:
    connection = Connection(bootstrap_servers="127.0.0.1:1")

    with pytest.raises(BrokersUnreachableError):
        open_admin(connection, timeout_s=0.2)
    producer = confluent_producer(connection, stats_cb=lambda _: None, reconnect_backoff_ms=10)
    producer.poll(0.2)
    consumer = confluent_consumer(connection)
    consumer.poll(0.2)
    consumer.close()

    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
