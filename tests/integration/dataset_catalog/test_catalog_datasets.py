from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import kafka
import numpy as np
import pytest
from confluent_kafka import Producer
from kafka.admin import ConfigResource, ConfigResourceType

from evenload.dataset_catalog.catalog import DATASETS_TOPIC, LOADS_TOPIC, Catalog
from evenload.dataset_catalog.errors import (
    CorruptManifestError,
    DatasetExistsError,
    DatasetGoneError,
    TopicRecreatedError,
    UnknownDatasetError,
)
from evenload.dataset_catalog.logs import internal_topics
from evenload.dataset_catalog.manifest import DatasetManifest, PartitionExtents
from evenload.dataset_catalog.testing import create_topic, make_batch, make_manifest, write_dataset
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection import BrokersUnreachableError, Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.local_cluster import LocalCluster


def _manifest(name: str, **overrides: Any) -> DatasetManifest:
    return make_manifest(make_batch(0), [], name=name, **overrides)


def _produce_plain(connection: Connection, topic: str, key: str, value: bytes | None) -> None:
    producer: Producer = confluent_producer(connection)
    producer.produce(topic, value, key)
    assert producer.flush(60) == 0
    producer.close()


def _topic_configs(connection: Connection, topic: str, *names: str) -> list[str]:
    with open_admin(connection) as admin:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return [str(found["topic"][topic][name]["value"]) for name in names]


