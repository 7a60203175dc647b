"""What the client refuses, as its queue is full, is not counted as sent and costs no partition its turn."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster

VALUE = bytes(1000)
NUM_RECORDS = 600


def _small_queue(connection: Connection) -> BalancedProducer:
    settings = {**connection.confluent_config(), "queue.buffering.max.messages": 7}
    return BalancedProducer(settings, config=ProducerConfig(batch_bytes=1000, refresh_s=60))


def _make_topic(cluster: LocalCluster, topic: str) -> None:
    create_topic(
        cluster.connection,
        topic,
        num_partitions=6,
        replication=1,
        assignments=[(1,), (2,), (3,)] * 2,
        configs={},
        timeout_s=60,
    )


def test_refused_records_cost_no_partition_its_turn(cluster: LocalCluster, topic_name: str) -> None:
    _make_topic(cluster, topic_name)
    stored: Counter[int] = Counter()

    def told(error: Any, message: Any) -> None:
        assert error is None
        stored[message.partition()] += 1

    with _small_queue(cluster.connection) as producer:
        num_taken = num_refused = 0
        while num_taken < NUM_RECORDS:
            try:
                producer.produce(topic_name, VALUE, on_delivery=told)
                num_taken += 1
            except BufferError:
                num_refused += 1
                producer.poll(0.01)
        producer.flush(60)
    assert num_refused > 10
    assert sum(stored.values()) == NUM_RECORDS
    by_broker = [stored[p] + stored[p + 3] for p in range(3)]
    assert max(by_broker) - min(by_broker) <= 30  # 5 %; brokers of the session's cluster may differ a little


def test_refused_records_of_a_batch_are_not_counted_as_sent(cluster: LocalCluster, topic_name: str) -> None:
    _make_topic(cluster, topic_name)
    with _small_queue(cluster.connection) as producer:
        left = [{"value": VALUE} for _ in range(50)]
        num_refused = 0
        while left:
            with suppress(BufferError):
                producer.produce_batch(topic_name, left)
            left = [{"value": VALUE} for message in left if "_error" in message]
            num_refused += len(left)
            producer.poll(0.05)
        producer.flush(60)
        routing = producer._routes.find(topic_name)
        assert num_refused > 0
        assert routing is not None
        assert routing.own_bytes.total_sent == 50 * len(VALUE)
