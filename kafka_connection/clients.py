"""The only place that constructs a Kafka client.

What correctness rests on (`acks`, idempotence, isolation, where to start reading) is passed
explicitly here, never left to a default that differs between clients. Both clients' own log
lines go to Python logging (`evenload.kafka_connection.librdkafka`, `kafka`), never to stderr, and their
exceptions are translated here: nothing above sees a client library's class for "unreachable".

Read next: admin_questions.py (what an admin client is asked).
"""

from __future__ import annotations

import logging
import socket
from typing import Any

import kafka
from confluent_kafka import Consumer, Producer
from kafka.errors import KafkaError, KafkaTimeoutError

from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.errors import BrokersUnreachableError, NoCredentialsError
from evenload.kafka_connection.kafka_python_internals import make_admin_client
from evenload.kafka_connection.oauth import Tokens

_librdkafka_log = logging.getLogger("evenload.kafka_connection.librdkafka")
# Without a handler of theirs, Python would print both clients' warnings (each failed connect) to stderr.
for _logger in (_librdkafka_log, logging.getLogger("kafka")):
    _logger.addHandler(logging.NullHandler())

_PROBE_TIMEOUT_S = 0.3


def open_admin(
    connection: Connection, *, timeout_s: float = 10.0, **overrides: Any
) -> kafka.KafkaAdminClient:
    """Connect an admin client; whoever opens it closes it (it is a context manager).

    Its methods may be called from any thread: they run on one thread of its own.

    Args:
        timeout_s: how long to wait for a first broker, in seconds, above 0; also each request's deadline.
        overrides: further settings of kafka-python's admin client.

    Raises:
        BrokersUnreachableError: no broker answered within `timeout_s`.
    """
    config = {
        "client_id": "evenload-admin",
        "bootstrap_timeout_ms": max(1, int(timeout_s * 1000)),
        "request_timeout_ms": max(1, int(timeout_s * 1000)),
        "reconnect_backoff_max_ms": 1000,
        # A broker that was fenced is unknown to the client until it asks again, by default 5 minutes later.
        "metadata_max_age_ms": 2000,
        **connection.kafka_python_config(),
        **overrides,
    }
    try:
        return make_admin_client(**config)
    except (KafkaError, OSError) as error:
        raise BrokersUnreachableError(connection.bootstrap_servers, _why(error, connection)) from error


def confluent_producer(connection: Connection, **overrides: Any) -> Producer:
    """A producer that waits for all replicas in sync and repeats nothing.

    Args:
        overrides: settings of librdkafka, with `_` for `.` (`transactional_id="x"`).

    Raises:
        NoCredentialsError: the connection names a file or a provider, and it gives no password or token.
    """
    return Producer(
        {
            "client.id": "evenload-producer",
            "acks": "all",
            "enable.idempotence": True,
            "logger": _librdkafka_log,
            **_confluent_config(connection),
            **_dotted(overrides),
        }
    )


def confluent_consumer(connection: Connection, **overrides: Any) -> Consumer:
    """A consumer of committed records, to be used with `assign()` only; commits nothing by itself.

    Args:
        overrides: settings of librdkafka, with `_` for `.` (`fetch_wait_max_ms=10`).

    Raises:
        NoCredentialsError: as above.
    """
    return Consumer(
        {
            "client.id": "evenload-consumer",
            # librdkafka insists on a name; with assign() and no commits, no such group comes to be.
            "group.id": "evenload-unused",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            # An offset that is gone is an error: jumping elsewhere would lose or repeat samples.
            "auto.offset.reset": "error",
            "check.crcs": True,
            # It has nothing to tell brokers that anybody uses.
            "enable.metrics.push": False,
            "logger": _librdkafka_log,
            **_confluent_config(connection),
            **_dotted(overrides),
        }
    )


def _confluent_config(connection: Connection) -> dict[str, Any]:
    config = connection.confluent_config()
    if "oauth_cb" in config:
        # The client would wait for 10 s and then say that there was no token, and not why.
        config["oauth_cb"]("")
    return config


def _dotted(overrides: dict[str, Any]) -> dict[str, Any]:
    # Callbacks are the only names of librdkafka's Python client that really have a `_`.
    return {name if name.endswith("_cb") else name.replace("_", "."): v for name, v in overrides.items()}


def _why(error: Exception, connection: Connection) -> str:
    """What a person can act on; kafka-python's own timeout only says that there was one."""
    if not isinstance(error, KafkaTimeoutError):
        return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    # kafka-python 3.0.12 waits for brokers that refuse a password as it does for any that hang up.
    refused = "user name and password or " if connection.sasl_username is not None else ""
    if connection.sasl_oauth is not None:
        refused = "token or "
        try:
            Tokens(connection.sasl_oauth).latest()
        except NoCredentialsError as no_token:
            return str(no_token)
    found = {address: _probe(address, refused) for address in connection.bootstrap_servers.split(",")}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{address}: {reason}" for address, reason in found.items())


def _probe(address: str, refused: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_TIMEOUT_S).close()
    except TimeoutError:
        return "no answer to a connection attempt"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    wanted = f"this {refused}security protocol"
    return f"something listens there, but doesn't answer as a Kafka broker of {wanted} would"
