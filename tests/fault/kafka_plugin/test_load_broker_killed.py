"""A broker is killed and restarted while a dataset is loaded: nothing is lost or repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.verify import verify
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import LoadInterruptedError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.local_cluster.jars import KAFKA_VERSIONS

NUM_SAMPLES = 3_000
CONFIG = LoaderConfig(transaction_s=0.5, block_bytes=8_000, transaction_timeout_s=15, stall_timeout_s=120)

MakeTrouble = Callable[[int, Callable[[], None]], Any]


def slow_source() -> dict[str, Any]:
    return {"n": np.arange(NUM_SAMPLES), "x": np.zeros((NUM_SAMPLES, 500), np.uint8)}


@pytest.mark.parametrize("replication", [pytest.param(1, marks=pytest.mark.torture), 3])
@pytest.mark.parametrize("strategy", ["balanced", pytest.param("round-robin", marks=pytest.mark.torture)])
def test_a_load_goes_on_when_a_broker_is_killed_and_restarted(
    make_cluster: Callable[..., LocalCluster], make_trouble: MakeTrouble, replication: int, strategy: Any
) -> None:
    cluster = make_cluster()

    def kill_and_restart() -> None:
        for broker_id in (2, 3):
            cluster.kill_broker(broker_id)
            time.sleep(1)
            cluster.restart_broker(broker_id)

    trouble = make_trouble(NUM_SAMPLES // 4, kill_and_restart)
    manifest = load_dataset(
        slow_source(),
        "through-trouble",
        connection=cluster.connection,
        config=CONFIG,
        replication=replication,
        strategy=strategy,
        progress=trouble,
    )
    trouble.join()
    cluster.wait_until_ready(60)
    assert manifest.num_samples == NUM_SAMPLES
    report = verify(cluster.connection, manifest)
    assert report.is_clean, report


@pytest.mark.torture
@pytest.mark.parametrize("replication", [1, 3])
@pytest.mark.parametrize("kafka_version", KAFKA_VERSIONS[:-1])
def test_nothing_is_lost_or_repeated_by_older_brokers(
    make_cluster: Callable[..., LocalCluster], make_trouble: MakeTrouble, kafka_version: str, replication: int
) -> None:
    cluster = make_cluster(kafka_version=kafka_version)

    def kill_and_restart(broker_ids: tuple[int, ...] = (2, 3)) -> None:
        for broker_id in broker_ids:
            cluster.kill_broker(broker_id)
            time.sleep(1)
            cluster.restart_broker(broker_id)

    def load(progress: Any = None) -> DatasetManifest:
        config = CONFIG.model_copy(update={"stall_timeout_s": 40.0})
        return load_dataset(
            slow_source(),
            "through-trouble",
            connection=cluster.connection,
            config=config,
            replication=replication,
            progress=progress,
        )

    trouble = make_trouble(NUM_SAMPLES // 4, kill_and_restart)
    try:
        manifest = load(trouble)
    except LoadInterruptedError:
        if kafka_version != "3.3.2":
            raise
        # A coordinator that lost its place (docs/decisions/0036) is put right by its broker's next start.
        trouble.join()
        cluster.wait_until_ready(60)
        kill_and_restart(cluster.broker_ids)
        manifest = load()
    trouble.join()
    cluster.wait_until_ready(60)
    assert manifest.num_samples == NUM_SAMPLES
    report = verify(cluster.connection, manifest)
    assert report.is_clean, report


@pytest.mark.torture
def test_a_load_stops_with_a_sentence_when_no_broker_comes_back_and_goes_on_later(
    make_cluster: Callable[..., LocalCluster], make_trouble: MakeTrouble
) -> None:
    cluster = make_cluster()

    def kill_all() -> None:
        for broker_id in (1, 2, 3):
            cluster.kill_broker(broker_id)

    trouble = make_trouble(NUM_SAMPLES // 4, kill_all)
    config = CONFIG.model_copy(update={"stall_timeout_s": 8.0, "transaction_timeout_s": 6.0})
    with pytest.raises(LoadInterruptedError, match="the same command goes on from there"):
        load_dataset(
            slow_source(), "interrupted", connection=cluster.connection, config=config, progress=trouble
        )
    trouble.join()
    for broker_id in (1, 2, 3):
        cluster.restart_broker(broker_id)
    cluster.wait_until_ready(60)
    (load,) = Catalog(cluster.connection).unfinished()
    assert 0 < load.last.num_samples < NUM_SAMPLES
    manifest = load_dataset(slow_source(), "interrupted", connection=cluster.connection, config=config)
    assert manifest.load_id == load.last.load_id
    assert verify(cluster.connection, manifest).is_clean
