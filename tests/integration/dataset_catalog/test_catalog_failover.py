"""The catalog while brokers are down: what three replicas are for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evenload.dataset_catalog.catalog import DATASETS_TOPIC, LOADS_TOPIC, Catalog
from evenload.dataset_catalog.errors import CatalogUnavailableError
from evenload.dataset_catalog.testing import make_batch, make_manifest, write_dataset
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.local_cluster import LocalCluster


def _leader(connection: Connection, topic: str) -> int:
    with open_admin(connection) as admin:
        (found,) = admin.describe_topics([topic])
    return int(found["partitions"][0]["leader_id"])


def test_datasets_stay_visible_and_can_be_published_without_one_broker(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(num_brokers=3)
    catalog = Catalog(cluster.connection)
    before = make_manifest(make_batch(0), [], name="before")
    catalog.publish(before)
    dead = _leader(cluster.connection, DATASETS_TOPIC)
    cluster.kill_broker(dead)
    assert catalog.list() == [before]
    catalog.publish(make_manifest(make_batch(0), [], name="after"))
    assert [each.name for each in catalog.list()] == ["after", "before"]
    assert catalog.load_state("before", 1) is None
    assert _leader(cluster.connection, DATASETS_TOPIC) != dead
    assert _leader(cluster.connection, LOADS_TOPIC) != dead

    # A dataset of one replica is held up by its broker; once that is back, it is as it was.
    cluster.restart_broker(dead)
    manifest = write_dataset(cluster.connection, make_batch(60), topic="single", name="single")
    gone = _leader(cluster.connection, "single")
    cluster.kill_broker(gone)
    with pytest.raises(CatalogUnavailableError, match=r"topic 'single' failed"):
        Catalog(cluster.connection, timeout_s=2).check(manifest)
    cluster.restart_broker(gone)
    assert verify(cluster.connection, manifest).is_clean


def test_a_topic_that_cannot_be_made_says_why_in_the_brokers_words(
    connection: Connection, topic_name: str
) -> None:
    with (
        TopicAdmin(connection, timeout_s=5) as admin,
        pytest.raises(CatalogUnavailableError, match=r"creating topic .* failed: .*[Rr]eplication"),
    ):
        admin.create(topic_name, replication=9, configs={})
