"""A dataset is opened while one of its partitions has no leader."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.errors import CatalogUnavailableError
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.topic_admin import TopicAdmin
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster


def test_opening_waits_for_a_leader(
    make_cluster: Callable[..., LocalCluster], wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    cluster = make_cluster(num_brokers=3)
    load_dataset({"x": list(range(5000))}, "flowers", connection=cluster.connection, partitions=3)

    def opened() -> DatasetManifest:
        catalog = Catalog(cluster.connection)
        manifest = catalog.get("flowers")
        catalog.check(manifest)
        return manifest

    manifest = opened()
    cluster.kill_broker(3)
    with open_admin(cluster.connection) as asked:
        wait_until(
            lambda: any(
                p["leader_id"] == -1 for p in asked.describe_topics([manifest.topic])[0]["partitions"]
            )
        )
    with (
        TopicAdmin(cluster.connection, timeout_s=1) as admin,
        pytest.raises(CatalogUnavailableError, match="a partition has no leader: its brokers are down"),
    ):
        admin.offsets(manifest.topic, range(3), "log start")

    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(opened)
        cluster.restart_broker(3)
        assert opening.result(60) == manifest