def test_an_empty_cluster_has_no_datasets_and_asking_makes_no_topics(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    connection = make_cluster(num_brokers=1).connection
    catalog = Catalog(connection)
    assert catalog.list() == []
    assert catalog.unfinished() == []
    assert catalog.load_state("flowers", 1) is None
    with pytest.raises(UnknownDatasetError, match="there are no datasets yet"):
        catalog.get("flowers")
    with pytest.raises(UnknownDatasetError):
        catalog.drop("flowers")
    with TopicAdmin(connection, timeout_s=60) as admin:
        assert admin.describe(DATASETS_TOPIC) is admin.describe(LOADS_TOPIC) is None

    catalog.publish(_manifest("flowers"))
    assert [each.id for each in catalog.list()] == ["flowers@1"]
    assert _replicas(connection, DATASETS_TOPIC) == 1


def _replicas(connection: Connection, topic: str) -> int:
    with open_admin(connection) as admin:
        (found,) = admin.describe_topics([topic])
    (partition,) = found["partitions"]
    return len(partition["replica_nodes"])


def test_internal_topics_are_compacted_and_survive_the_loss_of_a_broker(connection: Connection) -> None:
    catalog = Catalog(connection)
    catalog.ensure_internal_topics()
    catalog.ensure_internal_topics()
    for topic in (DATASETS_TOPIC, LOADS_TOPIC):
        assert _replicas(connection, topic) == 3
        assert _topic_configs(connection, topic, "cleanup.policy", "min.insync.replicas") == ["compact", "2"]


def test_the_newest_version_is_got_unless_another_is_asked_for(
    connection: Connection, topic_name: str
) -> None:
    catalog = Catalog(connection)
    versions = [_manifest(topic_name, version=number, load_id=f"{number:016x}") for number in (2, 10, 1)]
    for manifest in versions:
        catalog.publish(manifest)
    assert catalog.get(topic_name) == versions[1]
    assert catalog.get(f"{topic_name}@2") == versions[0]
    assert catalog.versions(topic_name) == [1, 2, 10]
    assert [each.version for each in catalog.list() if each.name == topic_name] == [1, 2, 10]
    with pytest.raises(UnknownDatasetError, match=f"{topic_name}@10") as caught:
        catalog.get(f"{topic_name}@3")
    assert f"{topic_name}@2" in caught.value.available


def test_a_manifest_in_several_records_comes_back(connection: Connection, topic_name: str) -> None:
    chance, num_extents = np.random.default_rng(0), 600_000
    records = chance.integers(1, 50, num_extents)
    first = np.cumsum(records + chance.integers(0, 9, num_extents)) - records
    extents = PartitionExtents.from_arrays(0, first, records, np.ones(num_extents, np.int64))
    totals = {"num_records": extents.num_records, "num_samples": extents.num_samples}
    manifest = _manifest(topic_name, partitions=(extents,), **totals)
    assert len(manifest.to_parts()) > 1
    catalog = Catalog(connection)
    catalog.publish(manifest)
    assert catalog.get(topic_name) == manifest
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@1"]
    assert topic_name not in [each.name for each in catalog.list()]


def test_the_same_load_is_published_twice_but_another_load_is_refused(
    connection: Connection, topic_name: str
) -> None:
    catalog = Catalog(connection)
    catalog.publish(_manifest(topic_name))
    catalog.publish(_manifest(topic_name, created_at_s=5.0))
    assert catalog.get(topic_name).created_at_s == 5.0
    with pytest.raises(DatasetExistsError, match="version 1"):
        catalog.publish(_manifest(topic_name, load_id="f" * 16))


def test_a_damaged_manifest_is_refused_and_hides_no_other(
    connection: Connection, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = Catalog(connection)
    catalog.publish(_manifest(f"{topic_name}-good"))
    _produce_plain(connection, DATASETS_TOPIC, f"{topic_name}@1/0", b"EVLM garbage")
    with pytest.raises(CorruptManifestError, match=f"dataset {topic_name}@1 can't be used"):
        catalog.get(topic_name)
    with caplog.at_level(logging.WARNING):
        assert f"{topic_name}-good" in [each.name for each in catalog.list()]
    assert f"{topic_name}@1" in caplog.text
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@1"]


def test_no_brokers_is_one_sentence_within_the_deadline() -> None:
    catalog = Catalog(Connection(bootstrap_servers="127.0.0.1:9"), timeout_s=1)
    with pytest.raises(BrokersUnreachableError, match=r"127\.0\.0\.1:9"):
        catalog.list()


def test_a_deadline_has_to_be_above_zero() -> None:
    with pytest.raises(ValueError, match="timeout_s is 0"):
        Catalog(Connection(bootstrap_servers="127.0.0.1:9"), timeout_s=0)


def test_a_dataset_as_it_was_written_passes_the_check(connection: Connection, topic_name: str) -> None:
    manifest = write_dataset(connection, make_batch(60), topic=topic_name, name=topic_name)
    Catalog(connection).check(manifest)


def test_a_deleted_topic_is_noticed(connection: Connection, topic_name: str) -> None:
    manifest = write_dataset(connection, make_batch(10), topic=topic_name, name=topic_name)
    with open_admin(connection) as admin:
        admin.delete_topics([topic_name])
    with pytest.raises(DatasetGoneError, match="no such topic"):
        Catalog(connection).check(manifest)


def test_a_topic_that_was_made_again_is_noticed_even_with_the_same_records(
    connection: Connection, topic_name: str
) -> None:
    batch = make_batch(10)
    manifest = write_dataset(connection, batch, topic=topic_name, name=topic_name)
    with open_admin(connection) as admin:
        admin.delete_topics([topic_name])
    again = write_dataset(connection, batch, topic=topic_name, name=topic_name)
    with pytest.raises(TopicRecreatedError) as caught:
        Catalog(connection).check(manifest)
    assert caught.value.expected_topic_id == manifest.topic_id
    assert caught.value.found_topic_id == again.topic_id


def test_data_that_retention_took_is_noticed_with_both_values(
    connection: Connection, topic_name: str
) -> None:
    manifest = write_dataset(connection, make_batch(60), topic=topic_name, name=topic_name)
    first = int(manifest.partitions[1].first_offset[0])
    with open_admin(connection) as admin:
        admin.delete_records({kafka.TopicPartition(topic_name, 1): first})
    Catalog(connection).check(manifest)
    with open_admin(connection) as admin:
        admin.delete_records({kafka.TopicPartition(topic_name, 1): first + 1})
    lists = f"lists offsets {first} to {manifest.partitions[1].end_offset - 1} of partition 1"
    with pytest.raises(DatasetGoneError, match=f"{lists}, the topic has {first + 1} to"):
        Catalog(connection).check(manifest)


def test_records_beyond_the_end_of_the_log_are_noticed(connection: Connection, topic_name: str) -> None:
    manifest = write_dataset(connection, make_batch(10), topic=topic_name, name=topic_name)
    beyond = [PartitionExtents(0, [(0, 1000, 1)]), PartitionExtents(9, [(0, 1, 1)])]
    for partition, complaint in zip(beyond, ["the topic has 0 to", r"no partitions \[9\]"], strict=True):
        claims = {"num_samples": partition.num_samples, "num_records": partition.num_records}
        lying = manifest.model_copy(update={"partitions": (partition,), **claims})
        with pytest.raises(DatasetGoneError, match=complaint):
            Catalog(connection).check(lying)


def test_dropping_takes_topic_and_manifest_away(connection: Connection, topic_name: str) -> None:
    catalog = Catalog(connection)
    for version in (1, 2):
        catalog.publish(
            write_dataset(
                connection, make_batch(6), topic=f"{topic_name}-{version}", name=topic_name, version=version
            )
        )
    assert list(catalog.drop(f"{topic_name}@1")) == [f"{topic_name}@1"]
    assert catalog.versions(topic_name) == [2]
    with TopicAdmin(connection, timeout_s=60) as admin:
        assert admin.describe(f"{topic_name}-1") is None
        assert admin.describe(f"{topic_name}-2") is not None
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@2"]
    with pytest.raises(UnknownDatasetError):
        catalog.drop(topic_name)


def test_dropping_leaves_a_topic_alone_that_someone_made_again(
    connection: Connection, topic_name: str
) -> None:
    catalog = Catalog(connection)
    catalog.publish(write_dataset(connection, make_batch(6), topic=topic_name, name=topic_name))
    with open_admin(connection) as admin:
        admin.delete_topics([topic_name])
    create_topic(connection, topic_name, num_partitions=1)
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@1"]
    with TopicAdmin(connection, timeout_s=60) as admin:
        assert admin.describe(topic_name) is not None


def test_what_is_left_of_a_drop_that_ended_half_way_can_be_dropped_again(
    connection: Connection, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(connection)
    catalog.publish(write_dataset(connection, make_batch(6), topic=topic_name, name=topic_name))
    with monkeypatch.context() as patch:
        patch.setattr("evenload.dataset_catalog.catalog.write_plain", _interrupt)
        with pytest.raises(InterruptedError):
            catalog.drop(topic_name)
    assert catalog.versions(topic_name) == [1]
    assert list(catalog.drop(topic_name)) == [f"{topic_name}@1"]
    assert catalog.versions(topic_name) == []


def _interrupt(*_: object, **__: object) -> None:
    raise InterruptedError


def test_a_record_that_is_acknowledged_without_an_offset_is_an_error(
    connection: Connection, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lossy:
        """What confluent-kafka 2.16 does on a topic that is too new: a report, but no error and no offset."""

        def __init__(self) -> None:
            self._reports: list[Callable[[None, Lossy], None]] = []

        def produce(self, *_: object, on_delivery: Callable[[None, Lossy], None], **__: object) -> None:
            self._reports.append(on_delivery)

        def flush(self, _: float) -> int:
            for report in self._reports:
                report(None, self)
            return 0

        def offset(self) -> None:
            return None

        def close(self) -> None:
            pass

    monkeypatch.setattr(internal_topics, "confluent_producer", lambda *_, **__: Lossy())
    with pytest.raises(Exception, match="acknowledged without an offset"):
        Catalog(connection).publish(_manifest(topic_name))
