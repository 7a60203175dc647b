"""A load puts nothing on a broker that its operator drains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evenload.dataset_catalog.verify import verify
from evenload.kafka_plugin.loading.forecast import forecast_load
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.telemetry_collector.collector import sample_once


def test_a_drained_broker_gets_no_partition_and_no_byte_as_the_forecast_says(
    cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({"brokers": {"2": 0}}))
    connection = cluster.connection.model_copy(update={"weights_path": path})
    samples = {"x": np.zeros((1000, 1000), np.uint8)}
    told = forecast_load(connection, topic_name, size_bytes=100_000_000, num_partitions=6, replication=1)
    balanced = told.strategies["balanced"].expected
    assert balanced[2] == told.possible.now[2]
    assert all(balanced[broker_id] > told.possible.now[broker_id] for broker_id in (1, 3))
    manifest = load_dataset(samples, topic_name, connection=connection, partitions=6, replication=1)
    layout = sample_once(connection, [manifest.topic]).topics[manifest.topic]
    assert {placed.leader_id for placed in layout.values()} == {1, 3}
    assert verify(connection, manifest).is_clean
    again = forecast_load(connection, topic_name, size_bytes=100_000_000).strategies["balanced"].expected
    assert again[2] == pytest.approx(balanced[2], abs=1e-3)  # the catalog has grown
