"""A load puts nothing on a broker that its operator drains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dataset_catalog.verify import verify
from evenload.local_cluster import LocalCluster
from kafka_plugin.loader import load_dataset
from telemetry_collector.collector import sample_once


def test_a_drained_broker_gets_no_partition_and_no_byte(
    cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps({"brokers": {"2": 0}}))
    connection = cluster.connection.model_copy(update={"weights_path": path})
    samples = {"x": np.zeros((1000, 1000), np.uint8)}
    manifest = load_dataset(samples, topic_name, connection=connection, partitions=6, replication=1)
    layout = sample_once(connection, [manifest.topic]).topics[manifest.topic]
    assert {placed.leader_id for placed in layout.values()} == {1, 3}
    assert verify(connection, manifest).is_clean
