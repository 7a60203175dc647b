"""Small datasets for tests: in memory, or really written, without the loader.

`write_dataset` writes as a loader does (transactions, so that markers leave gaps; record headers), but
one record after the other, round robin; it is for datasets of kilobytes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import stamina

from evenload.dataset_catalog.manifest import (
    DatasetManifest,
    Encoding,
    PartitionExtents,
    ValueFormat,
    encode_schema,
    extents_of_records,
)
from evenload.dataset_catalog.progress import LoadProgress
from evenload.dataset_catalog.records.encoding import (
    RECORD_HEADER,
    add_checksum,
    encode_records,
    encode_samples,
    format_checksum,
    record_header,
    sample_hashes,
)
from evenload.dataset_catalog.topic_admin import TopicAdmin, TopicDescription
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin

LOAD_ID = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a dataset, before it has a place."""

    first_sample: int
    num_samples: int
    value: bytes
    header: bytes


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """A record of a dataset at its offset."""

    partition: int
    offset: int
    record: StoredRecord


def make_batch(num_rows: int, *, seed: int = 0) -> pa.RecordBatch:
    """Rows of four kinds: an image-like tensor [4, 2] uint8, a text with nulls, a label, a float."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (num_rows, 4, 2), dtype=np.uint8)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels) if num_rows else _empty_tensor()
    texts = [None if row % 7 == 3 else f"sample {row} " + "é" * (row % 5) for row in range(num_rows)]
    columns = {
        "pixels": tensor,
        "text": pa.array(texts, pa.string()),
        "label": pa.array(np.arange(num_rows) % 10),
        "weight": pa.array(random.random(num_rows, dtype=np.float32)),
    }
    return pa.RecordBatch.from_pydict(columns)


def make_records(
    batch: pa.RecordBatch,
    *,
    samples_per_record: int = 5,
    encoding: Encoding = "packed",
    value_format: ValueFormat = "arrow",
    load_id: str = LOAD_ID,
) -> list[StoredRecord]:
    """The batch as records, in written order; the last may hold fewer samples."""
    if encoding == "record":
        counted = [(1, value) for value in encode_records(batch, value_format)]
    else:
        slices = [batch.slice(at, samples_per_record) for at in range(0, batch.num_rows, samples_per_record)]
        counted = [(each.num_rows, encode_samples(each)) for each in slices]
    records, first = [], 0
    for num_samples, value in counted:
        header = record_header(load_id, first, value)
        records.append(StoredRecord(first, num_samples, value, header))
        first += num_samples
    return records


def make_manifest(batch: pa.RecordBatch, placed: Iterable[PlacedRecord], **overrides: Any) -> DatasetManifest:
    """The manifest of records that lie there; any field may be given another value."""
    placed = list(placed)
    partitions = []
    for partition in sorted({each.partition for each in placed}):
        here = [each for each in placed if each.partition == partition]
        extents = extents_of_records(
            [each.offset for each in here], [each.record.num_samples for each in here]
        )
        partitions.append(PartitionExtents(partition, extents))
    fields: dict[str, Any] = {
        "name": "flowers",
        "version": 1,
        "topic": "flowers-1",
        "topic_id": str(uuid.UUID(int=7)),
        "encoding": "packed",
        "value_format": "arrow",
        "schema_ipc": encode_schema(batch.schema),
        "features": {field.name: str(field.type) for field in batch.schema},
        "samples_per_record": max((each.record.num_samples for each in placed), default=1),
        "partitions": tuple(partitions),
        "num_samples": batch.num_rows,
        "num_records": len(placed),
        "num_bytes": sum(len(each.record.value) for each in placed),
        "checksum": format_checksum(add_checksum(0, sample_hashes(batch))),
        "shuffle_seed": None,
        "load_id": LOAD_ID,
        "source": {"paths": ["flowers.parquet"], "fingerprint": "f" * 16},
        "created_at_s": 1_700_000_000.0,
    }
    return DatasetManifest(**(fields | overrides))


def make_progress(**overrides: Any) -> LoadProgress:
    """The first progress record of a load of that dataset; any field may be given another value."""
    fields: dict[str, Any] = {
        "name": "flowers",
        "version": 1,
        "load_id": LOAD_ID,
        "topic": "flowers-1",
        "topic_id": str(uuid.UUID(int=7)),
        "source_fingerprint": "f" * 16,
        "sequence": 0,
        "num_samples": 0,
        "num_records": 0,
        "num_bytes": 0,
        "checksum": format_checksum(0),
        "host": "elsewhere",
        "pid": 17,
        "updated_at_s": 1_700_000_000.0,
    }
    return LoadProgress(**(fields | overrides))


def write_dataset(
    connection: Connection,
    batch: pa.RecordBatch,
    *,
    topic: str,
    num_partitions: int = 3,
    records_per_transaction: int = 7,
    encoding: Encoding = "packed",
    value_format: ValueFormat = "arrow",
    samples_per_record: int = 5,
    load_id: str = LOAD_ID,
    **overrides: Any,
) -> DatasetManifest:
    """Makes the topic, writes the batch into it, and returns the manifest, not yet published."""
    created = create_topic(connection, topic, num_partitions=num_partitions)
    records = make_records(
        batch,
        samples_per_record=samples_per_record,
        encoding=encoding,
        value_format=value_format,
        load_id=load_id,
    )
    placed = write_records(connection, topic, records, num_partitions, records_per_transaction)
    fields: dict[str, Any] = {
        "topic": topic,
        "topic_id": created.topic_id,
        "encoding": encoding,
        "value_format": value_format,
        "load_id": load_id,
        "created_at_s": time.time(),
    }
    return make_manifest(batch, placed, **(fields | overrides))


def create_topic(connection: Connection, topic: str, *, num_partitions: int) -> TopicDescription:
    """A topic of one replica, as soon as all of its leaders answer."""
    with open_admin(connection) as admin:
        admin.create_topics({topic: {"num_partitions": num_partitions, "replication_factor": 1}})
    with TopicAdmin(connection, timeout_s=10.0) as topics:
        for partition in range(num_partitions):
            topics.wait_for_leader(topic, partition)
        created = topics.describe(topic)
    assert created is not None
    return created


def write_records(
    connection: Connection,
    topic: str,
    records: Sequence[StoredRecord],
    num_partitions: int,
    records_per_transaction: int,
) -> list[PlacedRecord]:
    """Writes records round robin over partitions, in transactions; returns where they lie."""
    producer = confluent_producer(connection, transactional_id=f"testing-{topic}")
    producer.init_transactions(30)
    placed: list[PlacedRecord] = []
    for begin in range(0, len(records), records_per_transaction):
        producer.begin_transaction()
        for number, record in enumerate(records[begin : begin + records_per_transaction], begin):

            def report(error: Any, message: Any, record: StoredRecord = record) -> None:
                assert error is None
                assert message.offset() is not None
                placed.append(PlacedRecord(message.partition(), message.offset(), record))

            producer.produce(
                topic,
                record.value,
                partition=number % num_partitions,
                headers=[(RECORD_HEADER, record.header)],
                on_delivery=report,
            )
        producer.flush(30)
        producer.commit_transaction(30)
    producer.close()
    assert len(placed) == len(records)
    _wait_until_committed(connection, topic, num_partitions)
    return placed


@stamina.retry(on=AssertionError, attempts=None, timeout=30, wait_initial=0.01, wait_max=0.1)
def _wait_until_committed(connection: Connection, topic: str, num_partitions: int) -> None:
    """A partition that loses its leader between a commit and hearing of it may never hear of it."""
    with TopicAdmin(connection, timeout_s=10.0) as topics:
        ends = topics.offsets(topic, range(num_partitions), "log end")
        assert topics.offsets(topic, range(num_partitions), "last stable") == ends


def _empty_tensor() -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.uint8(), (4, 2))
    return pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))
