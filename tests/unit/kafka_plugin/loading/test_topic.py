"""What is left over from others is no reason for a healthy load to fail."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import InvalidPartitionsError, KafkaConnectionError

from evenload.dataset_catalog.catalog import Catalog
from evenload.kafka_connection import Connection
from evenload.kafka_plugin import topics
from evenload.kafka_plugin.errors import TopicError
from evenload.kafka_plugin.loading.load_writer import LoadIdentity
from evenload.kafka_plugin.loading.topic import sweep_topics


def test_leftovers_that_cant_be_looked_at_are_left_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    connection = Connection(bootstrap_servers="127.0.0.1:1")
    identity = LoadIdentity(
        name="n", version=1, load_id="0" * 16, topic="t", topic_id="i", source_fingerprint="f", facts={}
    )
    sweep_topics(connection, Catalog(connection, timeout_s=0.1), identity)
    assert "what dead loaders of n may have left is not swept up: no Kafka broker answers" in caplog.text


class SilentAdmin:
    """An admin client whose brokers refuse a topic without a word."""

    def __enter__(self) -> SilentAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_topics(self, *_: object, **__: object) -> dict[str, Any]:
        return {"topics": [{"error_code": InvalidPartitionsError.errno, "error_message": None}]}


def _create(topic: str, *, timeout_s: float) -> None:
    topics.create_topic(
        Connection(bootstrap_servers="a:1"),
        topic,
        num_partitions=1,
        replication=1,
        assignments=None,
        configs={},
        timeout_s=timeout_s,
    )


def test_a_topic_that_is_refused_without_a_word_says_by_which_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "open_admin", lambda *_, **__: SilentAdmin())
    with pytest.raises(TopicError, match="can't be made: InvalidPartitionsError"):
        _create("t", timeout_s=1)


def test_a_connection_that_is_lost_while_a_topic_is_made_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise KafkaConnectionError("connection reset by peer")

    monkeypatch.setattr(SilentAdmin, "create_topics", lose)
    monkeypatch.setattr(topics, "open_admin", lambda *_, **__: SilentAdmin())
    with pytest.raises(TopicError, match=r"can't be made: .*connection reset by peer"):
        _create("t", timeout_s=1)


class LeaderlessAdmin(SilentAdmin):
    """An admin client of brokers that make topics, whose leaders then don't answer."""

    deleted: list[str] = []  # noqa: RUF012

    def create_topics(self, *_: object, **__: object) -> dict[str, Any]:
        return {"topics": [{"error_code": 0, "error_message": None, "topic_id": "i"}]}

    def list_partition_offsets(self, *_: object) -> None:
        raise KafkaConnectionError("nobody there")

    def delete_topics(self, topics: list[str]) -> None:
        self.deleted += topics


def test_only_a_topic_that_was_made_here_is_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "open_admin", lambda *_, **__: LeaderlessAdmin())
    connection = Connection(bootstrap_servers="a:1")
    with pytest.raises(TopicError) as caught:
        topics.wait_for_leaders(connection, "theirs", 3, timeout_s=0.0)
    assert str(caught.value) == (
        "Topic 'theirs' isn't ready: not all of its 3 leaders answered within 0 s (KafkaConnectionError)."
    )
    with pytest.raises(TopicError, match=r"not all of its 1 leaders answered .*; it was deleted again"):
        _create("ours", timeout_s=0.0)
    assert LeaderlessAdmin.deleted == ["ours"]
