"""What the collector says of real brokers is what lies in their folders."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka.admin import NewTopic

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.local_cluster import LocalCluster
from evenload.telemetry_collector import CollectorConfig, NoFreshSnapshotError, TopicPartition
from evenload.telemetry_collector.collector import Collector, sample_once

CONFIG = CollectorConfig(interval_s=0.2, full_interval_s=1.0, deadline_s=2.0, age_max_s=5.0)
SELDOM = CollectorConfig(interval_s=600.0, full_interval_s=600.0, age_max_s=1000.0)
RECORD_BYTES = 100_000


def _create(connection: Connection, topic: str, assignments: dict[int, list[int]]) -> None:
    with closing(open_admin(connection)) as admin:
        admin.create_topics(
            [NewTopic(name=topic, num_partitions=-1, replication_factor=-1, replica_assignments=assignments)]
        )


def _write(connection: Connection, topic: str, num_records_by_partition: dict[int, int]) -> None:
    producer = confluent_producer(connection, compression_type="none")
    for partition, num_records in num_records_by_partition.items():
        for _ in range(num_records):
            producer.produce(topic, os.urandom(RECORD_BYTES), partition=partition)
    assert producer.flush(60) == 0


def _bytes_on_disk(data_path: Path) -> dict[TopicPartition, int]:
    """Sizes of the segments below a log dir, by the name of the folder that they are in."""
    found = {}
    for folder in data_path.iterdir():
        name, _, partition = folder.name.rpartition("-")
        if folder.is_dir() and partition.isdecimal() and not name.startswith("__cluster_metadata"):
            segments = folder.glob("*.log")
            found[TopicPartition(name, int(partition))] = sum(s.stat().st_size for s in segments)
    return found


@pytest.fixture(scope="module")
def topic(connection: Connection) -> Iterator[str]:
    """Four partitions of two replicas, unevenly filled; broker 3 leads the one that is empty at first."""
    name = f"measured-{uuid.uuid4().hex[:8]}"
    _create(connection, name, {0: [1, 2], 1: [2, 3], 2: [3, 1], 3: [2, 1]})
    _write(connection, name, {0: 3, 1: 5, 3: 2})
    yield name
    with closing(open_admin(connection)) as admin:
        admin.delete_topics([name])


def test_used_bytes_are_what_lies_in_the_log_folders(
    cluster: LocalCluster, connection: Connection, topic: str
) -> None:
    snapshot = sample_once(connection)
    on_disk = {broker_id: _bytes_on_disk(cluster.data_path(broker_id)) for broker_id in cluster.broker_ids}
    for broker_id, sizes in on_disk.items():
        broker = snapshot.brokers[broker_id]
        assert broker.bytes_by_topic_partition == sizes
        assert broker.used_bytes == sum(sizes.values())
        assert broker.capacity_bytes == connection.capacity_bytes_by_broker[broker_id]
        assert broker.usable_bytes == broker.capacity_bytes - broker.used_bytes
        assert broker.is_reachable
    led = {
        broker_id: sum(on_disk[broker_id][TopicPartition(topic, n)] for n in partitions)
        for broker_id, partitions in {1: [0], 2: [1, 3], 3: [2]}.items()
    }
    assert snapshot.leader_bytes(topic) == led
    assert led[2] > 7 * RECORD_BYTES


def test_the_layout_is_the_one_that_was_asked_for(connection: Connection, topic: str) -> None:
    partitions = sample_once(connection, [topic]).topics[topic]
    assert {n: p.replica_ids for n, p in partitions.items()} == {0: (1, 2), 1: (2, 3), 2: (3, 1), 3: (2, 1)}
    assert {n: p.leader_id for n, p in partitions.items()} == {0: 1, 1: 2, 2: 3, 3: 2}
    assert {n: set(p.isr_ids) for n, p in partitions.items()} == {0: {1, 2}, 1: {2, 3}, 2: {3, 1}, 3: {2, 1}}


def test_volumes_tell_capacity_and_use_where_none_is_configured(
    cluster: LocalCluster, connection: Connection, topic: str
) -> None:
    asks_volumes = connection.model_copy(update={"capacity_bytes_by_broker": {}})
    volume = shutil.disk_usage(cluster.data_path(1))
    slack = 1 << 30  # others write to the same volume meanwhile
    broker = sample_once(asks_volumes, [topic]).brokers[1]
    assert broker.capacity_bytes == volume.total
    assert broker.used_bytes == pytest.approx(volume.total - volume.free, abs=slack)
    assert broker.usable_bytes == broker.capacity_bytes - broker.used_bytes
    assert broker.bytes_by_topic_partition == {
        key: size for key, size in _bytes_on_disk(cluster.data_path(1)).items() if key.topic == topic
    }


def test_a_snapshot_demanded_after_writing_holds_what_was_written(connection: Connection, topic: str) -> None:
    with Collector(connection, SELDOM, [topic]) as collector:
        before = collector.snapshot().leader_bytes(topic)
        _write(connection, topic, {2: 4})
        after = collector.snapshot(max_age_s=0.0).leader_bytes(topic)
    assert after[3] - before[3] > 4 * RECORD_BYTES
    assert {b: after[b] for b in (1, 2)} == {b: before[b] for b in (1, 2)}


def test_a_topic_watched_later_is_measured_with_its_sizes(connection: Connection, topic: str) -> None:
    with Collector(connection, SELDOM, []) as collector:
        assert collector.snapshot().topics == {}
        collector.watch([topic])
        assert collector.snapshot(max_age_s=0.0).leader_bytes(topic)[2] > 7 * RECORD_BYTES


def test_asking_for_a_topic_never_creates_it(connection: Connection, topic_name: str) -> None:
    with Collector(connection, CONFIG, [topic_name]) as collector:
        for _ in range(3):
            assert collector.snapshot(max_age_s=0.0).topics == {}
    with closing(open_admin(connection)) as admin:
        assert topic_name not in admin.list_topics()


def test_the_cache_follows_the_cluster_by_itself(
    connection: Connection, topic: str, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    with Collector(connection, CONFIG, [topic]) as collector:
        before = collector.snapshot().leader_bytes(topic)[3]
        _write(connection, topic, {2: 1})

        def is_shown() -> bool:
            cached = collector.cache.latest()
            assert cached is not None
            return cached.snapshot.leader_bytes(topic)[3] > before + RECORD_BYTES

        wait_until(is_shown)


def test_closing_leaves_no_thread_and_no_file_open(connection: Connection) -> None:
    sample_once(connection)  # what is loaded once and kept is there by now
    threads = set(threading.enumerate())
    files = len(os.listdir("/proc/self/fd"))
    collectors = [Collector(connection, CONFIG).start() for _ in range(3)]
    for collector in collectors:
        collector.snapshot()
    # Two threads each, however many brokers there are.
    assert len(set(threading.enumerate()) - threads) == 2 * len(collectors)
    for collector in collectors:
        collector.close()
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= files


def test_no_broker_at_the_address_is_one_sentence_within_the_time_given() -> None:
    nowhere = Connection(bootstrap_servers="127.0.0.1:1")
    threads = set(threading.enumerate())
    with pytest.raises(
        NoFreshSnapshotError, match=r"cluster at 127.0.0.1:1 within 1 s \(cluster_metadata: "
    ) as e:
        sample_once(nowhere, timeout_s=1.0)
    assert "ECONNREFUSED" in str(e.value)
    assert set(threading.enumerate()) <= threads


def test_racks_are_known_and_several_log_dirs_add_up(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path, topic_name: str
) -> None:
    log_dirs = [tmp_path / "first", tmp_path / "second"]
    cluster = make_cluster(
        num_brokers=1,
        properties_by_broker={1: {"broker.rack": "attic", "log.dirs": ",".join(map(str, log_dirs))}},
    )
    _create(cluster.connection, topic_name, {n: [1] for n in range(4)})
    _write(cluster.connection, topic_name, dict.fromkeys(range(4), 2))
    configured = sample_once(cluster.connection).brokers[1]
    on_disk = [_bytes_on_disk(log_dir) for log_dir in log_dirs]
    assert all(on_disk)
    assert configured.bytes_by_topic_partition == {**on_disk[0], **on_disk[1]}
    assert configured.used_bytes == sum(on_disk[0].values()) + sum(on_disk[1].values())
    assert configured.rack == "attic"
    # Both are on one volume, which counts once.
    asks_volumes = cluster.connection.model_copy(update={"capacity_bytes_by_broker": {}})
    measured = sample_once(asks_volumes).brokers[1]
    volume = shutil.disk_usage(log_dirs[0])
    assert measured.capacity_bytes == volume.total
    assert measured.log_dirs == {}
    assert measured.utilisation == pytest.approx(1 - volume.free / volume.total, abs=0.01)


def test_a_topic_with_retention_by_size_never_holds_more_than_is_said(
    make_cluster: Callable[..., LocalCluster],
    topic_name: str,
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    checks_often = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
    cluster = make_cluster(num_brokers=1, broker_properties=checks_often)
    limits = {"retention.bytes": "1000000", "segment.bytes": "1048576", "file.delete.delay.ms": "0"}
    with closing(open_admin(cluster.connection)) as admin:
        admin.create_topics(
            [
                NewTopic(topic_name, num_partitions=2, replication_factor=1, topic_configs=limits),
                NewTopic("unlimited", num_partitions=1, replication_factor=1),
            ]
        )
    config = CONFIG.model_copy(update={"metrics_interval_s": 0.2})
    with Collector(cluster.connection, config, [topic_name, "unlimited"]) as collector:
        _write(cluster.connection, topic_name, {0: 60})
        partition = TopicPartition(topic_name, 0)

        def is_cut() -> bool:
            nonlocal snapshot
            snapshot = collector.snapshot(max_age_s=0.0)
            held = snapshot.brokers[1].bytes_by_topic_partition.get(partition, 0)
            return bool(snapshot.topic_configs) and 0 < held <= 2_048_576

        snapshot = collector.snapshot()
        wait_until(is_cut)
    held = snapshot.brokers[1].bytes_by_topic_partition[partition]
    assert snapshot.config_of(topic_name).partition_max_bytes == 2_048_576
    assert snapshot.growth_max_bytes(topic_name, 0) == 2_048_576 - held < 2_048_576
    assert snapshot.growth_max_bytes(topic_name, 1) == 2_048_576
    assert snapshot.growth_max_bytes("unlimited", 0) is None
