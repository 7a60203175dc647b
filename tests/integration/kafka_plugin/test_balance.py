"""Replicas are moved on real brokers until they are level; data and other people's settings stay whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka.admin import ConfigResource

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.balancing.balance import cancel_balance, execute_balance, preview_balance
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.balancing.log import BalanceLog
from evenload.kafka_plugin.errors import BalanceError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.telemetry_collector.collector import sample_once

MIB = 1 << 20
CAPACITY = 200 * MIB
FAST = BalanceConfig(throttle_bytes_per_s=200 * MIB, look_s=0.2, poll_s=0.05)


def make_topic(connection: Connection, topic: str, assignments: list[tuple[int, ...]]) -> None:
    create_topic(
        connection,
        topic,
        num_partitions=len(assignments),
        replication=None,
        assignments=assignments,
        configs={},
        timeout_s=60,
    )


def fill(connection: Connection, topic: str, bytes_by_partition: dict[int, int]) -> None:
    producer = confluent_producer(connection)
    value = np.random.default_rng(0).bytes(100_000)
    for partition, size_bytes in bytes_by_partition.items():
        for _ in range(size_bytes // len(value)):
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
    assert producer.flush(60) == 0


def load(connection: Connection, name: str, size_bytes: int, **options: Any) -> DatasetManifest:
    rng = np.random.default_rng(1)
    samples = {"x": rng.integers(0, 255, (size_bytes // 3072, 3072), np.uint8)}
    return load_dataset(samples, name, connection=connection, **options)


@pytest.fixture(scope="module")
def skewed() -> Iterator[tuple[LocalCluster, DatasetManifest]]:
    """Brokers filled 70 / 20 / 10, a dataset among what they hold."""
    with temporary_cluster(num_brokers=3, capacity_bytes=[CAPACITY] * 3) as cluster:
        connection = cluster.connection
        manifest = load(connection, "held", 12 * MIB, partitions=6)
        make_topic(connection, "old", [(1,)] * 60 + [(2,)] * 15 + [(3,)] * 6)
        sizes = {number: (13 + number % 10) * MIB // 8 for number in range(81)}
        fill(connection, "old", sizes)
        yield cluster, manifest


def test_old_skew_is_levelled_with_few_bytes_while_producers_write(
    skewed: tuple[LocalCluster, DatasetManifest],
    throttle_settings: Callable[[Connection], dict[str, str]],
    tmp_path: Path,
) -> None:
    cluster, manifest = skewed
    connection = cluster.connection
    shown = preview_balance(connection, config=FAST)
    assert shown.plan.spread_before > 0.55
    assert shown.after is None
    assert preview_balance(connection, config=FAST).plan.spread_before == shown.plan.spread_before

    weights_path = tmp_path / "weights.json"
    weights_path.write_text('{"brokers": {"3": 0}}')
    drained = preview_balance(connection.model_copy(update={"weights_path": weights_path}), config=FAST)
    assert {broker_id for move in drained.plan.moves for broker_id in move.added_ids} == {2}
    assert any(note.startswith("broker 3 takes nothing:") for note in drained.notes)

    sent, is_over = 0, threading.Event()
    make_topic(connection, "live", [(1,), (2,), (3,)])
    delivered: list[int] = []

    def write() -> None:
        nonlocal sent
        producer = confluent_producer(connection)
        while not is_over.is_set():
            for topic, partition in (("live", sent % 3), ("old", sent % 60)):
                producer.produce(
                    topic,
                    b"x" * 100,
                    partition=partition,
                    on_delivery=lambda error, _: delivered.append(error is None),
                )
            sent += 2
            producer.poll(0)
            is_over.wait(0.005)
        assert producer.flush(60) == 0

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    verified = []
    try:
        outcome = execute_balance(
            connection,
            config=FAST,
            progress=lambda at: (
                seen.append(at),
                verified.append(verify(connection, manifest).is_clean) if len(seen) % 10 == 1 else None,
            ),
        )
    finally:
        is_over.set()
        writer.join()
    assert outcome.after is not None
    assert outcome.after.utilisation_spread < 0.01
    assert outcome.moved_bytes == outcome.plan.moved_bytes
    assert outcome.plan.moved_bytes <= 1.1 * outcome.plan.least_bytes + 8 * MIB
    assert len(outcome.plan.moves) > 1
    assert verified
    assert all(verified)
    assert (len(delivered), all(delivered)) == (sent, True)
    assert verify(connection, manifest).is_clean
    assert throttle_settings(connection) == {}
    assert BalanceLog(connection, timeout_s=60).read() is None
    assert not execute_balance(connection, config=FAST).plan.moves


def test_the_command_shows_moves_and_does_them(
    make_cluster: Callable[..., LocalCluster],
    tmp_path: Path,
    throttle_settings: Callable[[Connection], dict[str, str]],
) -> None:
    cluster = make_cluster(num_brokers=3, capacity_bytes=[100 * MIB, 100 * MIB, 50 * MIB])
    connection = cluster.connection
    make_topic(connection, "twice", [(1, 2)] * 6)
    fill(connection, "twice", dict.fromkeys(range(6), 4 * MIB))

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("evenload")), "balance", *arguments],
            env={**os.environ, "EVENLOAD_HOME": str(cluster.home)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    dry = command()
    assert dry.returncode == 0, dry.stderr
    assert "twice-" in dry.stdout
    assert "--execute moves it" in dry.stdout
    shown = json.loads(command("--json").stdout)
    assert (shown["executed"], shown["reached_spread"]) == (False, None)
    assert sum(move["size_bytes"] for move in shown["moves"]) == shown["planned_bytes"]

    done = command("--execute", "--throttle", "100MiB/s", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["moved_bytes"] == shown["planned_bytes"]
    assert document["reached_spread"] == pytest.approx(shown["predicted_spread"], abs=0.01)
    assert throttle_settings(connection) == {}

    drained = command("--execute", "--drain", "3", "--json")
    assert drained.returncode == 0, drained.stderr
    placed = sample_once(connection).topics["twice"].values()
    assert all(3 not in partition.replica_ids for partition in placed)


def test_somebody_elses_throttle_and_reassignment_stay(
    make_cluster: Callable[..., LocalCluster], throttle_settings: Callable[[Connection], dict[str, str]]
) -> None:
    connection = make_cluster(num_brokers=3, capacity_bytes=[100 * MIB] * 3).connection
    make_topic(connection, "old", [(1,)] * 8)
    fill(connection, "old", dict.fromkeys(range(8), 3 * MIB))
    theirs = {
        ("broker", "1", "leader.replication.throttled.rate"): str(150 * MIB),
        ("topic", "old", "follower.replication.throttled.replicas"): "0:3,7:2",
    }
    with open_admin(connection) as admin:
        for (kind, name, setting), value in theirs.items():
            admin.alter_configs([ConfigResource(kind, name, {setting: value})], raise_on_unknown=False)
    before = throttle_settings(connection)
    outcome = execute_balance(connection, config=FAST)
    assert outcome.moved_bytes > 10 * MIB
    assert throttle_settings(connection) == before
    assert len(before) == 2
    assert cancel_balance(connection) == []
    with pytest.raises(BalanceError, match="There is no broker 4"):
        preview_balance(connection, drained=[4])
