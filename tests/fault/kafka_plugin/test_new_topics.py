"""Topics that were made a moment ago are written at once, and no record is lost.

confluent-kafka 2.16 loses records on them silently: the delivery report has neither error nor offset. So
writing waits until every leader answers ListOffsets, and a report without offset counts as a loss.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from confluent_kafka import KafkaError, Message

from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import TransactionFailedError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.sources.source import open_source
from evenload.kafka_plugin.transactional_writer import TransactionalWriter
from evenload.local_cluster import temporary_cluster

NUM_TOPICS = 50
NUM_GUARDED_TOPICS = 12
NUM_PARTITIONS = 30
RECORDS_PER_TOPIC = 90


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    """Brokers of their own: thousands of partitions would be a burden to other tests."""
    with temporary_cluster(num_brokers=3) as cluster:
        yield cluster.connection


@pytest.mark.torture
def test_fifty_fresh_topics_written_at_once_by_loaders_lose_nothing(connection: Connection) -> None:
    source = open_source({"n": np.arange(RECORDS_PER_TOPIC)})
    config = LoaderConfig(block_bytes=1)  # a record for each sample
    stem = f"fresh-{uuid.uuid4().hex[:8]}"

    def load(number: int) -> bool:
        name = f"{stem}-{number}"
        manifest = load_dataset(source, name, connection=connection, partitions=NUM_PARTITIONS, config=config)
        assert manifest.num_records == RECORDS_PER_TOPIC
        return verify(connection, manifest).is_clean

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(load, range(NUM_TOPICS))) == [True] * NUM_TOPICS


def test_fifty_fresh_topics_written_at_once_by_a_producer_lose_nothing(connection: Connection) -> None:
    stem = f"fresh-{uuid.uuid4().hex[:8]}"
    topics = [f"{stem}-{number}" for number in range(NUM_TOPICS)]
    problems: list[str] = []
    stored: Counter[str] = Counter()

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            problems.append(error.str())
        else:
            stored[message.topic() or ""] += 1

    settings = {"bootstrap.servers": connection.bootstrap_servers, "linger.ms": 0}
    with BalancedProducer(settings, connection=connection) as producer, open_admin(connection) as admin:
        admin.create_topics(
            {topic: {"num_partitions": NUM_PARTITIONS, "replication_factor": 1} for topic in topics}
        )
        for number in range(RECORDS_PER_TOPIC):
            for topic in topics:
                # Every third one with a partition of its own, so that all thirty leaders are written.
                partition = number % NUM_PARTITIONS if number % 3 == 0 else -1
                producer.produce(topic, f"{number}".encode(), partition=partition, on_delivery=report)
        assert producer.flush(60) == 0
        assert producer.num_lost == 0
        ends = {topic: _log_ends(admin, topic) for topic in topics}
    assert problems == []
    assert stored == dict.fromkeys(topics, RECORDS_PER_TOPIC)
    for topic in topics[::10]:
        ranges = {partition: OffsetRange(0, end) for partition, end in ends[topic].items()}
        values = sorted(int(m.value or b"") for m in read_committed(connection, topic, ranges, timeout_s=60))
        assert values == list(range(RECORDS_PER_TOPIC))
    assert [sum(ends[topic].values()) for topic in topics] == [RECORDS_PER_TOPIC] * NUM_TOPICS


def test_a_transaction_with_a_lost_record_is_done_again(connection: Connection) -> None:
    # Nobody waits for leaders here, so records do get lost: in about every second transaction.
    stem = f"fresh-{uuid.uuid4().hex[:8]}"
    writer = TransactionalWriter(connection, stem, "packed", LoaderConfig())
    writer.open(None, 60)
    num_failed = 0
    with open_admin(connection) as admin:
        for topic in (f"{stem}-{number}" for number in range(NUM_GUARDED_TOPICS)):
            admin.create_topics({topic: {"num_partitions": NUM_PARTITIONS, "replication_factor": 1}})
            while True:
                writer.begin()
                try:
                    for number in range(RECORDS_PER_TOPIC):
                        writer.write(topic, b"x" * 1000, partition=number % NUM_PARTITIONS, num_samples=1)
                    runs = writer.settle()
                    writer.commit(num_bytes=0)
                    break
                except TransactionFailedError:
                    num_failed += 1
                    with suppress(TransactionFailedError):  # the client has lost count of its own numbers
                        writer.abort(30)
                    writer.open(None, 60)
            listed = {
                (partition, offset)
                for partition, found in runs.items()
                for run in found
                for offset in range(run.first_offset, run.end_offset)
            }
            ranges = {p: OffsetRange(0, end) for p, end in _log_ends(admin, topic).items()}
            there = {(m.partition, m.offset) for m in read_committed(connection, topic, ranges, timeout_s=60)}
            assert there == listed
            assert len(listed) == RECORDS_PER_TOPIC
    writer.close()
    print(
        f"{num_failed} transactions on {NUM_GUARDED_TOPICS} new topics had lost records, and were done again"
    )


def _log_ends(admin: object, topic: str) -> dict[int, int]:
    import kafka
    from kafka.admin import OffsetSpec

    asked = {kafka.TopicPartition(topic, p): OffsetSpec.LATEST for p in range(NUM_PARTITIONS)}
    found = admin.list_partition_offsets(asked)  # type: ignore[attr-defined]
    return {at.partition: answer.offset for at, answer in found.items()}
