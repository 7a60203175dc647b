"""With no broker there, `produce` takes records all the same, and they are stored once one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from evenload.dataset_catalog.logs.committed_reader import OffsetRange, read_committed
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster

WaitUntil = Callable[[Callable[[], bool]], None]

NUM_RECORDS = 3000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with temporary_cluster(num_brokers=1) as cluster:
        yield cluster


def _make_topic(connection: Connection, topic: str) -> None:
    create_topic(
        connection, topic, num_partitions=2, replication=1, assignments=None, configs={}, timeout_s=60
    )


def test_what_is_sent_without_brokers_is_stored_in_order_once_they_are_there(
    cluster: LocalCluster, topic_name: str
) -> None:
    _make_topic(cluster.connection, topic_name)
    cluster.kill_broker(1)
    stored: dict[int | None, list[bytes | None]] = {}

    def told(error: KafkaError | None, message: Message) -> None:
        assert error is None
        stored.setdefault(message.partition(), []).append(message.value())

    settings = {"bootstrap.servers": cluster.connection.bootstrap_servers, "log_level": 0}
    with BalancedProducer(settings, connection=cluster.connection) as producer:
        for number in range(NUM_RECORDS):
            producer.produce(topic_name, b"%d" % number, on_delivery=told)
        assert len(producer) >= NUM_RECORDS
        assert producer.flush(0.1) >= NUM_RECORDS
        cluster.restart_broker(1)
        for number in range(NUM_RECORDS, 2 * NUM_RECORDS):  # behind the others
            producer.produce(topic_name, b"%d" % number, on_delivery=told)
        assert producer.flush(120) == 0
        assert len(producer) == 0
    there = {}
    for partition, values in stored.items():
        assert partition is not None
        ranges = {partition: OffsetRange(0, len(values))}
        found = [m.value for m in read_committed(cluster.connection, topic_name, ranges, timeout_s=60)]
        there[partition] = [int(value or b"") for value in found]
        assert there[partition] == sorted(there[partition])
    assert sorted(chain(*there.values())) == list(range(2 * NUM_RECORDS))


def test_what_is_older_than_the_client_keeps_it_has_failed(cluster: LocalCluster, topic_name: str) -> None:
    cluster.kill_broker(1)
    told: list[KafkaError | None] = []
    settings = {
        "bootstrap.servers": cluster.connection.bootstrap_servers,
        "message.timeout.ms": 200,
        "log_level": 0,
    }
    with BalancedProducer(settings, connection=cluster.connection) as producer:
        producer.produce(topic_name, b"x", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(120) == 0
    (error,) = told
    assert error is not None
    assert error.code() == KafkaError._MSG_TIMED_OUT
    cluster.restart_broker(1)


def test_a_transaction_ends_with_all_its_records(cluster: LocalCluster, topic_name: str) -> None:
    _make_topic(cluster.connection, topic_name)
    settings = {"bootstrap.servers": cluster.connection.bootstrap_servers, "transactional.id": topic_name}
    with BalancedProducer(settings, connection=cluster.connection) as producer:
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(100):
            producer.produce(topic_name, b"%d" % number, partition=0)
        producer.commit_transaction(60)
        assert len(producer) == 0
        producer.begin_transaction()
        producer.produce(f"{topic_name}-unknown", b"x")
        producer.abort_transaction(60)
        producer.poll(0)
        assert len(producer) == 0
    found = read_committed(cluster.connection, topic_name, {0: OffsetRange(0, 100)}, timeout_s=60)
    assert [m.value for m in found] == [b"%d" % number for number in range(100)]


def test_a_transaction_is_not_committed_without_a_record_that_could_not_be_sent(
    cluster: LocalCluster, topic_name: str
) -> None:
    _make_topic(cluster.connection, topic_name)
    settings = {"bootstrap.servers": cluster.connection.bootstrap_servers, "transactional.id": topic_name}
    config = ProducerConfig(new_topic_timeout_s=0.5)
    with BalancedProducer(settings, connection=cluster.connection, config=config) as producer:
        producer.init_transactions(60)
        with pytest.raises(KafkaException, match="no transaction"):
            producer.produce(topic_name, b"outside", partition=0)
        producer.begin_transaction()
        producer.produce(topic_name, b"half", partition=0)
        producer.produce(f"{topic_name}-mistyped", b"the other half")
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(60)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(60)
        producer.begin_transaction()
        producer.produce(topic_name, b"whole", partition=0)
        producer.commit_transaction(60)
    ends = {0: OffsetRange(0, 3)}  # with the abort's marker
    found = read_committed(cluster.connection, topic_name, ends, timeout_s=60)
    assert [m.value for m in found] == [b"whole"]


def test_what_a_callback_sends_to_a_topic_that_is_not_open_is_flushed_too(
    cluster: LocalCluster, topic_name: str
) -> None:
    others = [f"{topic_name}-{number}" for number in range(2)]
    for topic in (topic_name, *others):
        _make_topic(cluster.connection, topic)
    stored: list[str | None] = []
    to_send = iter(others)

    def told(error: KafkaError | None, message: Message) -> None:
        assert error is None
        stored.append(message.topic())
        if message.topic() == topic_name:
            producer.produce(next(to_send), b"x", on_delivery=told)

    settings = {"bootstrap.servers": cluster.connection.bootstrap_servers}
    with BalancedProducer(settings, connection=cluster.connection) as producer:
        producer.produce(topic_name, b"x", on_delivery=told)
        assert producer.flush() == 0
        assert stored == [topic_name, others[0]]
        producer.produce(topic_name, b"x", on_delivery=told)
    assert stored == [topic_name, others[0], topic_name, others[1]]  # closing flushes
