"""Brokers are killed, paused and restarted while a dataset is read: nothing is lost, nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kafka.admin import NewTopic

from evenload.dataset_catalog.manifest import DatasetManifest, Encoding
from evenload.dataset_catalog.testing import make_manifest, make_records, write_dataset, write_records
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.local_cluster import LocalCluster
from evenload.ray_trainer.errors import FetchTimeoutError
from evenload.ray_trainer.fetching.fetch import BlockRange, ExactRangeFetcher, FetchConfig, fetch_all
from evenload.ray_trainer.reading.reader import DatasetReader

NUM_SAMPLES = 600
ROW_BYTES = 60_000  # so that little of the dataset is read when the trouble comes
MakeCluster = Callable[..., LocalCluster]


def make_samples() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": list(range(NUM_SAMPLES)), "text": ["x" * ROW_BYTES] * NUM_SAMPLES}
    )


def open_reader(
    manifest: DatasetManifest,
    connection: Connection,
    *,
    hold_whole: bool = False,
    config: FetchConfig | None = None,
) -> DatasetReader:
    return DatasetReader(
        manifest,
        global_batch_size=10,
        connection=connection,
        hold_whole=hold_whole,
        prefetch_bytes=1,
        shuffle=False,  # one lane: with many, so small a dataset is nearly all open from the first step on
        fetch_config=config,
    )


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("fetch-", "decode-"))]


def read_with_trouble(readers: list[DatasetReader], trouble: Callable[[], None]) -> list[list[int]]:
    """The ids that each reader gives in an epoch, step by step together; trouble comes after the third."""
    seen: list[list[int]] = [[] for _ in readers]
    for count, batches in enumerate(zip(*readers, strict=True)):
        for ids, batch in zip(seen, batches, strict=True):
            ids += batch["id"].tolist()
        if count == 2:
            assert all(each.num_wire_bytes < 0.7 * each.dataset.num_bytes for each in readers)
            trouble()
    for reader in readers:
        reader.close()
    return [sorted(ids) for ids in seen]


def restarting(cluster: LocalCluster, broker_id: int) -> threading.Thread:
    """Kill a broker, and begin to start it again."""
    cluster.kill_broker(broker_id)
    thread = threading.Thread(target=cluster.restart_broker, args=(broker_id,))
    thread.start()
    return thread


def test_a_broker_that_is_killed_and_restarted_costs_no_sample(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(num_brokers=2)
    connection = cluster.connection
    encodings: list[Encoding] = ["packed", "record"]
    datasets = [
        write_dataset(connection, make_samples(), topic=encoding, num_partitions=4, encoding=encoding)
        for encoding in encodings
    ]
    restarts: list[threading.Thread] = []
    readers = [open_reader(dataset, connection) for dataset in datasets]
    seen = read_with_trouble(readers, lambda: restarts.append(restarting(cluster, 1)))
    assert seen == [list(range(NUM_SAMPLES))] * 2
    restarts[0].join()

    # Held whole, all the reading is at the beginning: the broker is down when it begins.
    reader = open_reader(datasets[0], connection, hold_whole=True)
    restarts.append(restarting(cluster, 2))
    assert sorted(sample for batch in reader for sample in batch["id"].tolist()) == list(range(NUM_SAMPLES))
    reader.close()
    restarts[1].join()


def test_a_broker_that_stays_away_is_an_error_and_reading_goes_on_when_it_is_back(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(num_brokers=2)
    manifest = write_dataset(cluster.connection, make_samples(), topic="away", num_partitions=4)
    config = FetchConfig(retry_timeout_s=2, request_timeout_s=2, connect_timeout_s=2)
    reader = open_reader(manifest, cluster.connection, config=config)
    seen: list[int] = []

    def read_on() -> None:
        for batch in reader:
            seen.extend(batch["id"].tolist())
            if len(seen) == 30:
                cluster.kill_broker(2)

    with pytest.raises(FetchTimeoutError, match="topic 'away' could not be read"):
        read_on()
    assert reader.cursor.samples_consumed == len(seen) < NUM_SAMPLES
    cluster.restart_broker(2)
    read_on()
    assert sorted(seen) == list(range(NUM_SAMPLES))
    reader.close()


def test_a_leader_that_dies_or_hangs_is_followed_to_its_successor(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(num_brokers=3)
    manifest = write_replicated(cluster.connection, "replicated")
    config = FetchConfig(request_timeout_s=3, connect_timeout_s=3)
    reader = open_reader(manifest, cluster.connection, config=config)
    assert read_with_trouble([reader], lambda: cluster.kill_broker(1)) == [list(range(NUM_SAMPLES))]
    cluster.restart_broker(1)
    reader = open_reader(manifest, cluster.connection, config=config)
    assert read_with_trouble([reader], lambda: cluster.pause_broker(2)) == [list(range(NUM_SAMPLES))]
    cluster.resume_broker(2)


def test_what_is_in_the_readers_rack_is_read_there_until_it_dies_or_hangs(
    make_cluster: MakeCluster,
    wait_until: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(
        num_brokers=3,
        broker_properties={
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        },
        properties_by_broker={
            broker_id: {"broker.rack": rack} for broker_id, rack in enumerate(["here", "there", "far"], 1)
        },
    )
    manifest = write_replicated(cluster.connection, "racks")
    assert min(shares_by_broker(manifest, cluster.connection)) > 0.1
    monkeypatch.setenv("EVENLOAD_CLIENT_RACK", "there")
    # A follower hears a moment later than its leader how far consumers may read.
    wait_until(lambda: shares_by_broker(manifest, cluster.connection)[1] > 0.99)

    config = FetchConfig(request_timeout_s=3, connect_timeout_s=3)
    for trouble in (cluster.kill_broker, cluster.pause_broker):
        reader = open_reader(manifest, cluster.connection, config=config)
        assert read_with_trouble([reader], lambda harm=trouble: harm(2)) == [list(range(NUM_SAMPLES))]  # type: ignore[misc]
        if trouble == cluster.kill_broker:
            cluster.restart_broker(2)
            wait_until(lambda: shares_by_broker(manifest, cluster.connection)[1] > 0.99)
    cluster.resume_broker(2)


def shares_by_broker(manifest: DatasetManifest, connection: Connection) -> list[float]:
    """Which part of a dataset comes from brokers 1 to 3."""
    extents = manifest.extent_arrays()
    wanted = [
        BlockRange(int(partition), int(first) + n, 1, 10 * ROW_BYTES)
        for partition, first, count in zip(
            extents.partition, extents.first_offset, extents.num_records, strict=True
        )
        for n in range(count)
    ]
    with ExactRangeFetcher.of_manifest(connection, manifest) as fetcher:
        assert len(list(fetch_all(fetcher, wanted))) == manifest.num_records
        received = fetcher.wire_bytes_by_broker
    return [received.get(broker_id, 0) / sum(received.values()) for broker_id in (1, 2, 3)]


def write_replicated(connection: Connection, topic: str) -> DatasetManifest:
    with open_admin(connection) as admin:
        admin.create_topics([NewTopic(topic, 6, 3)])
    with TopicAdmin(connection, timeout_s=60) as topics:
        for partition in range(6):
            topics.wait_for_leader(topic, partition)
        created = topics.describe(topic)
    assert created is not None
    placed = write_records(connection, topic, make_records(make_samples()), 6, 13)
    return make_manifest(make_samples(), placed, topic=topic, topic_id=created.topic_id)
