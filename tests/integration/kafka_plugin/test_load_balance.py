"""A dataset lies evenly over brokers, or levels those that were uneven before, as far as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster
from evenload.router.config import RouterConfig
from evenload.router.errors import PluginError
from evenload.telemetry_collector.collector import sample_once

MIB = 1 << 20
CAPACITIES = [128 * MIB, 128 * MIB, 64 * MIB]
FILLED_BYTES = 50 * MIB  # on broker 1, before anything else
LOAD_BYTES = 84 * MIB  # to 42 % of all there is, above what broker 1 has


@pytest.fixture(scope="module")
def uneven_cluster() -> Any:
    """Capacities 2:2:1, and broker 1 a good third full."""
    from evenload.local_cluster import temporary_cluster

    with temporary_cluster(num_brokers=3, capacity_bytes=CAPACITIES) as cluster:
        fill(cluster.connection, 1, FILLED_BYTES)
        yield cluster


def fill(connection: Connection, broker_id: int, size_bytes: int) -> None:
    topic = f"filler-{broker_id}"
    create_topic(
        connection,
        topic,
        num_partitions=1,
        replication=None,
        assignments=[(broker_id,)],
        configs={},
        timeout_s=60,
    )
    producer = confluent_producer(connection)
    for _ in range(size_bytes // 100_000):
        producer.produce(topic, np.random.default_rng(0).bytes(100_000), partition=0)
    assert producer.flush(60) == 0


def best_utilisation(connection: Connection, more_bytes: int) -> float:
    """The highest level in the end: that which water reaches, or where a broker is above it already."""
    brokers = sample_once(connection).brokers.values()
    low, high = 0.0, 2.0
    for _ in range(60):
        level = (low + high) / 2
        room = sum(max(0.0, level * b.capacity_bytes - b.used_bytes) for b in brokers if b.capacity_bytes)
        low, high = (level, high) if room < more_bytes else (low, level)
    return max(high, *(broker.utilisation or 0.0 for broker in brokers))


def highest_utilisation(connection: Connection) -> tuple[float, float]:
    snapshot = sample_once(connection)
    return max(b.utilisation or 0.0 for b in snapshot.brokers.values()), snapshot.utilisation_spread


def samples(size_bytes: int = LOAD_BYTES) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    num_samples = size_bytes // 3072
    return {"x": rng.integers(0, 255, (num_samples, 3072), np.uint8), "label": np.arange(num_samples)}


def test_a_load_ends_within_a_point_of_the_best_possible(uneven_cluster: LocalCluster) -> None:
    connection = uneven_cluster.connection
    best = best_utilisation(connection, LOAD_BYTES)
    by_disks = RouterConfig(goals={"disk_usage": 1.0})
    manifest = load_dataset(samples(), "levelled", connection=connection, router_config=by_disks)
    highest, spread = highest_utilisation(connection)
    assert highest < best + 0.01
    assert spread < 0.01
    assert verify(connection, manifest).is_clean


@pytest.mark.torture
def test_a_default_partitioner_leaves_them_uneven(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(num_brokers=3, capacity_bytes=CAPACITIES)
    fill(cluster.connection, 1, FILLED_BYTES)
    load_dataset(samples(), "as-it-comes", connection=cluster.connection, strategy="default")
    _, spread = highest_utilisation(cluster.connection)
    assert spread > 0.10


def test_a_producer_that_is_told_how_much_comes_levels_them_too(uneven_cluster: LocalCluster) -> None:
    connection = uneven_cluster.connection
    fill(connection, 2, 20 * MIB)
    size_bytes = 40 * MIB
    best = best_utilisation(connection, size_bytes)
    with open_admin(connection) as admin:
        admin.create_topics({"stream": {"num_partitions": 6, "replication_factor": 1}})
    settings = {"bootstrap.servers": connection.bootstrap_servers}
    with BalancedProducer(settings, connection=connection) as producer:
        value = np.random.default_rng(2).bytes(2000)
        producer.expect("stream", size_bytes)
        for number in range(size_bytes // len(value)):
            producer.produce("stream", value)
            if number % 100 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
    highest, _ = highest_utilisation(connection)
    assert highest < best + 0.01


def test_a_load_lies_evenly_whatever_brokers_hold_while_disks_have_room(uneven_cluster: LocalCluster) -> None:
    connection = uneven_cluster.connection
    manifest = load_dataset(samples(24 * MIB), "for-readers", connection=connection)
    led = sample_once(connection, [manifest.topic]).leader_bytes(manifest.topic)
    assert max(led.values()) < 1.02 * min(led.values())


def test_a_load_that_would_fill_a_disk_for_it_goes_elsewhere(uneven_cluster: LocalCluster) -> None:
    connection = uneven_cluster.connection
    held = sample_once(connection).brokers[3].used_bytes
    fill(connection, 3, int(0.85 * CAPACITIES[2]) - held)
    manifest = load_dataset(samples(12 * MIB), "with-care", connection=connection)
    snapshot = sample_once(connection, [manifest.topic])
    led = snapshot.leader_bytes(manifest.topic)
    assert led[3] < 0.1 * min(led[1], led[2])


def test_a_goal_that_nobody_knows_is_refused_before_anything_is_made(uneven_cluster: LocalCluster) -> None:
    connection = uneven_cluster.connection
    before = sample_once(connection).topics
    with pytest.raises(PluginError, match="no_such_goal"):
        load_dataset(
            samples(MIB), "x", connection=connection, router_config=RouterConfig(goals={"no_such_goal": 1.0})
        )
    assert sample_once(connection).topics == before
