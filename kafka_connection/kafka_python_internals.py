"""Whatever is used of kafka-python beyond its documented clients, errors and structures.

Nobody promises that any of this stays. So it lies here alone, behind names of ours; pyproject.toml has the
range of versions that it was tried with, and tests/unit/kafka_connection/test_kafka_python_internals.py fails
where another version has changed it, or where other modules use such a thing.

Three parts: the inside of an admin client; connections without one, to ask brokers side by side; and the
protocol without I/O (messages, their framing, authentication).

Read next: clients.py, telemetry_collector/sources/kafka_requests.py and broker_connection.py, which use one
part each.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import kafka
from kafka.errors import NodeNotReadyError
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    CoordinatorType,
    FindCoordinatorRequest,
    MetadataRequest,
)
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.producer.transaction import InitProducerIdRequest, WriteTxnMarkersRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

__all__ = [
    "ApiVersionsRequest",
    "CoordinatorType",
    "DescribeLogDirsRequest",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "ListPartitionReassignmentsRequest",
    "MessageStream",
    "MetadataRequest",
    "Network",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "TokenProvider",
    "WriteTxnMarkersRequest",
    "awaitable",
    "brokers_in_metadata",
    "forget_controller",
    "make_admin_client",
    "sasl_mechanism",
    "send_request",
    "settings_request",
]

# By the scheme of `proxy_url` kafka-python chooses the class of its sockets; there is no proxy.
_DIRECT_URL: Final = "direct://"
_TURN_MIN_MS: Final = 1000.0

# The inside of an admin client.


def make_admin_client(**config: Any) -> kafka.KafkaAdminClient:
    """An admin client that asks servers in turn, and of which nothing is left when it can't be made."""
    opened: list[KafkaNetClient] = []

    def open_client(**config: Any) -> KafkaNetClient:
        net = NetworkSelector(**config)
        opened.append(KafkaNetClient(net=net, manager=_ServersInTurn(net, **config)))
        return opened[0]

    try:
        return kafka.KafkaAdminClient(**{"kafka_client": open_client, "proxy_url": _DIRECT_URL, **config})
    except BaseException:  # Ctrl-C too, as it waits for brokers
        # A constructor that fails leaves its thread running and its sockets open (kafka-python 3.0.12).
        for client in opened:
            client.close()
            client._manager._net.stop()
        raise


class _ServersInTurn(KafkaConnectionManager):  # type: ignore[misc]
    """Asks the configured servers in turn, each for its share of the time.

    kafka-python 3.0.12 picks one by chance and gives it all the time that is left, so a server that
    accepts connections and hangs would stand in for those that answer.
    """

    def __init__(self, net: NetworkSelector, **config: Any) -> None:
        super().__init__(net, **config)
        self._turns: Counter[str] = Counter()

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **options: Any) -> Any:
        if timeout_ms is None:  # not for a first answer: that alone has a deadline
            return super().get_connection(node_id, **options)
        servers = [server.node_id for server in self.cluster.bootstrap_brokers()]
        if self._turns[node_id] > min(self._turns[server] for server in servers):
            raise NodeNotReadyError(node_id)  # picks again
        share_ms = max(_TURN_MIN_MS, timeout_ms / len(servers))
        connecting = super().get_connection(node_id, timeout_ms=min(timeout_ms, share_ms), **options)
        self._turns[node_id] += 1
        return connecting


class _DirectSocket(KafkaNetSocket):  # type: ignore[misc]
    """Connects without a proxy, and closes its socket when it can't connect.

    kafka-python 3.0.12 drops such a socket: a broker that is down for a day would cost a file descriptor for
    each try, until the garbage collector comes by.
    """

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: Any = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


def send_request(admin: kafka.KafkaAdminClient, request: Any, broker_id: int | None = None) -> Any:
    """The answer to one of the requests below, of a broker or of any."""

    async def send() -> Any:
        return await admin._manager.send(request, node_id=broker_id)

    return admin._manager.run(send)


def forget_controller(admin: kafka.KafkaAdminClient) -> None:
    """Have it look for the controller anew: it goes on asking the one that it found, dead or not."""
    admin._controller_id = None


