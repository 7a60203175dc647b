"""Brokers with several log dirs on real volumes: each counted once, resized and cordoned while they run.

Volumes are tmpfs, which only root may mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, NewTopic

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.telemetry_collector import BrokerSnapshot, CollectorConfig, TopicPartition
from evenload.telemetry_collector.collector import Collector, sample_once

MIB = 1 << 20
CONFIG = CollectorConfig(interval_s=0.2, full_interval_s=0.4, deadline_s=2.0, age_max_s=5.0)
NUM_PARTITIONS = 6
RECORD_BYTES = 200_000


@pytest.fixture(scope="module")
def volumes(
    may_mount: None,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Path]]:
    """Three volumes of 96, 64 and 80 MiB, gone when the test ends, however it ends."""
    root = tmp_path_factory.mktemp("volumes")
    mounted = {}
    with ExitStack() as mounts:
        for name, size_mib in (("large", 96), ("small", 64), ("shared", 80)):
            mounted[name] = root / name
            mounted[name].mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(mounted[name]))
            mounts.callback(_run, "umount", "--lazy", str(mounted[name]))
        yield mounted


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)


@pytest.fixture(scope="module")
def cluster(volumes: dict[str, Path]) -> Iterator[LocalCluster]:
    """Broker 1 has two volumes of different size, broker 2 two log dirs on one."""
    dirs = {
        1: [volumes["large"] / "data", volumes["small"] / "data"],
        2: [volumes["shared"] / "a", volumes["shared"] / "b"],
    }
    properties = {broker: {"log.dirs": ",".join(map(str, paths))} for broker, paths in dirs.items()}
    with temporary_cluster(num_brokers=2, properties_by_broker=properties) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def connection(cluster: LocalCluster) -> Connection:
    """Nothing is configured: brokers tell their capacities."""
    return cluster.connection.model_copy(update={"capacity_bytes_by_broker": {}})


@pytest.fixture(scope="module")
def topic(connection: Connection) -> str:
    """Partitions on broker 1, which Kafka spreads over its log dirs by number."""
    with closing(open_admin(connection)) as admin:
        assignments = {n: [1] for n in range(NUM_PARTITIONS)}
        admin.create_topics(
            [NewTopic("t", num_partitions=-1, replication_factor=-1, replica_assignments=assignments)]
        )
    producer = confluent_producer(connection)
    for n in range(10 * NUM_PARTITIONS):
        producer.produce("t", os.urandom(RECORD_BYTES), partition=n % NUM_PARTITIONS)
    assert producer.flush(60) == 0
    return "t"


def _broker_when(
    connection: Connection, broker_id: int, condition: Callable[[BrokerSnapshot], bool]
) -> BrokerSnapshot:
    """A broker as soon as it is as it should become, which takes Kafka a moment."""
    with Collector(connection, CONFIG, []) as collector:
        for _ in range(200):
            broker = collector.snapshot(max_age_s=0.0).brokers[broker_id]
            if condition(broker):
                return broker
    raise AssertionError(f"it never came to be: {broker}")


def _folders(path: Path, topic: str) -> set[TopicPartition]:
    return {TopicPartition(topic, int(folder.name.rpartition("-")[2])) for folder in path.glob(f"{topic}-*")}


def test_each_volume_counts_with_what_lies_on_it(
    connection: Connection, topic: str, volumes: dict[str, Path]
) -> None:
    broker = sample_once(connection, [topic]).brokers[1]
    assert set(broker.log_dirs) == {str(volumes[name] / "data") for name in ("large", "small")}
    for name, size_bytes in (("large", 96 * MIB), ("small", 64 * MIB)):
        log_dir = broker.log_dirs[str(volumes[name] / "data")]
        volume = os.statvfs(volumes[name])
        assert log_dir.capacity_bytes == size_bytes
        held_bytes = (volume.f_blocks - volume.f_bavail) * volume.f_frsize
        assert log_dir.used_bytes == pytest.approx(held_bytes, abs=MIB)
        assert log_dir.topic_partitions == _folders(volumes[name] / "data", topic)
        assert len(log_dir.topic_partitions) >= 2
    assert broker.capacity_bytes == 160 * MIB
    assert broker.used_bytes == sum(log_dir.used_bytes for log_dir in broker.log_dirs.values())
    assert broker.used_bytes > 10 * NUM_PARTITIONS * RECORD_BYTES


def test_a_volume_of_two_log_dirs_counts_once(connection: Connection) -> None:
    broker = sample_once(connection).brokers[2]
    assert broker.capacity_bytes == 80 * MIB
    assert broker.used_bytes < 80 * MIB
    assert broker.log_dirs == {}


def test_a_volume_that_is_resized_while_its_broker_runs_has_its_new_capacity(
    connection: Connection, volumes: dict[str, Path]
) -> None:
    try:
        _run("mount", "-o", "remount,size=48m", str(volumes["small"]))
        _broker_when(connection, 1, lambda broker: broker.capacity_bytes == 144 * MIB)
        _run("mount", "-o", "remount,size=128m", str(volumes["small"]))
        _broker_when(connection, 1, lambda broker: broker.capacity_bytes == 224 * MIB)
    finally:
        _run("mount", "-o", "remount,size=64m", str(volumes["small"]))
    broker = _broker_when(connection, 1, lambda broker: broker.capacity_bytes == 160 * MIB)
    assert broker.is_reachable


def test_a_broker_is_cordoned_once_all_of_its_log_dirs_are(
    connection: Connection, volumes: dict[str, Path]
) -> None:
    large, small = (str(volumes[name] / "data") for name in ("large", "small"))
    assert not sample_once(connection).brokers[1].is_cordoned
    _cordon(connection, 1, f"{large},{small}")
    assert _broker_when(connection, 1, lambda broker: broker.is_cordoned).is_reachable
    assert not sample_once(connection).brokers[2].is_cordoned
    _cordon(connection, 1, large)
    _broker_when(connection, 1, lambda broker: not broker.is_cordoned)
    _cordon(connection, 1, None)
    assert not sample_once(connection).brokers[1].is_cordoned


def _cordon(connection: Connection, broker_id: int, log_dirs: str | None) -> None:
    change = (AlterConfigOp.DELETE, "") if log_dirs is None else (AlterConfigOp.SET, log_dirs)
    resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id), {"cordoned.log.dirs": change})
    with closing(open_admin(connection)) as admin:
        admin.alter_configs([resource], raise_on_unknown=False)
