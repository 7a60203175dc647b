"""The catalog's brokers go away during a load, and nobody else: what is written is not lost or repeated.

The brokers with the data and with the transactions' state go on all the while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.catalog import DATASETS_TOPIC, LOADS_TOPIC
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import LoadInterruptedError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster

NUM_SAMPLES = 3_000
DATA_BROKERS = (1, 2)
CATALOG_BROKERS = (3, 4, 5)
MIB = 1 << 20
CONFIG = LoaderConfig(transaction_s=0.5, block_bytes=8_000, transaction_timeout_s=10, stall_timeout_s=120)

WaitUntil = Callable[[Callable[[], bool]], None]
MakeTrouble = Callable[[int, Callable[[], None]], Any]


@pytest.fixture
def cluster(make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Brokers 1 and 2 have room, and the transactions' state; 3, 4 and 5 have the catalog."""
    cluster = make_cluster(num_brokers=5, capacity_bytes=[1024 * MIB] * 2 + [MIB] * 3)
    compacted = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    for topic, num_partitions, broker_ids in (
        ("__transaction_state", 3, DATA_BROKERS),
        (DATASETS_TOPIC, 1, CATALOG_BROKERS),
        (LOADS_TOPIC, 1, CATALOG_BROKERS),
    ):
        create_topic(
            cluster.connection,
            topic,
            num_partitions=num_partitions,
            replication=None,
            assignments=[broker_ids] * num_partitions,
            configs=compacted,
            timeout_s=60,
        )
    return cluster


def leaders(connection: Connection, topic: str) -> set[int]:
    with open_admin(connection) as admin:
        (found,) = admin.describe_topics([topic])
    return {each["leader_id"] for each in found["partitions"]}


def kill_catalog(cluster: LocalCluster) -> None:
    for broker_id in CATALOG_BROKERS:
        cluster.kill_broker(broker_id)


def restart_catalog(cluster: LocalCluster) -> None:
    for broker_id in CATALOG_BROKERS:
        cluster.restart_broker(broker_id)
    cluster.wait_until_ready(60)


def load(connection: Connection, config: LoaderConfig, progress: Any = None) -> DatasetManifest:
    source = {"n": np.arange(NUM_SAMPLES), "x": np.zeros((NUM_SAMPLES, 500), np.uint8)}
    return load_dataset(
        source,
        "flowers",
        connection=connection,
        partitions=2,
        replication=1,
        config=config,
        progress=progress,
    )


def is_catalog_alone_away(connection: Connection) -> bool:
    (data_topic,) = [name for name in _topics(connection) if name.startswith("flowers-v1-")]
    assert leaders(connection, data_topic) == set(DATA_BROKERS)
    assert leaders(connection, "__transaction_state") <= set(DATA_BROKERS)
    return leaders(connection, DATASETS_TOPIC) == leaders(connection, LOADS_TOPIC) == {-1}


def _topics(connection: Connection) -> list[str]:
    with open_admin(connection) as admin:
        return list(admin.list_topics())


@pytest.mark.torture
def test_a_load_waits_while_only_the_catalog_is_away(
    cluster: LocalCluster,
    make_trouble: MakeTrouble,
    wait_until: WaitUntil,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def go_and_come_back() -> None:
        kill_catalog(cluster)
        wait_until(lambda: is_catalog_alone_away(cluster.connection))
        # Not before it was felt.
        wait_until(lambda: "a transaction of flowers is done again" in caplog.text)
        restart_catalog(cluster)

    outage = make_trouble(NUM_SAMPLES // 4, go_and_come_back)
    with caplog.at_level(logging.WARNING):
        manifest = load(cluster.connection, CONFIG, outage)
    outage.join()
    assert manifest.num_samples == NUM_SAMPLES
    report = verify(cluster.connection, manifest)
    assert report.is_clean, report


def test_a_load_without_its_catalog_stops_with_a_sentence_and_goes_on_later(
    cluster: LocalCluster, make_trouble: MakeTrouble, wait_until: WaitUntil
) -> None:
    outage = make_trouble(NUM_SAMPLES // 4, lambda: kill_catalog(cluster))
    impatient = CONFIG.model_copy(update={"stall_timeout_s": 15.0})
    with pytest.raises(LoadInterruptedError, match="the same command goes on from there") as stopped:
        load(cluster.connection, impatient, outage)
    outage.join()
    assert stopped.value.num_samples_done is not None
    assert 0 < stopped.value.num_samples_done < NUM_SAMPLES
    wait_until(lambda: is_catalog_alone_away(cluster.connection))
    restart_catalog(cluster)
    manifest = load(cluster.connection, CONFIG)
    report = verify(cluster.connection, manifest)
    assert report.is_clean, report
