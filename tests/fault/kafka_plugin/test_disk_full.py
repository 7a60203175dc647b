"""A broker's disk fills while a dataset is loaded, a real small disk: a tmpfs of its own.

A broker whose only volume is full shuts down, and what it alone holds can't be read until it is back. So the
load has to leave a disk alone before it is full.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.errors import LoadInterruptedError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.telemetry_collector.collector import sample_once

MIB = 1 << 20
NUM_SAMPLES = 3_000
SAMPLE_BYTES = 50_000  # 143 MiB in all
SMALL = 2
CONFIG = LoaderConfig(
    transaction_s=0.5, transaction_bytes=8 * MIB, transaction_timeout_s=10, stall_timeout_s=15
)


def incompressible() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "n": np.arange(NUM_SAMPLES),
        "x": rng.integers(0, 256, (NUM_SAMPLES, SAMPLE_BYTES), dtype=np.uint8),
    }


@pytest.fixture
def disks(small_disk: Callable[[int], Path]) -> dict[int, Path]:
    """Three disks: broker 2's has room for a fifth of the load."""
    return {1: small_disk(512 * MIB), SMALL: small_disk(160 * MIB), 3: small_disk(512 * MIB)}


@pytest.fixture
def cluster(make_cluster: Callable[..., LocalCluster], disks: dict[int, Path]) -> LocalCluster:
    return make_cluster(
        properties_by_broker={
            broker_id: {"log.dirs": str(disk / "data")} for broker_id, disk in disks.items()
        },
        broker_properties={"log.segment.bytes": str(16 * MIB)},
    )


def fill(disk: Path, *, leave_bytes: int) -> None:
    """Put something else on a disk."""
    size_bytes = shutil.disk_usage(disk).free - leave_bytes
    with (disk / "something-else").open("ab") as file:
        for _ in range(max(0, size_bytes) // MIB):
            file.write(b"x" * MIB)


def is_said_to_get_less(broker_id: int, logged: str) -> bool:
    return f"broker {broker_id} will have less of '" in logged


def runs(cluster: LocalCluster, broker_id: int) -> bool:
    return f"broker-{broker_id}" in cluster.pids


def test_a_balanced_load_finishes_where_the_default_partitioner_fills_a_disk_and_fails(
    cluster: LocalCluster, disks: dict[int, Path], caplog: pytest.LogCaptureFixture
) -> None:
    measured = Connection(bootstrap_servers=cluster.bootstrap_servers)  # the volumes say their capacity
    fill(disks[SMALL], leave_bytes=30 * MIB)
    samples = incompressible()
    manifest = load_dataset(samples, "balanced", connection=measured, config=CONFIG, replication=1)
    assert verify(measured, manifest).is_clean
    assert runs(cluster, SMALL)
    assert is_said_to_get_less(SMALL, caplog.text)
    with pytest.raises(LoadInterruptedError, match="goes on from there"):
        load_dataset(
            samples, "default", connection=measured, config=CONFIG, replication=1, strategy="default"
        )
    assert not runs(cluster, SMALL)


class FillMeanwhile:
    """Fills a disk to the limit once a third of the load is written, in a thread of its own."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._thread: threading.Thread | None = None

    def __call__(self, samples_done: int, *_: int) -> None:
        if self._thread is None and samples_done >= NUM_SAMPLES // 3:
            self._thread = threading.Thread(target=fill, args=(self._disk,), kwargs={"leave_bytes": 24 * MIB})
            self._thread.start()
        time.sleep(0.05)  # so that the load takes some sampling periods

    def join(self) -> None:
        assert self._thread is not None, "nothing has happened"
        self._thread.join()


@pytest.mark.torture
def test_a_load_leaves_a_disk_alone_that_somebody_else_fills_meanwhile(
    cluster: LocalCluster, disks: dict[int, Path], caplog: pytest.LogCaptureFixture
) -> None:
    measured = Connection(bootstrap_servers=cluster.bootstrap_servers)
    filler = FillMeanwhile(disks[SMALL])
    manifest = load_dataset(
        incompressible(), "meanwhile", connection=measured, config=CONFIG, replication=1, progress=filler
    )
    filler.join()
    assert verify(measured, manifest).is_clean
    assert runs(cluster, SMALL)
    snapshot = sample_once(measured, [manifest.topic])
    led = snapshot.leader_bytes(manifest.topic)
    assert led[SMALL] < min(led[1], led[3])
    assert is_said_to_get_less(SMALL, caplog.text)
