"""A producer's own client tells the collector how long brokers take, where somebody asks for that."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kafka.admin import NewTopic

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.producing.settings import needs_latency
from evenload.router.config import RouterConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.snapshot import BrokerSnapshot

MEASURED = ProducerConfig(is_latency_measured=True)
PATIENCE_S = 30.0


@pytest.fixture
def topic(connection: Connection, topic_name: str) -> str:
    """Partitions on brokers 1 and 2 only."""
    placed = {0: [1], 1: [2]}
    with open_admin(connection) as admin:
        admin.create_topics(
            [NewTopic(topic_name, num_partitions=-1, replication_factor=-1, replica_assignments=placed)]
        )
    return topic_name


@pytest.fixture
def told() -> list[dict[str, Any]]:
    """What the user's own `stats_cb` got."""
    return []


@pytest.fixture
def settings(connection: Connection, told: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        "statistics.interval.ms": 100,
        "stats_cb": lambda document: told.append(json.loads(document)),
    }


def _brokers_after_writing(producer: BalancedProducer, topic: str) -> dict[int, BrokerSnapshot]:
    """The brokers in the producer's own snapshot, once all that it writes to have a latency, or none will."""
    collector = producer._routes._collector
    gives_up_at_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < gives_up_at_s:
        for partition in (0, 1):
            producer.produce(topic, b"x" * 1000, partition=partition)
        producer.poll(0.05)
        brokers = dict(collector.snapshot(max_age_s=0.0).brokers)
        if all(brokers[broker_id].request_latency_s is not None for broker_id in (1, 2)):
            break
    return brokers


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_brokers_that_are_written_to_have_a_latency_and_the_users_own_callback_misses_nothing(
    connection: Connection,
    settings: dict[str, Any],
    told: list[dict[str, Any]],
    topic: str,
    compression: str,
) -> None:
    settings |= {"compression.type": compression}
    with BalancedProducer(settings, connection=connection, config=MEASURED) as producer:
        brokers = _brokers_after_writing(producer, topic)
    for broker_id in (1, 2):
        latency_s = brokers[broker_id].request_latency_s
        assert latency_s is not None
        assert latency_s > 0
    windows = [broker["rtt"] for document in told for broker in document["brokers"].values()]
    means_s = [window["avg"] / 1e6 for window in windows if window["cnt"]]
    assert min(means_s) <= brokers[1].request_latency_s


@pytest.mark.parametrize(
    ("config", "score_functions", "is_needed"),
    [
        (ProducerConfig(), {"reachability": 1.0}, False),
        (ProducerConfig(), {"reachability": 1.0, "latency": 0.5}, True),
        (ProducerConfig(), {"latency": 0.0}, False),
        (ProducerConfig(is_latency_measured=False), {"latency": 1.0}, False),
        (MEASURED, {"reachability": 1.0}, True),
    ],
)
def test_latencies_are_measured_where_a_score_needs_them_or_as_configured(
    config: ProducerConfig, score_functions: dict[str, float], is_needed: bool
) -> None:
    assert needs_latency(config, RouterConfig(score_functions=score_functions)) == is_needed


def test_without_need_the_client_gathers_no_statistics(
    connection: Connection, settings: dict[str, Any], told: list[dict[str, Any]], topic: str
) -> None:
    del settings["statistics.interval.ms"]
    with BalancedProducer(settings, connection=connection) as producer:
        producer.produce(topic, b"x")
        producer.flush(60)
        producer.poll(0.5)
        assert "client_statistics" not in producer._routes._collector.statistics.num_answers
    assert told == []


def test_a_collector_that_is_shared_is_not_told(
    connection: Connection, settings: dict[str, Any], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Collector(connection, topics=[topic]) as collector,
        BalancedProducer(settings, connection=connection, config=MEASURED, collector=collector),
    ):
        assert "client_statistics" not in collector.statistics.num_answers
    assert "is_latency_measured has no effect" in caplog.text
