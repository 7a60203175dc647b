"""Kafka requests as asyncio awaitables, with a deadline each.

The idea: kafka-python 3 is asynchronous inside. One I/O thread of its own drives all connections, and a
request is a future that it resolves. So no thread has to wait for a broker: we hand a request to that
thread, and its future wakes our loop. However many brokers are paused, there is one thread.

What we avoid, all seen in kafka-python 3.0.12:

- `KafkaAdminClient` connects in its constructor, for 30 s, and leaves its I/O thread running when that
  fails; its `describe_log_dirs` asks brokers one after the other and fails as a whole. We use what it is
  made of (kafka_connection/kafka_python_internals.py), one connection and one request for each broker.
- A request to a broker that is being connected has no timer of its own, and a connection may take 10 to
  30 s (a paused broker's kernel still accepts). Each connection gets the question's time instead.
- After a refused connection, further requests are refused for up to 30 s, though the broker may be back:
  the collector has a backoff of its own, so this one is kept at its minimum.
- With its own refresh of metadata, each lost connection would cost a request more; ours are enough. What
  they say about addresses is entered with `learn_brokers`.

A host name is looked up by the I/O thread, which blocks: a resolver that takes seconds delays all brokers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kafka import errors as kafka_errors

from evenload.kafka_connection import Connection, NoCredentialsError
from evenload.kafka_connection.kafka_python_internals import Network, awaitable
from evenload.telemetry_collector.errors import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    CollectorClosedError,
    SourceError,
)

__all__ = ["KafkaRequests"]

# kafka-python logs each failed connection as an error; here that is an expected outcome, counted and shown.
logging.getLogger("kafka").addHandler(logging.NullHandler())

_log = logging.getLogger(__name__)

_NOT_READY_RETRY_S = 0.05
# kafka-python's own timer should be first to give up, as it then closes the connection too.
_TIMER_SLACK_S = 0.1
_STOP_TIMEOUT_MS = 2000
_ANSWER_MAX_BYTES = 1 << 30


class KafkaRequests:
    """Connections to a cluster's brokers, one each, opened when first needed.

    Used from one asyncio loop. `close` ends the I/O thread and all connections.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._network: Network | None = None
        self._is_closed = False

    @property
    def bootstrap_nodes(self) -> tuple[str, ...]:
        """Names under which the configured addresses can be asked, before any broker id is known."""
        return self._opened().bootstrap_nodes

    async def ask(self, node: int | str, request: Any, *, timeout_s: float) -> Any:
        """Send one request to one broker and wait for the response.

        Args:
            node: a broker id, or one of `bootstrap_nodes`.
            request: a fresh one of kafka-python's; it is changed by being sent.
            timeout_s: how long connecting and answering may take together; above 0.

        Raises:
            BrokerUnreachableError: no connection, or no answer in time.
            AccessRefusedError: the broker didn't accept our credentials.
            BadAnswerError: it can't answer this.
            CollectorClosedError: after `close`.
        """
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(gives_up_at + _TIMER_SLACK_S):
                while True:
                    left_ms = max(1.0, (gives_up_at - loop.time()) * 1000)
                    try:
                        return await self._on_io_thread(self._send, node, request, left_ms)
                    except kafka_errors.NodeNotReadyError:
                        # Throttled by a quota, or kafka-python's pause after a refused connection.
                        await asyncio.sleep(_NOT_READY_RETRY_S)
        except TimeoutError as error:
            raise BrokerUnreachableError(node, f"no answer within {timeout_s:g} s") from error
        except kafka_errors.KafkaError as error:
            raise _translated(node, error) from error
        except NoCredentialsError as error:
            raise AccessRefusedError(node, str(error), "check what the connection says of it") from error

    async def learn_brokers(self, metadata_response: Any) -> None:
        """Enter the brokers' addresses from a metadata response; its topics are taken out of it."""
        # The topics are ours to keep; kafka-python would index all partitions once more.
        metadata_response.topics = []
        await self._on_io_thread(self._opened().learn_brokers, metadata_response)

    def hang_up(self, node: int | str) -> None:
        """Close the connection to one broker soon, if there is one; open requests to it fail."""
        if self._network is not None:
            self._network.hang_up(node)

    async def close(self) -> None:
        """Close all connections and end the I/O thread. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        network, self._network = self._network, None
        if network is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_MS / 1000):
                await awaitable(network.close())
        except Exception as error:  # noqa: BLE001 - it is given up anyway
            _log.warning("kafka-python's connections didn't close in time: %r", error)
        _end(network)

    def _opened(self) -> Network:
        if self._is_closed:
            raise CollectorClosedError("its connections have been closed")
        if self._network is None:
            config: dict[str, Any] = {
                "client_id": "evenload-collector",
                "receive_message_max_bytes": _ANSWER_MAX_BYTES,
                "reconnect_backoff_ms": 1,
                "reconnect_backoff_max_ms": 1,
                # Parsing 100,000 partitions takes longer than the 0.1 s it warns about.
                "slow_task_threshold_secs": 0,
                **self._connection.kafka_python_config(),
            }
            self._network = Network(config)
        return self._network

    async def _on_io_thread(self, function: Any, *args: Any) -> Any:
        network = self._opened()
        try:
            kafka_future = network.call_soon(function, *args)
        except Exception:
            # The I/O thread has died (a fault of its own): the next question starts another.
            self._network = None
            network.drop()
            _end(network)
            raise
        return await awaitable(kafka_future)

    def _send(self, node: int | str, request: Any, timeout_ms: float) -> Any:
        network = self._network
        if network is None:  # closed while this was on its way to the I/O thread
            raise kafka_errors.Cancelled
        return network.send(node, request, timeout_ms=timeout_ms)


def _end(network: Network) -> None:
    """End an I/O thread and free what it had."""
    try:
        network.end(_STOP_TIMEOUT_MS)
    except Exception as error:  # noqa: BLE001 - it is given up anyway
        # It is in a name lookup that can't be interrupted (being a daemon, it doesn't keep us alive), or
        # what ended it ends this too; then the garbage collector closes its sockets.
        _log.warning("kafka-python's I/O thread didn't end properly: %r", error)


def _translated(node: int | str, error: kafka_errors.KafkaError) -> SourceError:
    reason = str(error) or type(error).__name__
    match error:
        case kafka_errors.UnknownBrokerIdError():
            return BrokerUnreachableError(node, "the cluster doesn't list it")
        case (
            kafka_errors.SaslAuthenticationFailedError()
            | kafka_errors.UnsupportedSaslMechanismError()
            | kafka_errors.IllegalSaslStateError()
        ):
            return AccessRefusedError(node, reason, "check the connection's SASL mechanism and credentials")
        case kafka_errors.AuthorizationError():
            return AccessRefusedError(node, reason, "grant the permission that it names")
        case (
            kafka_errors.KafkaConnectionError()
            | kafka_errors.KafkaTimeoutError()
            | kafka_errors.RequestTimedOutError()
            | kafka_errors.Cancelled()
        ):
            return BrokerUnreachableError(node, reason)
        case _:
            return BadAnswerError(node, reason)
