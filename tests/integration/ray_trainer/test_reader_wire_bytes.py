"""What a reader receives from brokers is hardly more than what the loader stored, one sample a record."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.ray_trainer.reading.reader import DatasetReader

Columns = dict[str, Any]


def rows(num_samples: int, size: int) -> Columns:
    pixels = np.random.default_rng(3).integers(0, 256, (num_samples, size), dtype=np.uint8)
    return {"id": np.arange(num_samples), "x": pixels}


def texts(num_samples: int, size: int) -> Columns:
    random = np.random.default_rng(4)
    return {"id": np.arange(num_samples), "x": ["e" * int(n) for n in random.integers(1, size, num_samples)]}


def stored_bytes(cluster: LocalCluster, manifest: DatasetManifest) -> int:
    """Bytes of record batches in the logs, each partition once, whatever the number of its replicas."""
    sizes: dict[str, int] = {}
    for path in cluster.folder.rglob(f"{manifest.topic}-*/*.log"):
        sizes[path.parent.name] = max(sizes.get(path.parent.name, 0), os.stat(path).st_size)
    assert len(sizes) == len(manifest.partitions)
    return sum(sizes.values())


@pytest.mark.parametrize(
    ("make", "num_samples", "size", "options"),
    [
        (rows, 20_000, 100, {}),
        (rows, 20_000, 300, {}),
        (rows, 6_000, 3072, {}),
        (rows, 300, 100_000, {}),
        (texts, 12_000, 1500, {"value_format": "json"}),
        (texts, 12_000, 1500, {"config": LoaderConfig(compression="zstd")}),
        (rows, 6_000, 3072, {"config": LoaderConfig(block_bytes=256 << 10)}),
    ],
)
def test_a_pass_over_single_samples_receives_each_byte_about_once(
    cluster: LocalCluster, make: Callable[[int, int], Columns], num_samples: int, size: int, options: Any
) -> None:
    name = f"wire-{uuid.uuid4().hex[:8]}"
    manifest = load_dataset(
        make(num_samples, size), name, connection=cluster.connection, encoding="record", **options
    )
    reader = DatasetReader(manifest, global_batch_size=64, connection=cluster.connection, hold_whole=False)

    with closing(reader):
        ids = [n for batch in reader for n in batch["id"].tolist()]

    assert sorted(ids) == list(range(num_samples))
    assert reader.num_wire_bytes <= 1.1 * stored_bytes(cluster, manifest)
