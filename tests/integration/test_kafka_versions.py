"""What evenload asks of brokers, asked of the oldest Kafka it supports, of the last 3.x and of the newest.

Everything else is tested on the newest alone; here is one short case of each request that brokers of some
version answer in another way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from kafka import TopicPartition
from kafka.admin import TransactionState

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.admin_questions import describe_brokers
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.balancing.balance import execute_balance
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.transaction_markers import ALL_PARTITIONS, TransactionMarkers, _open_transactions
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.jars import KAFKA_VERSIONS
from evenload.ray_trainer.reading.reader import DatasetReader
from evenload.router.config import RouterConfig
from evenload.telemetry_collector import TopicPartition as MeasuredPartition
from evenload.telemetry_collector.collector import sample_once

MIB = 1 << 20
FILLED_BYTES = 2 * MIB  # on broker 1, before anything else
NUM_SAMPLES = 5_000


# 3.7.2 is there for clients' telemetry, which is new in it.
VERSIONS = [pytest.param(v, marks=[pytest.mark.torture] if v == "3.7.2" else []) for v in KAFKA_VERSIONS]


@pytest.fixture(scope="module", params=VERSIONS)
def versioned(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three brokers of 64 MiB each, broker 1 with some of them used."""
    with temporary_cluster(
        kafka_version=request.param, num_brokers=3, capacity_bytes=[64 * MIB] * 3
    ) as cluster:
        with open_admin(cluster.connection) as admin:
            admin.create_topics({"filler": {"assignments": {0: [1]}}, "copied": {"assignments": {0: [3, 2]}}})
        fill(cluster.connection, "filler", FILLED_BYTES)
        yield cluster


def fill(connection: Connection, topic: str, size_bytes: int) -> None:
    producer = confluent_producer(connection)
    for _ in range(size_bytes // 100_000):
        producer.produce(topic, bytes(100_000), partition=0)
    assert producer.flush(60) == 0


def samples() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"x": rng.integers(0, 255, (NUM_SAMPLES, 1000), np.uint8), "label": np.arange(NUM_SAMPLES)}


def test_brokers_are_the_version_that_was_asked_for(versioned: LocalCluster) -> None:
    log = versioned.log_path(1).read_text()
    assert f"Kafka version: {versioned.kafka_version}" in log
    with open_admin(versioned.connection) as admin:
        assert sorted(broker["broker_id"] for broker in describe_brokers(admin)) == [1, 2, 3]


def test_the_collector_measures_use_capacity_and_layout(versioned: LocalCluster) -> None:
    snapshot = sample_once(versioned.connection)
    (log,) = (versioned.data_path(1) / "filler-0").glob("*.log")
    used_bytes = snapshot.brokers[1].bytes_by_topic_partition[MeasuredPartition("filler", 0)]
    assert used_bytes == log.stat().st_size >= FILLED_BYTES // 100_000 * 100_000
    assert [broker.capacity_bytes for broker in snapshot.brokers.values()] == [64 * MIB] * 3
    assert snapshot.topics["copied"][0].replica_ids == (3, 2)
    assert snapshot.topics["copied"][0].leader_id == 3

    unconfigured = Connection(bootstrap_servers=versioned.bootstrap_servers)
    volumes = sample_once(unconfigured).brokers.values()
    assert all((broker.capacity_bytes or 0) > 64 * MIB for broker in volumes)


def test_a_dataset_levels_brokers_and_is_read_exactly_once(versioned: LocalCluster) -> None:
    connection = versioned.connection
    by_disks = RouterConfig(goals={"disk_usage": 1.0})
    manifest = load_dataset(
        samples(), "levelled", connection=connection, partitions=6, router_config=by_disks
    )
    assert verify(connection, manifest).is_clean
    assert sample_once(connection).utilisation_spread < 0.02

    reader = DatasetReader("levelled", global_batch_size=512, seed=3, hold_whole=False, connection=connection)
    with closing(reader):
        labels = [label for batch in reader for label in batch["label"].tolist()]
    assert sorted(labels) == list(range(NUM_SAMPLES))
    assert labels != sorted(labels)


