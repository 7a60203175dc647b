"""A broker is down before a load begins, the first of them: the others do."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from evenload.dataset_catalog.catalog import DATASETS_TOPIC, LOADS_TOPIC
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.loading import topic as load_topic
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.topics import create_topic, default_replication
from evenload.local_cluster import LocalCluster


def test_a_dataset_is_loaded_while_the_first_broker_is_down(
    make_cluster: Callable[..., LocalCluster],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    monkeypatch.setattr(load_topic, "_SNAPSHOT_TIMEOUT_S", 2.0)
    cluster = make_cluster(num_brokers=3, broker_properties={"default.replication.factor": "2"})
    leftover = "flowers-v1-0badcafe"
    create_topic(
        cluster.connection,
        leftover,
        num_partitions=1,
        replication=1,
        assignments=[(1,)],
        configs={},
        timeout_s=60,
    )
    cluster.kill_broker(1)
    assert default_replication(cluster.connection, "any", timeout_s=60) == 2  # also before it is missed
    with open_admin(cluster.connection) as admin:
        wait_until(lambda: any(broker["is_fenced"] for broker in admin.describe_cluster()["brokers"]))
    assert default_replication(cluster.connection, "any", timeout_s=60) == 2

    with caplog.at_level(logging.WARNING):
        manifest = load_dataset({"x": list(range(100))}, "flowers", connection=cluster.connection)

    assert verify(cluster.connection, manifest).is_clean
    assert "what dead loaders of flowers may have left is not swept up" in caplog.text
    with open_admin(cluster.connection) as admin:
        described = admin.describe_topics([DATASETS_TOPIC, LOADS_TOPIC, manifest.topic])
    copies = {topic["name"]: len(topic["partitions"][0]["replica_nodes"]) for topic in described}
    # The catalog has its three copies all the same: the third comes when its broker is back.
    assert copies == {DATASETS_TOPIC: 3, LOADS_TOPIC: 3, manifest.topic: 2}
