from __future__ import annotations

from dataclasses import replace

import kafka
import pytest
from confluent_kafka import TopicPartition

from evenload.dataset_catalog.errors import DatasetGoneError, TopicRecreatedError
from evenload.dataset_catalog.manifest import DatasetManifest, Encoding, ValueFormat
from evenload.dataset_catalog.records.encoding import RECORD_HEADER, record_header
from evenload.dataset_catalog.testing import (
    LOAD_ID,
    make_batch,
    write_dataset,
)
from evenload.dataset_catalog.verify import VerifyReport, verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer, open_admin

NUM_ROWS = 103


def _dataset(
    connection: Connection,
    topic: str,
    encoding: Encoding = "packed",
    value_format: ValueFormat = "arrow",
) -> DatasetManifest:
    return write_dataset(
        connection,
        make_batch(NUM_ROWS),
        topic=topic,
        name=topic,
        encoding=encoding,
        value_format=value_format,
    )


def _clean(manifest: DatasetManifest) -> VerifyReport:
    return VerifyReport(manifest.id, NUM_ROWS, 0, 0, 0, 0, True)


def _produce(
    connection: Connection, manifest: DatasetManifest, partition: int, value: bytes, header: bytes | None
) -> None:
    """As a stranger would: a plain record."""
    producer = confluent_producer(connection)
    headers = [(RECORD_HEADER, header)] if header is not None else []
    producer.produce(manifest.topic, value, partition=partition, headers=headers)
    assert producer.flush(60) == 0
    producer.close()


def _first_record(connection: Connection, manifest: DatasetManifest, partition: int) -> tuple[bytes, bytes]:
    """Value and header of the first record that a partition lists."""
    consumer = confluent_consumer(connection)
    at = int(manifest.partitions[partition].first_offset[0])
    consumer.assign([TopicPartition(manifest.topic, partition, at)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.error() is None
    ((_, header),) = message.headers()
    return message.value(), header


@pytest.mark.parametrize(
    ("encoding", "value_format"), [("packed", "arrow"), ("record", "arrow"), ("record", "json")]
)
def test_a_dataset_as_it_was_written_is_clean(
    connection: Connection, topic_name: str, encoding: Encoding, value_format: ValueFormat
) -> None:
    manifest = _dataset(connection, topic_name, encoding, value_format)
    told: list[tuple[int, int]] = []
    report = verify(connection, manifest, lambda done, total: told.append((done, total)))
    assert report == _clean(manifest)
    assert report.is_clean
    assert told[-1] == (NUM_ROWS, NUM_ROWS)
    assert told == sorted(told)


def test_records_that_were_deleted_are_missing(connection: Connection, topic_name: str) -> None:
    manifest = _dataset(connection, topic_name)
    first = int(manifest.partitions[0].first_offset[0])
    with open_admin(connection) as admin:
        admin.delete_records({kafka.TopicPartition(topic_name, 0): first + 2})
    assert verify(connection, manifest) == replace(
        _clean(manifest), num_samples=NUM_ROWS - 10, missing=10, checksum_matches=False
    )


def test_a_record_that_a_stranger_wrote_again_is_repeated(connection: Connection, topic_name: str) -> None:
    manifest = _dataset(connection, topic_name)
    value, header = _first_record(connection, manifest, 1)
    _produce(connection, manifest, 2, value, header)
    _produce(connection, manifest, 1, value, header)
    assert verify(connection, manifest) == replace(_clean(manifest), repeated=10)


def test_a_committed_record_that_nobody_listed_is_extra(connection: Connection, topic_name: str) -> None:
    manifest = _dataset(connection, topic_name)
    value, _ = _first_record(connection, manifest, 1)
    _produce(connection, manifest, 0, value, None)
    _produce(connection, manifest, 1, b"something else", None)
    assert verify(connection, manifest) == replace(_clean(manifest), extra=6)


def test_a_value_that_is_not_what_its_header_says_is_corrupt(connection: Connection, topic_name: str) -> None:
    manifest = _dataset(connection, topic_name)
    value, header = _first_record(connection, manifest, 0)
    broken = value[:-1] + bytes([value[-1] ^ 1])
    # Write what a loader whose memory failed would have written, and list it.
    listed = _listed_after(connection, manifest, broken, header)
    assert verify(connection, listed) == replace(
        _clean(listed), num_samples=NUM_ROWS - 5, corrupt=5, repeated=0, extra=5, checksum_matches=False
    )


def _listed_after(
    connection: Connection, manifest: DatasetManifest, value: bytes, header: bytes
) -> DatasetManifest:
    """The manifest with a new record at the end of partition 0 in place of that partition's first."""
    with open_admin(connection) as admin:
        at = kafka.TopicPartition(manifest.topic, 0)
        end = admin.list_partition_offsets({at: kafka.admin.OffsetSpec.LATEST})[at].offset
    _produce(connection, manifest, 0, value, header)
    extents = [tuple(extent) for extent in manifest.partitions[0].extents]
    first, num_records, num_samples = extents[0]
    extents = [(first + 1, num_records - 1, num_samples), *extents[1:], (end, 1, num_samples)]
    shown = manifest.model_dump(mode="json")
    shown["partitions"][0]["runs"] = [list(extent) for extent in extents if extent[1]]
    return DatasetManifest(**shown)


def test_a_record_of_another_load_at_a_listed_offset_is_corrupt(
    connection: Connection, topic_name: str
) -> None:
    manifest = _dataset(connection, topic_name)
    value, _ = _first_record(connection, manifest, 0)
    listed = _listed_after(connection, manifest, value, record_header("f" * 16, 0, value))
    report = verify(connection, listed)
    # The load's own record, no longer listed, holds samples that were found nowhere else.
    assert (report.corrupt, report.extra, report.repeated, report.missing) == (5, 5, 0, 0)


def test_what_was_aborted_is_not_there(connection: Connection, topic_name: str) -> None:
    manifest = _dataset(connection, topic_name)
    producer = confluent_producer(connection, transactional_id=f"aborts-{topic_name}")
    producer.init_transactions(30)
    producer.begin_transaction()
    value = b"never"
    for partition in range(3):
        header = [(RECORD_HEADER, record_header(LOAD_ID, 0, value))]
        producer.produce(topic_name, value, partition=partition, headers=header)
    producer.flush(60)
    # Open, it ends what can be read; all of the dataset is before it.
    assert verify(connection, manifest).is_clean
    producer.abort_transaction(30)
    producer.close()
    assert verify(connection, manifest).is_clean


def test_a_topic_that_was_made_again_is_refused(connection: Connection, topic_name: str) -> None:
    manifest = _dataset(connection, topic_name)
    with open_admin(connection) as admin:
        admin.delete_topics([topic_name])
    with pytest.raises(DatasetGoneError, match="no such topic"):
        verify(connection, manifest)
    _dataset(connection, topic_name)
    with pytest.raises(TopicRecreatedError, match=manifest.topic_id):
        verify(connection, manifest)


def test_an_empty_dataset_is_clean(connection: Connection, topic_name: str) -> None:
    manifest = write_dataset(connection, make_batch(0), topic=topic_name, name=topic_name)
    assert verify(connection, manifest) == replace(_clean(manifest), num_samples=0)