def test_a_balanced_producer_goes_round_the_fullest_broker(versioned: LocalCluster) -> None:
    connection = versioned.connection
    with open_admin(connection) as admin:
        admin.create_topics({"filled": {"assignments": {0: [1]}}})
        admin.create_topics({"stream": {"assignments": {0: [1], 1: [2], 2: [3]}}})
    fill(connection, "filled", 4 * MIB)
    with BalancedProducer({**connection.confluent_config()}, connection=connection) as producer:
        producer.expect("stream", 3 * MIB)
        for number in range(3 * MIB // 2000):
            producer.produce("stream", bytes(2000))
            if number % 100 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
    with TopicAdmin(connection, timeout_s=60) as topics:
        ends = topics.offsets("stream", range(3), "log end")
    assert sum(ends.values()) == 3 * MIB // 2000
    assert ends[0] < min(ends[1], ends[2]) / 2


def test_what_a_loader_left_open_is_found_and_ended(versioned: LocalCluster) -> None:
    connection, transactional_id = versioned.connection, f"dead-{uuid.uuid4().hex[:8]}"
    dead = confluent_producer(connection, transactional_id=transactional_id)
    dead.init_transactions(60)
    dead.begin_transaction()
    dead.produce("copied", b"never", partition=0)
    assert dead.flush(60) == 0
    everywhere = [TopicPartition("copied", ALL_PARTITIONS)]
    with (
        open_admin(connection) as admin,
        closing(TransactionMarkers(connection, transactional_id)) as markers,
    ):
        (found,) = _open_transactions(admin, everywhere)
        assert (found.at, found.leader) == (TopicPartition("copied", 0), 3)
        markers.end_earlier(everywhere, 30)
        assert list(_open_transactions(admin, everywhere)) == []
        last = admin.describe_transactions([transactional_id])[transactional_id]
    assert last.state == TransactionState.COMPLETE_ABORT


def test_an_interrupted_load_is_gone_on_with(versioned: LocalCluster) -> None:
    connection = versioned.connection

    class StopError(Exception):
        pass

    def stop(samples_done: int, *_: int) -> None:
        if samples_done > NUM_SAMPLES // 2 and Catalog(connection).unfinished():
            raise StopError

    config = LoaderConfig(transaction_bytes=MIB, block_bytes=64 << 10)
    with pytest.raises(StopError):
        load_dataset(samples(), "in-two", connection=connection, config=config, progress=stop)
    (load,) = Catalog(connection).unfinished()
    assert 0 < load.last.num_samples < NUM_SAMPLES
    manifest = load_dataset(samples(), "in-two", connection=connection, config=config)
    assert manifest.load_id == load.last.load_id
    assert verify(connection, manifest).is_clean


@pytest.mark.parametrize("versioned", VERSIONS[:-1], indirect=True)  # the newest: test_balance.py
def test_a_balance_moves_replicas_whole_and_takes_its_throttles_off(
    versioned: LocalCluster,
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    connection = versioned.connection
    with open_admin(connection) as admin:
        admin.create_topics({"skewed": {"assignments": {number: [1] for number in range(6)}}})
    values = [bytes([number]) * 100_000 for number in range(120)]
    producer = confluent_producer(connection)
    for number, value in enumerate(values):
        producer.produce("skewed", value, partition=number % 6)
    assert producer.flush(60) == 0

    throttles: dict[str, str] = {}
    outcome = execute_balance(
        connection,
        config=BalanceConfig(poll_s=0.05),
        progress=lambda _: throttles or throttles.update(throttle_settings(connection)),
    )
    assert outcome.after is not None
    assert outcome.plan.spread_before > 0.1
    assert outcome.after.utilisation_spread < 0.05
    assert outcome.moved_bytes == outcome.plan.moved_bytes
    assert throttles
    assert throttle_settings(connection) == {}
    assert reassignments(connection) == {}
    placed = sample_once(connection).topics["skewed"].values()
    assert {broker_id for partition in placed for broker_id in partition.replica_ids} > {1}
    ranges = dict.fromkeys(range(6), OffsetRange(0, 20))
    found = [message.value for message in read_committed(connection, "skewed", ranges, timeout_s=60)]
    assert sorted(found) == values
