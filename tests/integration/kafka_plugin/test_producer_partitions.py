"""A topic gets other partitions while it is written: that is no error, and they are used."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig

CONFIG = ProducerConfig(batch_bytes=100, refresh_s=0.1)
VALUE = b"x" * 100


class Writer:
    """Writes a few records, single ones and a batch, and keeps what became of them."""

    def __init__(self, producer: BalancedProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.partitions: set[int | None] = set()
        self.errors: list[KafkaError] = []

    def write(self) -> None:
        self.partitions, self.errors = set(), []
        for _ in range(20):
            self._producer.produce(self._topic, VALUE, on_delivery=self._told)
        batch = [{"value": VALUE} for _ in range(20)]
        assert self._producer.produce_batch(self._topic, batch, on_delivery=self._told) == 20, batch
        assert self._producer.flush(60) == 0

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.partitions.add(message.partition())


def _make_topic(connection: Connection, topic: str, num_partitions: int) -> None:
    create_topic(
        connection,
        topic,
        num_partitions=num_partitions,
        replication=1,
        assignments=None,
        configs={},
        timeout_s=60,
    )


def _until(is_done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not is_done():
        if time.monotonic() > deadline_s:
            pytest.fail("it never came true")


def test_added_partitions_are_used_and_lost_ones_are_not(connection: Connection, topic_name: str) -> None:
    _make_topic(connection, topic_name, 3)
    with (
        Collector(connection, CollectorConfig(interval_s=0.3), topics=[]) as collector,
        BalancedProducer(
            connection.confluent_config(), connection=connection, config=CONFIG, collector=collector
        ) as producer,
        open_admin(connection) as admin,
    ):
        writer = Writer(producer, topic_name)
        writer.write()
        assert (writer.partitions, writer.errors) == ({0, 1, 2}, [])
        admin.create_partitions({topic_name: 6})

        def uses_all_six() -> bool:
            writer.write()
            assert writer.errors == []
            return writer.partitions == set(range(6))

        _until(uses_all_six)

        admin.delete_topics([topic_name])
        _make_topic(connection, topic_name, 2)

        def uses_both_that_are_left() -> bool:
            # The client finds out from what it still sends to the others.
            try:
                writer.write()
            except (KafkaException, AssertionError):
                return False
            return (writer.partitions, writer.errors) == ({0, 1}, [])

        _until(uses_both_that_are_left)
        for _ in range(20):
            writer.write()
            assert (writer.partitions, writer.errors) == ({0, 1}, [])
