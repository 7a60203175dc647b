"""`BalancedProducer` stands in for confluent-kafka's: same calls, other partitions, no silent loss."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from kafka import KafkaProducer

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, open_admin
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.errors import PluginConfigError
from evenload.kafka_plugin.key_partition import java_partition
from evenload.kafka_plugin.partitioner import NodeAwarePartitioner
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.producing.settings import connection_of
from evenload.telemetry_collector.collector import Collector

NUM_PARTITIONS = 6


@pytest.fixture
def topic(connection: Connection, topic_name: str) -> str:
    with open_admin(connection) as admin:
        admin.create_topics({topic_name: {"num_partitions": NUM_PARTITIONS, "replication_factor": 1}})
    return topic_name


@pytest.fixture
def settings(connection: Connection) -> dict[str, Any]:
    return {"bootstrap.servers": connection.bootstrap_servers, "linger.ms": 0}


class Reports:
    def __init__(self) -> None:
        self.partitions: list[int | None] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.partitions.append(message.partition())


KEYS = [b"21", b"foobar", b"abc", b"a-little-bit-long-string", b"", "ü".encode()]


def test_records_with_a_key_go_where_the_java_client_would_put_them(
    connection: Connection, settings: dict[str, Any], topic: str
) -> None:
    for key in KEYS:
        reports = Reports()
        with BalancedProducer(settings, connection=connection) as producer:
            for _ in range(3):
                producer.produce(topic, b"x", key, on_delivery=reports)
        assert reports.partitions == [java_partition(key, NUM_PARTITIONS)] * 3, key


def test_an_explicit_partition_is_kept(connection: Connection, settings: dict[str, Any], topic: str) -> None:
    reports = Reports()
    with BalancedProducer(settings, connection=connection) as producer:
        for partition in (5, 0, 3):
            producer.produce(topic, b"x", partition=partition, callback=reports)
            producer.produce(topic, b"x", b"key", partition, reports)
    assert sorted(reports.partitions, key=str) == [0, 0, 3, 3, 5, 5]


def test_records_without_a_key_are_spread_a_batch_at_a_time(
    connection: Connection, settings: dict[str, Any], topic: str
) -> None:
    reports = Reports()
    config = ProducerConfig(batch_bytes=10_000)
    with BalancedProducer(
        settings | {"on_delivery": reports}, connection=connection, config=config
    ) as producer:
        for _ in range(600):
            producer.produce(topic, b"x" * 1000)
            producer.poll(0)
    counts = [reports.partitions.count(partition) for partition in range(NUM_PARTITIONS)]
    assert sum(counts) == 600
    assert min(counts) > 60


def test_keys_are_spread_when_asked_for(connection: Connection, settings: dict[str, Any], topic: str) -> None:
    reports = Reports()
    config = ProducerConfig(spread_keys=True, batch_bytes=1)
    with BalancedProducer(settings, connection=connection, config=config) as producer:
        for _ in range(100):
            producer.produce(topic, b"x" * 100, b"one key", on_delivery=reports)
    assert set(reports.partitions) == set(range(NUM_PARTITIONS))


class Values:
    """Where each record went, by its value; and the headers that consumers find."""

    def __init__(self) -> None:
        self.partition: dict[bytes | None, int | None] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        assert error is None
        self.partition[message.value()] = message.partition()


def test_records_of_a_batch_are_spread_a_turn_at_a_time_and_told_ones_go_where_they_are_told(
    connection: Connection, settings: dict[str, Any], topic: str
) -> None:
    values = Values()
    config = ProducerConfig(batch_bytes=1000)
    free = [{"value": b"%099d" % number} for number in range(600)]
    told = [{"value": b"to %d" % number, "partition": number % NUM_PARTITIONS} for number in range(60)]
    keyed = [{"value": b"key %d" % number, "key": key} for number, key in enumerate(KEYS)]
    with BalancedProducer(settings, connection=connection, config=config) as producer:
        messages: list[dict[str, Any]] = [*free, *told, *keyed]
        assert producer.produce_batch(topic, messages, on_delivery=values) == len(messages)
        assert producer.flush(60) == 0
    assert "partition" not in messages[0]
    went = [values.partition[message["value"]] for message in free]
    assert all(len(set(went[first : first + 11])) == 1 for first in range(0, 583, 11))
    counts = [went.count(partition) for partition in range(NUM_PARTITIONS)]
    assert min(counts) > 60
    assert [values.partition[message["value"]] for message in told] == [m["partition"] for m in told]
    expected = [java_partition(key, NUM_PARTITIONS) for key in KEYS]
    assert [values.partition[message["value"]] for message in keyed] == expected


def test_headers_timestamps_and_callbacks_of_a_batch_count(
    connection: Connection, settings: dict[str, Any], topic: str
) -> None:
    values, mine = Values(), Values()
    messages: list[dict[str, Any]] = [{"value": b"%d" % number} for number in range(9)]
    messages[2] |= {"headers": {"kind": b"odd"}, "partition": 4}
    messages[3] |= {"callback": mine, "partition": 4}
    messages[5] |= {"timestamp": 1_700_000_000_000, "callback": mine, "partition": 4}
    with BalancedProducer(settings, connection=connection) as producer:
        assert producer.produce_batch(topic, messages, callback=values) == 9
        assert producer.flush(60) == 0
    assert mine.partition == {b"3": 4, b"5": 4}
    assert set(values.partition) == {b"%d" % number for number in range(9)} - set(mine.partition)
    consumer = confluent_consumer(connection)
    consumer.assign([TopicPartition(topic, 4, 0)])
    found: dict[bytes | None, Message] = {}
    while not {b"2", b"5"} <= set(found):
        found |= {message.value(): message for message in consumer.consume(1, 60)}
    consumer.close()
    assert found[b"2"].headers() == [("kind", b"odd")]
    assert found[b"5"].timestamp()[1] == 1_700_000_000_000


def test_without_measurements_records_are_spread_evenly_and_that_is_counted(
    connection: Connection, settings: dict[str, Any], topic: str
) -> None:
    reports = Reports()
    never_started = Collector(connection)
    config = ProducerConfig(batch_bytes=100, first_snapshot_timeout_s=0.1)
    with BalancedProducer(
        settings, connection=connection, config=config, collector=never_started
    ) as producer:
        for _ in range(60):
            producer.produce(topic, b"x" * 100, on_delivery=reports)
        assert producer.flush(60) == 0
        assert producer.num_fallbacks > 0
    assert [reports.partitions.count(partition) for partition in range(NUM_PARTITIONS)] == [10] * 6


def test_a_topic_that_does_not_exist_is_an_error_within_the_time_given(
    connection: Connection, settings: dict[str, Any], topic_name: str
) -> None:
    config = ProducerConfig(new_topic_timeout_s=0.5)
    told: list[KafkaError | None] = []
    with BalancedProducer(settings, connection=connection, config=config) as producer:
        producer.produce(topic_name, b"x", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(60) == 0
    (error,) = told
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_closing_leaves_no_thread(connection: Connection, settings: dict[str, Any], topic: str) -> None:
    before = set(threading.enumerate())
    with BalancedProducer(settings, connection=connection) as producer:
        assert isinstance(producer, Producer)
        producer.produce(topic, b"x")
    assert set(threading.enumerate()) <= before


def test_settings_that_would_hide_a_loss_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PluginConfigError, match=r"delivery\.report\.only\.error"):
        BalancedProducer(settings | {"delivery.report.only.error": True})


def test_the_collector_reaches_the_cluster_as_the_settings_say() -> None:
    found = connection_of(
        {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "secret",
            "ssl.ca.location": "/ca.pem",
            "linger.ms": 5,
        }
    )
    assert found.kafka_python_config()["sasl_plain_password"] == "secret"
    with pytest.raises(PluginConfigError, match=r"sasl\.oauthbearer\.extensions can't be translated"):
        connection_of({"bootstrap.servers": "a:1", "sasl.oauthbearer.extensions": "a=b"})
    with pytest.raises(PluginConfigError, match=r"bootstrap\.servers is missing"):
        connection_of({})


def test_inside_kafka_python_records_are_spread_and_keys_stay(connection: Connection, topic: str) -> None:
    config = ProducerConfig(batch_bytes=1000)
    with NodeAwarePartitioner(connection.bootstrap_servers, config=config) as partitioner:
        producer = KafkaProducer(
            **connection.kafka_python_config(), partitioner=partitioner, acks="all", enable_idempotence=True
        )
        try:
            sent = [producer.send(topic, b"x" * 500) for _ in range(120)]
            keyed = [producer.send(topic, b"x", key=key) for key in KEYS if key]
            producer.flush(60)
            counts = [[f.get(10).partition for f in sent].count(p) for p in range(NUM_PARTITIONS)]
            assert [f.get(10).partition for f in keyed] == [
                java_partition(k, NUM_PARTITIONS) for k in KEYS if k
            ]
        finally:
            producer.close()
    assert sum(counts) == 120
    assert min(counts) > 5
