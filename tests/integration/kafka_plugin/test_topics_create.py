"""New topics are placed as asked, ready when they are handed out, and gone when they can't be."""

from __future__ import annotations

import kafka
import pytest
from kafka.admin import OffsetSpec

from evenload.kafka_connection import Connection
from evenload.kafka_connection.admin_questions import describe_brokers
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.errors import TopicError
from evenload.kafka_plugin.topics import (
    create_topic,
    default_replication,
    delete_empty_topics,
    wait_for_leaders,
)


def test_a_topic_is_placed_as_asked_and_every_leader_answers(connection: Connection, topic_name: str) -> None:
    wanted = [(3, 1), (1, 2), (2, 3), (3, 2)]
    topic_id = create_topic(
        connection,
        topic_name,
        num_partitions=4,
        replication=2,
        assignments=wanted,
        configs={"retention.ms": "-1"},
        timeout_s=60,
    )
    with open_admin(connection) as admin:
        asked = {kafka.TopicPartition(topic_name, p): OffsetSpec.LATEST for p in range(4)}
        assert all(answer.offset == 0 for answer in admin.list_partition_offsets(asked).values())
        (described,) = admin.describe_topics([topic_name])
    placed = sorted((p["partition_index"], tuple(p["replica_nodes"])) for p in described["partitions"])
    assert [replica_ids for _, replica_ids in placed] == wanted
    assert str(described["topic_id"]) == topic_id


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"assignments": [(77,)]}, "broker 77"),
        ({"replication": 9}, "only 3 broker"),
        ({"configs": {"retention.ms": "-5"}}, "at least -1"),
    ],
)
def test_a_topic_that_cant_be_made_says_why_in_the_brokers_words(
    connection: Connection, topic_name: str, changes: dict[str, object], reason: str
) -> None:
    given = {"num_partitions": 1, "replication": 1, "assignments": None, "configs": {}, "timeout_s": 30}
    with pytest.raises(TopicError, match=rf"Topic '{topic_name}' can't be made: .*{reason}"):
        create_topic(connection, topic_name, **{**given, **changes})  # type: ignore[arg-type]
    with open_admin(connection) as admin:
        assert topic_name not in admin.list_topics()


def test_leaders_that_dont_answer_are_said(connection: Connection, topic_name: str) -> None:
    with pytest.raises(TopicError, match=r"not all of its 3 leaders answered within 0 s"):
        wait_for_leaders(connection, topic_name, 3, timeout_s=0.3)


def test_only_empty_topics_of_the_pattern_are_swept(connection: Connection, topic_name: str) -> None:
    topics = [f"{topic_name}-{suffix}" for suffix in ("aaaa", "bbbb", "cccc", "other")]
    for topic in topics:
        create_topic(
            connection, topic, num_partitions=2, replication=1, assignments=None, configs={}, timeout_s=30
        )
    producer = confluent_producer(connection)
    producer.produce(topics[1], b"x", partition=1)
    assert producer.flush(60) == 0
    swept = delete_empty_topics(connection, rf"{topic_name}-[a-f]{{4}}", keep={topics[2]}, timeout_s=60)
    assert swept == [topics[0]]
    with open_admin(connection) as admin:
        assert set(topics[1:]) <= set(admin.list_topics())


def test_the_clusters_default_replication_is_known(connection: Connection) -> None:
    assert default_replication(connection, "any", timeout_s=60) == 1


def test_brokers_are_described_also_where_kafka_python_misses_a_field(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with Kafka 3.3 to 3.6, whose answer has no `endpoint_type`."""
    with open_admin(connection) as admin:
        known = {broker["broker_id"] for broker in describe_brokers(admin)}
        monkeypatch.setattr(admin, "describe_cluster", lambda: {}["endpoint_type"])
        assert {broker["broker_id"] for broker in describe_brokers(admin)} == known == {1, 2, 3}
