"""Exact ranges from real brokers: the right records, every byte once, or a sentence that says why not."""

from __future__ import annotations

import queue
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kafka.admin import NewTopic

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.testing import (
    PlacedRecord,
    create_topic,
    make_batch,
    make_manifest,
    make_records,
    write_dataset,
    write_records,
)
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.ray_trainer.errors import (
    CorruptRecordError,
    FetchRefusedError,
    FetchTimeoutError,
    ReadError,
    RecordsGoneError,
)
from evenload.ray_trainer.fetching.fetch import (
    BlockFetcher,
    BlockRange,
    ExactRangeFetcher,
    FetchConfig,
    FetchedBlock,
    fetch_all,
    parse_topic_id,
)
from evenload.ray_trainer.fetching.testing import MemoryFetcher


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("fetch-")}


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    assert threads() == set()


def fetch_one(fetcher: BlockFetcher, wanted: BlockRange) -> FetchedBlock:
    (block,) = fetch_all(fetcher, [wanted])
    return block


def ranges_of(manifest: DatasetManifest) -> list[BlockRange]:
    extents = manifest.extent_arrays()
    mean = manifest.num_bytes // manifest.num_records
    return [
        BlockRange(int(partition), int(first) + n, 1, mean)
        for partition, first, count in zip(
            extents.partition, extents.first_offset, extents.num_records, strict=True
        )
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def placed(connection: Connection) -> tuple[str, str, list[PlacedRecord]]:
    """A topic, its id, and records in it, in transactions: several records a batch, markers between."""
    topic = f"fetch-ranges-placed-{uuid.uuid4().hex[:8]}"  # made twice when its tests run in two stretches
    created = create_topic(connection, topic, num_partitions=3)
    records = make_records(make_batch(300), samples_per_record=5)
    return topic, created.topic_id, write_records(connection, topic, records, 3, 13)


@pytest.mark.parametrize("kind", ["brokers", "memory"])
def test_a_fetcher_gives_exactly_the_records_asked_for_or_says_what_is_missing(
    connection: Connection, placed: tuple[str, str, list[PlacedRecord]], kind: str
) -> None:
    topic, topic_id, records = placed
    values = {(each.partition, each.offset): each.record.value for each in records}
    fetcher: BlockFetcher
    fetcher = ExactRangeFetcher(connection, topic, topic_id) if kind == "brokers" else MemoryFetcher(values)
    offsets = sorted(offset for partition, offset in values if partition == 1)
    gap = next(offset for offset in offsets if offset + 1 not in offsets and offset != offsets[-1]) + 1
    try:
        random = np.random.default_rng(5)
        order = [BlockRange(p, o, 1, 500) for p, o in random.permutation(list(values)).tolist()]
        for block in fetch_all(fetcher, order):
            wanted = block.wanted
            assert [bytes(v) for v in block.values] == [values[wanted.partition, wanted.first_offset]]
        longest = BlockRange(1, offsets[0], gap - offsets[0], 5000)
        fetched = fetch_one(fetcher, longest)
        assert [bytes(v) for v in fetched.values] == [values[1, o] for o in range(offsets[0], gap)]
        with pytest.raises(RecordsGoneError) as gone:
            fetch_one(fetcher, BlockRange(1, offsets[0], gap - offsets[0] + 1, 5000))
        assert gone.value.offset == gap
    finally:
        fetcher.close()


def test_what_nobody_expected_ends_the_fetch_with_an_error(
    connection: Connection, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_dataset(connection, make_batch(20), topic=topic_name, samples_per_record=5)

    def fail(*_: Any, **__: Any) -> int:
        raise MemoryError("no room for an answer")

    monkeypatch.setattr("evenload.ray_trainer.fetching.broker_link.take_records", fail)
    with (
        ExactRangeFetcher.of_manifest(connection, manifest) as fetcher,
        pytest.raises(FetchRefusedError, match="no room for an answer"),
    ):
        list(fetch_all(fetcher, ranges_of(manifest)))


def test_every_byte_goes_over_the_wire_once(connection: Connection, topic_name: str) -> None:
    created = create_topic(connection, topic_name, num_partitions=4)
    producer = confluent_producer(connection, batch_num_messages=1, message_max_bytes=1 << 20)
    values = [np.random.default_rng(n).bytes(60_000 + 1000 * n) for n in range(40)]
    for number, value in enumerate(values):
        producer.produce(topic_name, value, partition=number % 4)
    assert producer.flush(60) == 0
    with ExactRangeFetcher(connection, topic_name, created.topic_id) as fetcher:
        order = [BlockRange(n % 4, n // 4, 1, 1) for n in np.random.default_rng(0).permutation(40).tolist()]
        for block in fetch_all(fetcher, order):
            at = block.wanted
            assert block.values[0] == values[at.first_offset * 4 + at.partition]
        assert fetcher.num_wire_bytes < 1.01 * sum(map(len, values))


def test_a_long_range_of_small_records_is_read_whole_and_little_more(
    connection: Connection, topic_name: str
) -> None:
    created = create_topic(connection, topic_name, num_partitions=1)
    producer = confluent_producer(connection, batch_size=16_384, linger_ms=50)
    values = [np.random.default_rng(n).bytes(200) for n in range(5000)]
    for value in values:
        producer.produce(topic_name, value, partition=0)
    assert producer.flush(60) == 0
    with ExactRangeFetcher(connection, topic_name, created.topic_id) as fetcher:
        block = fetch_one(fetcher, BlockRange(0, 700, 3600, 3600 * 200))
        assert [bytes(v) for v in block.values] == values[700:4300]
        assert fetcher.num_wire_bytes < 1.3 * 3600 * 200


@pytest.mark.parametrize("written_by", ["librdkafka", "broker"])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read_whoever_compressed_them(
    connection: Connection, topic_name: str, codec: str, written_by: str
) -> None:
    configs = {"compression.type": codec} if written_by == "broker" else {}
    with open_admin(connection) as admin:
        admin.create_topics([NewTopic(topic_name, 1, 1, topic_configs=configs)])
    with TopicAdmin(connection, timeout_s=60) as topics:
        topics.wait_for_leader(topic_name, 0)
        created = topics.describe(topic_name)
    assert created is not None
    options = {"compression_type": codec} if written_by == "librdkafka" else {}
    producer = confluent_producer(connection, linger_ms=20, **options)
    values = [(f"value {n} " * 500).encode() for n in range(100)]
    for value in values:
        producer.produce(topic_name, value, partition=0)
    assert producer.flush(60) == 0
    with ExactRangeFetcher(connection, topic_name, created.topic_id) as fetcher:
        block = fetch_one(fetcher, BlockRange(0, 3, 90, 90 * 4000))
        assert [bytes(v) for v in block.values] == values[3:93]
        assert fetcher.num_wire_bytes < sum(map(len, values)) / 4


def test_records_of_another_load_at_the_listed_offsets_are_refused(
    connection: Connection, topic_name: str
) -> None:
    manifest = write_dataset(connection, make_batch(40), topic=topic_name)
    other = manifest.model_copy(update={"load_id": "f" * 16})
    with ExactRangeFetcher.of_manifest(connection, manifest) as fetcher:
        assert len(list(fetch_all(fetcher, ranges_of(manifest)))) == manifest.num_records
    with (
        ExactRangeFetcher.of_manifest(connection, other) as fetcher,
        pytest.raises(CorruptRecordError, match="written by load 0123456789abcdef"),
    ):
        list(fetch_all(fetcher, ranges_of(manifest)))


def test_a_value_that_does_not_match_its_hash_is_refused(connection: Connection, topic_name: str) -> None:
    created = create_topic(connection, topic_name, num_partitions=1)
    records = make_records(make_batch(10))
    producer = confluent_producer(connection)
    producer.produce(topic_name, records[0].value, partition=0, headers=[("evenload", records[1].header)])
    producer.produce(topic_name, records[0].value, partition=0)
    assert producer.flush(60) == 0
    manifest = make_manifest(make_batch(10), [], topic=topic_name, topic_id=created.topic_id, num_samples=0)
    with ExactRangeFetcher.of_manifest(connection, manifest) as fetcher:
        with pytest.raises(CorruptRecordError, match="hash"):
            fetch_one(fetcher, BlockRange(0, 0, 1, 100))
        with pytest.raises(CorruptRecordError, match="no header"):
            fetch_one(fetcher, BlockRange(0, 1, 1, 100))


def test_an_offset_beyond_the_log_is_gone(
    connection: Connection, placed: tuple[str, str, list[PlacedRecord]]
) -> None:
    topic, topic_id, _ = placed
    with (
        ExactRangeFetcher(connection, topic, topic_id) as fetcher,
        pytest.raises(RecordsGoneError, match="OffsetOutOfRange"),
    ):
        fetch_one(fetcher, BlockRange(0, 10**9, 1, 100))


def test_a_topic_that_was_deleted_and_made_again_is_not_read(connection: Connection, topic_name: str) -> None:
    manifest = write_dataset(connection, make_batch(40), topic=topic_name)
    with open_admin(connection) as admin:
        admin.delete_topics([topic_name])
    _make_again(connection, topic_name)
    with (
        ExactRangeFetcher.of_manifest(connection, manifest) as fetcher,
        pytest.raises(FetchRefusedError, match="deleted and made again"),
    ):
        fetch_one(fetcher, ranges_of(manifest)[0])


def _make_again(connection: Connection, topic: str) -> None:
    for _ in range(100):
        try:
            create_topic(connection, topic, num_partitions=3)
            return
        except Exception as error:  # the deletion may still be going on
            if "TopicAlreadyExists" not in repr(error):
                raise
    raise AssertionError(f"{topic} could not be made again")


def test_a_cluster_that_can_not_be_reached_is_given_up_after_the_time_allowed() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    config = FetchConfig(retry_timeout_s=0.5)
    topic_id = "01234567-89ab-cdef-0123-456789abcdef"
    with (
        ExactRangeFetcher(Connection(bootstrap_servers=address), "t", topic_id, config=config) as fetcher,
        pytest.raises(FetchTimeoutError, match="could not be read") as raised,
    ):
        fetch_one(fetcher, BlockRange(0, 7, 1, 100))
    assert (raised.value.offset, raised.value.topic) == (7, "t")
    assert raised.value.retriable


def test_something_that_is_not_a_broker_is_an_error_and_no_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        connection = Connection(bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}")
        config = FetchConfig(retry_timeout_s=0, connect_timeout_s=2)
        topic_id = "01234567-89ab-cdef-0123-456789abcdef"
        with (
            ExactRangeFetcher(connection, "t", topic_id, config=config) as fetcher,
            pytest.raises(ReadError),
        ):
            fetch_one(fetcher, BlockRange(0, 0, 1, 100))
        thread.join()


def test_closing_ends_a_fetch_that_waits_for_an_offset_still_to_be_written(
    connection: Connection, topic_name: str
) -> None:
    created = create_topic(connection, topic_name, num_partitions=1)
    answered: queue.SimpleQueue[object] = queue.SimpleQueue()
    with ExactRangeFetcher(connection, topic_name, created.topic_id) as fetcher:
        fetcher.submit(BlockRange(0, 0, 1, 100), answered.put)
        while "fetch-broker" not in " ".join(threads()):
            pass
    assert answered.empty()


def test_a_record_that_is_written_later_is_read_when_it_is_there(
    connection: Connection, topic_name: str
) -> None:
    created = create_topic(connection, topic_name, num_partitions=1)
    answered: queue.SimpleQueue[FetchedBlock | Exception] = queue.SimpleQueue()
    with ExactRangeFetcher(connection, topic_name, created.topic_id) as fetcher:
        fetcher.submit(BlockRange(0, 0, 1, 100), answered.put)
        producer = confluent_producer(connection)
        producer.produce(topic_name, b"late", partition=0)
        assert producer.flush(60) == 0
        block = answered.get(timeout=60)
    assert isinstance(block, FetchedBlock)
    assert block.values == [b"late"]


def test_a_topic_id_is_read_as_a_uuid_or_as_kafka_prints_it() -> None:
    text = "01234567-89ab-cdef-0123-456789abcdef"
    assert str(parse_topic_id("ASNFZ4mrze8BI0VniavN7w")) == text
    assert str(parse_topic_id(text)) == text
