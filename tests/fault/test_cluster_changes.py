"""Another cluster takes a cluster's address: the service ends, whoever measures for itself follows."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.collector import Collector

SOON = CollectorConfig(interval_s=0.3, full_interval_s=1.0, deadline_s=2.0, backoff_max_s=1.0)

WaitUntil = Callable[[Callable[[], bool]], None]


class Address:
    """One address; the cluster behind it can be exchanged, as a name service does."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.name = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.leads_to = ""
        self._thread = threading.Thread(target=self._accept, name="address", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.leads_to.rpartition(":")
            try:
                broker = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=_pass_on, args=(source, sink), name="address", daemon=True).start()

    def close(self) -> None:
        # Closing alone wouldn't end an accept that waits.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(1 << 16):
            sink.sendall(received)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """Two, of a single broker each, by the same id."""
    with temporary_cluster(num_brokers=1) as one, temporary_cluster(num_brokers=1) as other:
        yield one, other


@pytest.fixture
def address(clusters: tuple[LocalCluster, LocalCluster]) -> Iterator[Address]:
    """Leads to the first cluster, which is whole again afterwards."""
    address = Address()
    address.leads_to = clusters[0].connection.bootstrap_servers
    yield address
    address.close()
    clusters[0].start()


@pytest.fixture
def connection(address: Address, clusters: tuple[LocalCluster, LocalCluster]) -> Connection:
    capacities = clusters[0].connection.capacity_bytes_by_broker
    return Connection(bootstrap_servers=address.name, capacity_bytes_by_broker=capacities)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def _exchange(address: Address, clusters: tuple[LocalCluster, LocalCluster]) -> None:
    address.leads_to = clusters[1].connection.bootstrap_servers
    clusters[0].kill_broker(1)


def test_a_collector_service_ends_with_a_sentence_and_status_1(
    clusters: tuple[LocalCluster, LocalCluster],
    address: Address,
    connection: Connection,
    start_collector: Callable[..., Any],
    wait_until: WaitUntil,
) -> None:
    service = start_collector(connection)
    wait_until(lambda: _is_ready(service.url))  # it knows a cluster by then
    _exchange(address, clusters)
    service.process.communicate(timeout=300)
    said = service._log_path.read_text()
    assert service.process.returncode == 1
    assert f"evenload: the brokers at {address.name} belong to cluster " in said
    assert "start the collector again to measure that one" in said
    assert "Traceback" not in said


def test_a_producer_follows_and_its_shares_are_even_until_the_other_cluster_is_measured(
    clusters: tuple[LocalCluster, LocalCluster],
    address: Address,
    connection: Connection,
    wait_until: WaitUntil,
) -> None:
    for cluster in clusters:
        with open_admin(cluster.connection) as admin:
            admin.create_topics({"exchanged": {"num_partitions": 3, "replication_factor": 1}})
    settings = {"bootstrap.servers": address.name}
    config = ProducerConfig(refresh_s=0.1)
    with (
        Collector(connection, SOON, []) as collector,
        BalancedProducer(settings, connection=connection, config=config, collector=collector) as producer,
    ):
        producer.produce("exchanged", b"before")
        assert producer.flush(60) == 0
        before = collector.snapshot()
        _exchange(address, clusters)
        wait_until(lambda: collector.statistics.num_cluster_changes == 1)
        wait_until(
            lambda: (
                (cached := collector.cache.latest()) is not None
                and cached.snapshot.cluster_id != before.cluster_id
            )
        )
        assert set(collector.snapshot().topics) == {"exchanged"}
        assert collector.snapshot().brokers[1].is_reachable