def brokers_in_metadata(admin: kafka.KafkaAdminClient) -> list[dict[str, Any]]:
    """The brokers as every version of Kafka tells them, each with its `node_id`."""
    brokers: list[dict[str, Any]] = admin._manager.run(admin._get_cluster_metadata, [])["brokers"]
    return brokers


# Connections without an admin client.


class Network:
    """Connections to a cluster's brokers, one each, opened when first needed, on one I/O thread of their own.

    Its methods may be called from any thread but where they say otherwise. Those that return a future of
    kafka-python's raise at once when the I/O thread has died (a fault of its own).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        config = {"proxy_url": _DIRECT_URL, **config}
        self._net = NetworkSelector(**config)
        self._manager = KafkaConnectionManager(self._net, **config)
        self._net.start()

    @property
    def bootstrap_nodes(self) -> tuple[str, ...]:
        """Names of the configured addresses, by which they can be asked before any broker id is known."""
        return tuple(broker.node_id for broker in self._manager.cluster.bootstrap_brokers())

    def call_soon(self, function: Callable[..., Any], *args: Any) -> Future:
        """Call a function on the I/O thread; a future of its result, or of what its result waits for."""
        return self._manager.call_soon(function, *args)

    def send(self, node: int | str, request: Any, *, timeout_ms: float) -> Future:
        """Send one of the requests below. For the I/O thread.

        Args:
            node: A broker id, or one of `bootstrap_nodes`.
            request: A fresh one; it is changed by being sent.
            timeout_ms: For connecting, and for the answer.
        """
        # A failed authentication is remembered for good: a corrected password would need a new client.
        self._manager._auth_failures.pop(node, None)
        connection = self._manager.get_connection(node, timeout_ms=timeout_ms, refresh_metadata_on_err=False)
        return connection.send_request(request, request_timeout_ms=timeout_ms)

    def learn_brokers(self, metadata_response: Any) -> None:
        """Enter the brokers' addresses. For the I/O thread."""
        self._manager.cluster.update_metadata(metadata_response)

    def hang_up(self, node: int | str) -> None:
        """Close the connection to one broker soon, if there is one; open requests to it fail."""
        self._manager.call_soon(self._manager.close, node)

    def close(self) -> Future:
        """Close all connections, soon; `end` comes after it."""
        return self._manager.call_soon(self._manager.close)

    def drop(self) -> None:
        """Close all connections, where the I/O thread has died."""
        cluster = self._manager.cluster
        for broker in (*cluster.brokers(), *cluster.bootstrap_brokers()):
            with contextlib.suppress(Exception):
                self._manager.close(broker.node_id)

    def end(self, timeout_ms: float) -> None:
        """End the I/O thread and free what it had; whatever hinders that is raised."""
        self._net.stop(timeout_ms)
        self._net.close()


def awaitable(kafka_future: Future) -> asyncio.Future[Any]:
    """An asyncio future that follows one of kafka-python's, which is resolved in another thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle() -> None:
        if future.done():  # cancelled: nobody waits any more
            return
        if kafka_future.exception is not None:
            future.set_exception(kafka_future.exception)
        else:
            future.set_result(kafka_future.value)

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # our loop has ended meanwhile: there is nobody to tell
            loop.call_soon_threadsafe(settle)

    kafka_future.add_both(wake)
    return future


# The protocol, without I/O. Messages have Kafka's own names and fields.

MessageStream = KafkaProtocol
"""Turns requests into bytes, and bytes into the answers to them."""

TokenProvider = AbstractTokenProvider
"""What OAUTHBEARER asks for a token."""


def sasl_mechanism(host: str, config: Mapping[str, Any]) -> Any:
    """One exchange of credentials: `auth_bytes`, `receive`, `is_done`, `is_authenticated`."""
    return get_sasl_mechanism(config["sasl_mechanism"])(host=host, **config)


def settings_request(resource_type: int, names: Iterable[str], keys: Sequence[str]) -> DescribeConfigsRequest:
    """Asks for settings of topics, or of the broker that is asked. Its answer tells refusals one by one."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource(resource_type=resource_type, resource_name=name, configuration_keys=list(keys))
            for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
    )
