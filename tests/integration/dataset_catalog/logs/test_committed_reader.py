"""What is read of a topic is what Kafka's own client reads of it, whatever transactions and codecs did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer, TopicPartition

from evenload.dataset_catalog.errors import CatalogUnavailableError
from evenload.dataset_catalog.logs.committed_reader import CommittedRecord, OffsetRange, read_committed
from evenload.dataset_catalog.records.record_header import RECORD_HEADER
from evenload.dataset_catalog.testing import create_topic
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer

TIMEOUT_S = 60.0
NUM_PARTITIONS = 2
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

Seen = tuple[int, int, bytes | None, bytes | None, bytes | None]


def write(producer: Producer, topic: str, text: str, num_records: int) -> None:
    for number in range(num_records):
        value = None if number % 5 == 4 else f"{text}-{number}".encode() * 50
        headers: list[tuple[str, str | bytes | None]] = [("other", b"x"), (RECORD_HEADER, text.encode())]
        key = None if number % 7 == 6 else str(number).encode()
        producer.produce(topic, value, key, partition=number % NUM_PARTITIONS, headers=headers)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture(scope="module")
def topic(connection: Connection) -> str:
    """Transactions of several producers among each other, committed and aborted, and what stands in none."""
    create_topic(connection, "committed-reader", num_partitions=NUM_PARTITIONS)
    producers = [
        confluent_producer(connection, transactional_id=f"committed-{codec}", compression_type=codec)
        for codec in CODECS
    ]
    plain = confluent_producer(connection, compression_type="zstd")
    for producer in producers:
        producer.init_transactions(TIMEOUT_S)
    for turn in range(3):
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            write(producer, "committed-reader", f"{turn}-{number}-begin", 9)
        write(plain, "committed-reader", f"{turn}-plain", 11)
        for number, producer in enumerate(producers):
            write(producer, "committed-reader", f"{turn}-{number}-end", 6)
            if (turn + number) % 2:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
    for producer in (*producers, plain):
        producer.close()
    return "committed-reader"


def ranges_of(connection: Connection, topic: str) -> dict[int, OffsetRange]:
    with TopicAdmin(connection, timeout_s=TIMEOUT_S) as admin:
        ends = admin.offsets(topic, range(NUM_PARTITIONS), "last stable")
    return {partition: OffsetRange(0, end) for partition, end in ends.items()}


def told_by_librdkafka(connection: Connection, topic: str, isolation_level: str) -> list[Seen]:
    seen: list[Seen] = []
    consumer = confluent_consumer(connection, enable_partition_eof=True, isolation_level=isolation_level)
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(NUM_PARTITIONS)])
        num_ended = 0
        while num_ended < NUM_PARTITIONS:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is not None:
                num_ended += 1
                continue
            stamp = dict(message.headers() or [])[RECORD_HEADER]
            seen.append(
                (message.partition() or 0, message.offset() or 0, message.key(), message.value(), stamp)
            )
    return sorted(seen, key=lambda each: each[:2])


def told(records: Iterator[CommittedRecord]) -> list[Seen]:
    return [tuple(record[:5]) for record in records if record.problem is None]


@pytest.mark.parametrize("uncommitted_too", [False, True])
def test_what_is_read_is_what_librdkafka_reads(
    connection: Connection, topic: str, uncommitted_too: bool
) -> None:
    expected = told_by_librdkafka(
        connection, topic, "read_uncommitted" if uncommitted_too else "read_committed"
    )
    ranges = ranges_of(connection, topic)
    read = told(
        read_committed(connection, topic, ranges, timeout_s=TIMEOUT_S, uncommitted_too=uncommitted_too)
    )
    assert read == expected
    assert len(read) > 100


def test_a_range_begins_and_ends_anywhere_in_a_batch(
    connection: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenload.dataset_catalog.logs.committed_reader._FETCH_BYTES", 1)  # a batch at a time
    whole = ranges_of(connection, topic)
    everything = told(read_committed(connection, topic, whole, timeout_s=TIMEOUT_S))
    for start in range(0, whole[1].stop, 5):
        wanted = OffsetRange(start, min(start + 17, whole[1].stop))
        read = told(read_committed(connection, topic, {1: wanted}, timeout_s=TIMEOUT_S))
        assert read == [each for each in everything if each[0] == 1 and wanted.start <= each[1] < wanted.stop]


def test_what_is_behind_the_end_is_waited_for_as_long_as_is_said(connection: Connection, topic: str) -> None:
    end = ranges_of(connection, topic)[0].stop
    with pytest.raises(
        CatalogUnavailableError, match=r"nothing came for 1 s from partition 0 .*can't be read"
    ):
        list(read_committed(connection, topic, {0: OffsetRange(end, end + 1)}, timeout_s=1))


def test_offsets_that_are_not_there_any_more_are_an_error(connection: Connection, topic: str) -> None:
    end = ranges_of(connection, topic)[0].stop
    with pytest.raises(CatalogUnavailableError, match=r"offset \d+ of partition 0 isn't there any more"):
        list(read_committed(connection, topic, {0: OffsetRange(end + 50, end + 51)}, timeout_s=TIMEOUT_S))
