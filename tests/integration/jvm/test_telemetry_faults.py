"""Whatever is pushed, and whatever becomes of who takes it, a broker answers its clients as ever."""

from __future__ import annotations

import gzip
import os
import ssl
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import psutil
import pytest
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from evenload.jvm.broker_plugin import plugin_properties
from evenload.jvm.jar import evenload_jar
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.jars import KAFKA_VERSION, exporter_jar
from evenload.local_cluster.settings import free_ports, release_ports
from evenload.telemetry_collector.service.fake_pushes import java_push, request_of
from evenload.telemetry_collector.service.pushing_client import GZIP, LZ4, ZSTD, PushingClient
from evenload.telemetry_collector.subscription import subscribe

StartSender = Callable[..., Any]
WaitUntil = Callable[[Callable[[], bool]], None]

PATIENCE_S = 60
TOPIC = "events"
TOKEN = "to-ingest"
ACCOUNT = ("pusher", "secret")
BOMB_BYTES = 512 << 20
NUM_PUSHES = 5
# Codes of Kafka's errors.
UNKNOWN_COMPRESSION, INVALID_RECORD, TELEMETRY_TOO_LARGE = 76, 87, 118
THROWN = "Error exporting client metrics"


class Taker:
    """Takes what brokers hand on, over TLS, or does to it what a test says.

    Attributes:
        pushes: what it has taken.
        tokens: what it was shown, with each request.
        trouble: what becomes of a request in place of an answer: its handler is given.
    """

    def __init__(self, port: int, certificate: Path) -> None:
        self.pushes: list[Any] = []
        self.tokens: list[str] = []
        self.trouble: Callable[[BaseHTTPRequestHandler], None] | None = None
        taker = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taker.tokens.append(self.headers["Authorization"])
                if taker.trouble is not None:
                    taker.trouble(self)
                    return
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                taker.pushes += ExportMetricsServiceRequest.FromString(body).resource_metrics
                answer(self, 200)

            def log_message(self, *_: Any) -> None:
                """A test's output is its own."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def attributes(self) -> list[dict[str, Any]]:
        """What the plugin has said of each push."""
        return [
            {pair.key: _value(pair.value) for pair in push.resource.attributes} for push in list(self.pushes)
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _value(told: Any) -> Any:
    return getattr(told, told.WhichOneof("value"))


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"") -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class Place(NamedTuple):
    """A broker with the plugin and a listener with SASL, and where its own metrics are."""

    cluster: LocalCluster
    port: int
    sasl_address: str
    metrics_url: str

    @property
    def log(self) -> str:
        return self.cluster.log_path(1).read_text()

    def figure(self, name: str) -> float:
        """The sum over what the broker says by a name like this one."""
        with urllib.request.urlopen(self.metrics_url, timeout=PATIENCE_S) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        samples = [sample for family in families for sample in family.samples if name in sample.name.lower()]
        return sum(sample.value for sample in samples if sample.value == sample.value)


def make_topic(connection: Connection) -> None:
    layout: dict[str, Any] = {"replication": 1, "assignments": None, "configs": {}}
    create_topic(connection, TOPIC, num_partitions=1, timeout_s=60, **layout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("place")
    (folder / "rules.yml").write_text("{}\n")
    (folder / "token").write_text(TOKEN)
    port, sasl_port = free_ports(2)
    listener = f"SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
    name, password = ACCOUNT
    plugin = {
        **plugin_properties(KAFKA_VERSION, f"https://127.0.0.1:{port}", folder / "token"),
        "evenload.telemetry.ca.file": str(certificate.with_name("ca.pem")),
    }
    sasl = {
        "listeners": listener,
        "advertised.listeners": listener,
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{name}="{password}";'
        ),
    }
    with ExitStack() as started:
        with pytest.MonkeyPatch.context() as environment:
            agent = f"-javaagent:{exporter_jar()}=127.0.0.1:0:{folder / 'rules.yml'}"
            environment.setenv("JAVA_TOOL_OPTIONS", agent)
            cluster = started.enter_context(
                temporary_cluster(
                    num_brokers=1, properties_by_broker={1: {**plugin, **sasl}}, extra_jars=[evenload_jar()]
                )
            )
        subscribe(cluster.connection, interval_s=1)
        make_topic(cluster.connection)  # which brokers hear of after the subscription
        metrics_port = _exporter_port(cluster, sasl_port)
        yield Place(cluster, port, f"127.0.0.1:{sasl_port}", f"http://127.0.0.1:{metrics_port}/metrics")
    release_ports([port, sasl_port])


def _exporter_port(cluster: LocalCluster, sasl_port: int) -> int:
    """The other port on which the broker listens."""
    listening = {
        each.laddr.port
        for each in psutil.Process(cluster.broker_pid(1)).net_connections()
        if each.status == psutil.CONN_LISTEN
    }
    (port,) = {port for port in listening - {sasl_port} if f":{port}" not in cluster.bootstrap_servers}
    return port


@pytest.fixture(scope="module")
def only_taker(place: Place, certificate: Path) -> Iterator[Taker]:
    taker = Taker(place.port, certificate)
    yield taker
    taker.close()


@pytest.fixture
def taker(only_taker: Taker) -> Taker:
    """One that has taken nothing yet. The plugin keeps its connection, so it is the same for all tests."""
    only_taker.trouble = None
    only_taker.pushes.clear()
    only_taker.tokens.clear()
    return only_taker


def push(place: Place, metrics: bytes, *, compression: int = 0, client_id: str = "pushing") -> int:
    """As a new client, which may push at once. Were anything thrown at the broker, it wouldn't answer 0."""
    with PushingClient(place.cluster.bootstrap_servers, client_id=client_id) as client:
        return client.push(metrics, compression=compression)


