"""What a real JMX exporter in a real broker serves, with the usual rules and with none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import psutil
import pytest
from kafka.admin import NewTopic

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.jars import exporter_jar
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.sources.prometheus_scrape import PrometheusScrapeSource
from evenload.telemetry_collector.sources.source import Question

# The rules that matter here, as the JMX exporter's examples for Kafka have them.
USUAL_RULES = r"""
lowercaseOutputName: true
rules:
- pattern: kafka.(\w+)<type=(.+), name=(.+)PerSec\w*, (.+)=(.+)><>Count
  name: kafka_$1_$2_$3_total
  type: COUNTER
  labels: {"$4": "$5"}
- pattern: kafka.(\w+)<type=(.+), name=(.+)PerSec\w*><>Count
  name: kafka_$1_$2_$3_total
  type: COUNTER
- pattern: kafka.(\w+)<type=(.+), name=(.+), (.+)=(.+)><>Count
  name: kafka_$1_$2_$3_count
  type: COUNTER
  labels: {"$4": "$5"}
- pattern: kafka.(\w+)<type=(.+), name=(.+), (.+)=(.*)><>(\d+)thPercentile
  name: kafka_$1_$2_$3
  type: GAUGE
  labels: {"$4": "$5", quantile: "0.$6"}
"""
NO_RULES = "{}\n"
CONFIG = CollectorConfig(
    interval_s=0.5, full_interval_s=1.0, age_max_s=10.0, metrics_interval_s=2.0, metrics_deadline_s=30.0
)
RECORD_BYTES = 100_000

WaitUntil = Callable[[Callable[[], bool]], None]


class _Exported(NamedTuple):
    connection: Connection
    url_by_broker: dict[int, str]


@pytest.fixture(
    scope="module",
    params=[USUAL_RULES, pytest.param(NO_RULES, marks=pytest.mark.torture)],
    ids=["usual rules", "no rules"],
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Exported]:
    """Two brokers, each with an exporter inside."""
    rules = tmp_path_factory.mktemp("exporter") / "rules.yml"
    rules.write_text(request.param)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", f"-javaagent:{exporter_jar()}=127.0.0.1:0:{rules}")
        with temporary_cluster(num_brokers=2) as cluster:
            ports = {broker_id: _exporter_port(cluster, broker_id) for broker_id in cluster.broker_ids}
            urls = {broker_id: f"http://127.0.0.1:{port}/metrics" for broker_id, port in ports.items()}
            yield _Exported(cluster.connection, urls)


def _exporter_port(cluster: LocalCluster, broker_id: int) -> int:
    """The other port on which a broker listens."""
    listening = {
        c.laddr.port
        for c in psutil.Process(cluster.broker_pid(broker_id)).net_connections()
        if c.status == psutil.CONN_LISTEN
    }
    (port,) = {port for port in listening if f":{port}" not in cluster.bootstrap_servers}
    return port


@pytest.fixture
def topic(exported: _Exported, topic_name: str) -> str:
    """One partition: broker 1 leads it, broker 2 copies it."""
    placed = {0: [1, 2]}
    with closing(open_admin(exported.connection)) as admin:
        admin.create_topics(
            [NewTopic(topic_name, num_partitions=-1, replication_factor=-1, replica_assignments=placed)]
        )
    return topic_name


def _write(connection: Connection, topic: str, num_records: int) -> None:
    producer = confluent_producer(connection, compression_type="none")
    for _ in range(num_records):
        producer.produce(topic, os.urandom(RECORD_BYTES), partition=0)
    assert producer.flush(60) == 0


def _received_bytes(urls: dict[int, str]) -> dict[int, float]:
    """What came to each broker so far, as its exporter says."""

    async def ask() -> dict[int, float]:
        source = PrometheusScrapeSource(urls)
        told = {}
        for broker_id in urls:
            question = Question(broker_id=broker_id, topics=None, is_full=False, layout=None, timeout_s=30.0)
            metrics = await source.answer(question)
            assert metrics.received_bytes is not None
            told[broker_id] = metrics.received_bytes
        await source.close()
        return told

    return asyncio.run(ask())


def test_bytes_received_are_those_written_on_the_leader_and_on_the_broker_that_copies(
    exported: _Exported, topic: str, wait_until: WaitUntil
) -> None:
    before = _received_bytes(exported.url_by_broker)
    _write(exported.connection, topic, 200)
    written = 200 * RECORD_BYTES

    def grown() -> dict[int, float]:
        return {b: now - before[b] for b, now in _received_bytes(exported.url_by_broker).items()}

    wait_until(lambda: min(grown().values()) >= written)
    assert max(grown().values()) <= 1.05 * written


def test_a_collector_tells_the_rate_and_the_latency_of_brokers_that_are_written_to(
    exported: _Exported, topic: str, wait_until: WaitUntil
) -> None:
    config = CONFIG.model_copy(update={"metrics_url_by_broker": exported.url_by_broker})
    with Collector(exported.connection, config, [topic]) as collector:
        _write(exported.connection, topic, 20)
        wait_until(lambda: collector.snapshot().brokers[1].request_latency_s is not None)
        wait_until(lambda: collector.snapshot().brokers[2].ingest_bytes_per_s is not None)
        brokers = collector.snapshot().brokers
    assert brokers[1].request_latency_s >= 0
    assert brokers[2].request_latency_s is None  # nobody writes to it
    assert collector.statistics.num_failures["prometheus_scrape"] == 0


def test_a_broker_whose_exporter_is_gone_is_reachable(exported: _Exported, wait_until: WaitUntil) -> None:
    urls = {1: exported.url_by_broker[1], 2: "http://127.0.0.1:9/metrics"}
    config = CONFIG.model_copy(update={"metrics_url_by_broker": urls})
    with Collector(exported.connection, config, []) as collector:
        wait_until(lambda: collector.statistics.num_failures["prometheus_scrape"] >= 2)
        assert all(broker.is_reachable for broker in collector.snapshot(max_age_s=0.0).brokers.values())
        reason = collector.statistics.failures["prometheus_scrape of broker 2"]
    assert reason.startswith("http://127.0.0.1:9/metrics: Cannot connect to host")
