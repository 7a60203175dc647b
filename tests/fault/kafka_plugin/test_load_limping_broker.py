"""A broker limps during a load: paused for a while (SIGSTOP), or behind a slow link for all of it (tc)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.verify import verify
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.router.config import RouterConfig
from evenload.telemetry_collector.collector import sample_once

NUM_SAMPLES = 2_000
PAUSE_S = 12.0  # longer than the 3 s after which the controller takes a silent broker's leaderships away
CONFIG = LoaderConfig(transaction_s=0.5, block_bytes=8_000, transaction_timeout_s=30, stall_timeout_s=120)


class Pause:
    """Pauses a broker for a while once a quarter of the load is written."""

    def __init__(self, cluster: LocalCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._thread: threading.Thread | None = None

    def __call__(self, samples_done: int, *_: int) -> None:
        if self._thread is None and samples_done >= NUM_SAMPLES // 4:
            self._thread = threading.Thread(target=self._pause)
            self._thread.start()
        time.sleep(0.02)

    def _pause(self) -> None:
        self._cluster.pause_broker(self._broker_id)
        time.sleep(PAUSE_S)
        self._cluster.resume_broker(self._broker_id)

    def join(self) -> None:
        assert self._thread is not None, "nothing has happened"
        self._thread.join()


@pytest.mark.parametrize("replication", [1, pytest.param(3, marks=pytest.mark.torture)])
def test_a_load_outlasts_a_broker_that_is_paused(
    make_cluster: Callable[..., LocalCluster], replication: int
) -> None:
    cluster = make_cluster()
    pause = Pause(cluster, 2)
    source: dict[str, Any] = {"n": np.arange(NUM_SAMPLES), "x": np.zeros((NUM_SAMPLES, 500), np.uint8)}
    manifest = load_dataset(
        source,
        "paused",
        connection=cluster.connection,
        config=CONFIG,
        replication=replication,
        progress=pause,
    )
    pause.join()
    cluster.wait_until_ready(60)
    report = verify(cluster.connection, manifest)
    assert report.is_clean, report


@pytest.mark.torture
@pytest.mark.parametrize("is_latency_weighed", [True, False])
def test_a_load_with_a_slow_broker_is_exact_and_spares_it_where_latency_has_a_weight(
    slow_link: Callable[..., AbstractContextManager[None]],
    make_cluster: Callable[..., LocalCluster],
    is_latency_weighed: bool,
) -> None:
    cluster = make_cluster()
    connection = cluster.connection
    latency = RouterConfig(score_functions={"reachability": 1, "latency": 2})
    config = latency if is_latency_weighed else RouterConfig()
    samples = {"x": np.random.default_rng(1).integers(0, 256, (2_000, 20_000), dtype=np.uint8)}
    with slow_link(cluster, 2, 250_000):  # a fraction of what a busy machine writes
        manifest = load_dataset(samples, "slow", connection=connection, replication=1, router_config=config)
    assert verify(connection, manifest).is_clean
    if is_latency_weighed:
        led = sample_once(connection, [manifest.topic]).leader_bytes(manifest.topic)
        assert led[2] < 0.7 * min(led[1], led[3]), led