def told(name: str) -> bytes:
    """A push that is fine, of a client of that name."""
    return request_of(java_push(name, {1: 5.0}))


def names(taker: Taker) -> Counter[str]:
    """How many pushes of each client have come."""
    return Counter(said["evenload.client.id"] for said in taker.attributes())


def test_a_push_comes_with_who_sent_it_over_tls_with_the_token(
    place: Place, taker: Taker, wait_until: WaitUntil
) -> None:
    with PushingClient(place.sasl_address, account=ACCOUNT) as client:
        assert client.push(told("liar")) == 0
    wait_until(lambda: bool(taker.pushes))
    (said,) = taker.attributes()
    assert said["evenload.principal"] == "User:pusher"
    assert said["evenload.client.address"] == "127.0.0.1"
    assert said["evenload.client.id"] == "pushing"
    assert said["evenload.broker.id"] == "1"
    assert said["evenload.client.instance.id"] != "liar"
    assert set(taker.tokens) == {f"Bearer {TOKEN}"}


HOSTILE = {
    "nothing": b"",
    "neither packed nor MetricsData": b"?" * 50_000,
    "random bytes": b"\x0a" + os.urandom(50_000),
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0f",
    "groups in groups": b"\x0a\xa0\x8d\x06" + b"\x0b" * 100_000,
}
HOSTILE_PACKED: dict[str, tuple[bytes, int]] = {
    "not gzip": (b"not gzip", GZIP),
    "cut gzip": (gzip.compress(os.urandom(1000))[:-20], GZIP),
    "not zstd": (os.urandom(1000), ZSTD),
    "not lz4": (told("other"), LZ4),
    "a way to pack that nobody knows": (told("other"), 9),
}


def test_hostile_pushes_are_taken_and_dropped_and_others_go_on(
    place: Place, taker: Taker, wait_until: WaitUntil
) -> None:
    for name, metrics in HOSTILE.items():
        assert push(place, metrics) == 0, name
        assert push(place, told("fine")) == 0, name
    wait_until(lambda: len(taker.pushes) >= len(HOSTILE))
    assert place.figure("telemetry_unreadable") >= len(HOSTILE) - 1  # nothing is nothing
    assert THROWN not in place.log


REFUSED_UNREAD = (0, UNKNOWN_COMPRESSION, INVALID_RECORD, TELEMETRY_TOO_LARGE)


def test_hostile_packed_pushes_are_dropped_or_refused_by_kafka_and_others_go_on(
    place: Place, taker: Taker, wait_until: WaitUntil
) -> None:
    bomb = gzip.compress(bytes(BOMB_BYTES), 9)
    for name, (metrics, compression) in (HOSTILE_PACKED | {"a bomb": (bomb, GZIP)}).items():
        # Brokers from 4.2 on unpack before they ask any plugin.
        assert push(place, metrics, compression=compression) in REFUSED_UNREAD, name
        assert push(place, told("fine")) == 0, name
    wait_until(lambda: len(taker.pushes) >= len(HOSTILE_PACKED) + 1)


def _slow(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, until the broker has had enough."""
    never = Event()
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    gives_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < gives_up_s:
        try:
            handler.wfile.write(b"x")
            handler.wfile.flush()
        except OSError:
            break
        never.wait(0.2)
    handler.close_connection = True


def _dies(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    handler.wfile.flush()
    handler.connection.close()
    handler.close_connection = True


def _nonsense(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, 200, os.urandom(100_000))


TROUBLES: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {
    "slow": _slow,
    "dies": _dies,
    "nonsense": _nonsense,
    "401": lambda handler: answer(handler, 401),
    "500": lambda handler: answer(handler, 500),
    "of another cluster": lambda handler: answer(handler, 409),
}


@pytest.mark.torture
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_service_in_trouble_is_nothing_to_who_pushes(
    place: Place, taker: Taker, wait_until: WaitUntil, trouble: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    taker.trouble = trouble
    asked = len(taker.tokens)

    def is_asked() -> bool:
        assert push(place, told("during")) == 0
        return len(taker.tokens) >= asked + 2

    wait_until(is_asked)
    taker.trouble = None
    taker.pushes.clear()

    def is_taken() -> bool:
        assert push(place, told("after"), client_id="after") == 0
        return names(taker)["after"] > 0

    wait_until(is_taken)


@pytest.mark.torture
def test_a_plugin_that_comes_late(
    start_sender: StartSender, certificate: Path, tmp_path: Path, wait_until: WaitUntil
) -> None:
    """By a setting that brokers take as they run. A Java client that was told no stays silent to its end."""
    (tmp_path / "token").write_text(TOKEN)
    (port,) = free_ports(1)
    wanted = plugin_properties(KAFKA_VERSION, f"https://127.0.0.1:{port}", tmp_path / "token")
    reporters = "metric.reporters"
    others = {name: value for name, value in wanted.items() if name != reporters}
    others["evenload.telemetry.ca.file"] = str(certificate.with_name("ca.pem"))
    taker = Taker(port, certificate)
    try:
        with temporary_cluster(
            num_brokers=1, broker_properties=others, extra_jars=[evenload_jar()]
        ) as cluster:
            connection = cluster.connection
            make_topic(connection)
            subscribe(connection, interval_s=1)
            nowhere = {"evenload.url": "http://127.0.0.1:1", "evenload.first.route.timeout.ms": 0}
            settings = {"bootstrap.servers": connection.bootstrap_servers, **nowhere}
            early = start_sender({**settings, "client.id": "early"}, TOPIC)
            early.send(10)
            with open_admin(connection) as admin:
                resource = ConfigResource(
                    ConfigResourceType.BROKER, "1", {reporters: (AlterConfigOp.SET, wanted[reporters])}
                )
                admin.alter_configs([resource], raise_on_unknown=False, incremental=True)
            late = start_sender({**settings, "client.id": "late"}, TOPIC)

            def the_new_client_pushes() -> bool:
                for sender in (early, late):
                    sender.send(10)
                return names(taker)["late"] >= NUM_PUSHES

            wait_until(the_new_client_pushes)
    finally:
        taker.close()
        release_ports([port])
    assert "early" not in names(taker)
