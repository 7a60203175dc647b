"""How fast can a shuffled epoch be read? `python -m benchmarks read`

3 KiB uint8 samples in a packed dataset on three embedded brokers; batches of 256. Interleaved in one run:
evenload's DatasetReader (epoch 0, shuffled), an unshuffled raw fetch of the same bytes (no decoding, no
batches: the ceiling), confluent-kafka's sequential consumption (is the ceiling a real one?), torch's
DataLoader over the same samples in memory (default collate, no workers), and ray.data.read_kafka on a plain
topic with one sample a record, which is what it is made for.

The brokers' Java compiles fully here, as in production (embedded brokers stop at the first tier, to start
sooner), and gets warm in passes that don't count. Each way begins when the one before has gone quiet: Ray's
workers go on for a while.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import psutil
import ray
import torch
from confluent_kafka import TopicPartition
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.results import RESULTS_FOLDER, machine, write_json, write_svg
from benchmarks.stage import FULL_COMPILER
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import temporary_cluster
from evenload.ray_trainer.fetching.fetch import BlockRange, ExactRangeFetcher, fetch_all
from evenload.ray_trainer.reading.reader import DatasetReader

SAMPLE_BYTES = 3072
BATCH = 256
AHEAD_BYTES = 32 << 20
# Java reads it last: it overrides the command line.
PLAIN_TOPIC = "plain"
NUM_WARM_UPS = 30
QUIET_PERCENT = 20  # of the processors' time
GOAL_OF_RAW, GOAL_OF_RAY = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One pass over all samples: how long it took, and the bytes on the wire where they are known."""

    seconds: float
    num_wire_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What all the ways read: the same samples, packed, one a record in a plain topic, and in memory."""

    connection: Connection
    packed: DatasetManifest
    plain_topic: str
    samples: Mapping[str, Any]


@click.command()
@click.option("--samples", "num_samples", type=click.IntRange(2_000), default=200_000, show_default=True)
@click.option("--repetitions", type=click.IntRange(1), default=15, show_default=True)
@click.option("--results", "folder", type=click.Path(file_okay=False, path_type=Path), default=RESULTS_FOLDER)
def read(num_samples: int, repetitions: int, folder: Path) -> None:
    """How fast a shuffled epoch is read; exit status 1 below half of a raw fetch or five times Ray Data."""
    console = Console(highlight=False)
    with _stand(num_samples, console) as stand:
        readings: dict[str, list[Reading]] = {name: [] for name in WAYS}
        console.print(f"warming up, {NUM_WARM_UPS} passes")
        for _ in range(NUM_WARM_UPS):
            _read_evenload(stand)
            _read_raw(stand)
        for repetition in range(repetitions):
            for name, way in WAYS.items():
                console.print(f"[dim]{repetition + 1}/{repetitions} {name}[/dim]")
                _wait_until_quiet()
                readings[name].append(way(stand))
    document = _document(stand, readings)
    console.print(_table(document))
    write_json(folder / "read.json", document)
    write_svg(folder / "read.svg", _draw(document))
    if document["of_raw_fetch"] < GOAL_OF_RAW or document["of_ray_data"] < GOAL_OF_RAY:
        raise click.exceptions.Exit(1)


@contextmanager
def _stand(num_samples: int, console: Console) -> Iterator[Stand]:
    draw = np.random.default_rng(0)
    samples = {
        "pixels": draw.integers(0, 256, (num_samples, SAMPLE_BYTES), dtype=np.uint8),
        "label": draw.integers(0, 10, num_samples),
    }
    with patch.dict(os.environ, FULL_COMPILER), temporary_cluster(num_brokers=3) as cluster:
        console.print(f"loading {num_samples:,} samples of {SAMPLE_BYTES} bytes, twice")
        connection = cluster.connection
        packed = load_dataset(samples, "packed", connection=connection)
        _write_plain(connection, samples["pixels"])
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            yield Stand(connection=connection, packed=packed, plain_topic=PLAIN_TOPIC, samples=samples)
        finally:
            ray.shutdown()


def _write_plain(connection: Connection, pixels: Any) -> None:
    """One sample a record, without transactions: read_kafka waits for the offset before the end, which is a
    commit marker in a topic that was written with them."""
    create_topic(
        connection, PLAIN_TOPIC, num_partitions=6, replication=1, assignments=None, configs={}, timeout_s=30
    )
    producer = confluent_producer(connection)
    for number, row in enumerate(pixels):
        producer.produce(PLAIN_TOPIC, row.tobytes(), partition=number % 6)
        if number % 1000 == 0:
            producer.flush()
    producer.flush()


def _wait_until_quiet() -> None:
    for _ in range(50):
        if psutil.cpu_percent(interval=0.1) < QUIET_PERCENT:
            return
    raise click.ClickException("the machine is too busy with something else to measure anything")


def _read_evenload(stand: Stand) -> Reading:
    reader = DatasetReader("packed", global_batch_size=BATCH, seed=7, connection=stand.connection)
    begun_s = time.perf_counter()
    num_samples = sum(len(batch["pixels"]) for batch in reader)
    seconds = time.perf_counter() - begun_s
    num_wire_bytes = reader.num_wire_bytes
    reader.close()
    _check(num_samples, stand)
    return Reading(seconds, num_wire_bytes)


def _read_raw(stand: Stand) -> Reading:
    """All blocks by exact ranges, partitions in turn; the values are counted and dropped."""
    manifest, extents = stand.packed, stand.packed.extent_arrays()
    size = manifest.num_bytes // manifest.num_records
    by_partition: dict[int, list[BlockRange]] = {}
    for partition, first, count in zip(
        extents.partition, extents.first_offset, extents.num_records, strict=True
    ):
        ranges = (BlockRange(int(partition), int(first) + record, 1, size) for record in range(count))
        by_partition.setdefault(int(partition), []).extend(ranges)
    order = [block for turn in zip_longest(*by_partition.values()) for block in turn if block is not None]
    begun_s = time.perf_counter()
    with ExactRangeFetcher.of_manifest(stand.connection, manifest) as fetcher:
        num_bytes = sum(
            len(value)
            for block in fetch_all(fetcher, order, ahead_bytes=AHEAD_BYTES)
            for value in block.values
        )
        seconds = time.perf_counter() - begun_s
        num_wire_bytes = fetcher.num_wire_bytes
    if num_bytes != manifest.num_bytes:
        raise RuntimeError(f"a raw fetch read {num_bytes} bytes of {manifest.num_bytes}")
    return Reading(seconds, num_wire_bytes)


def _read_confluent(stand: Stand) -> Reading:
    """All partitions from their beginning, as fast as librdkafka gives them."""
    consumer = confluent_consumer(
        stand.connection,
        queued_max_messages_kbytes=64 << 10,
        fetch_message_max_bytes=8 << 20,
        fetch_queue_backoff_ms=2,  # by default it pauses for a second whenever its queue is full
    )
    begun_s = time.perf_counter()
    consumer.assign(
        [TopicPartition(stand.packed.topic, part.partition, 0) for part in stand.packed.partitions]
    )
    left = stand.packed.num_records
    while left:
        for message in consumer.consume(100, 0.1):
            if message.error():
                raise RuntimeError(str(message.error()))
            left -= 1
    seconds = time.perf_counter() - begun_s
    consumer.close()
    return Reading(seconds)


def _read_memory(stand: Stand) -> Reading:
    held = TensorDataset(*(torch.from_numpy(column) for column in stand.samples.values()))
    loader = DataLoader(held, batch_size=BATCH, shuffle=True)
    begun_s = time.perf_counter()
    num_samples = sum(len(pixels) for pixels, _ in loader)
    seconds = time.perf_counter() - begun_s
    _check(num_samples, stand)
    return Reading(seconds)


def _read_ray(stand: Stand) -> Reading:
    begun_s = time.perf_counter()
    dataset = ray.data.read_kafka(stand.plain_topic, bootstrap_servers=stand.connection.bootstrap_servers)
    num_samples = sum(len(batch["value"]) for batch in dataset.iter_batches(batch_size=BATCH))
    seconds = time.perf_counter() - begun_s
    _check(num_samples, stand)
    return Reading(seconds)


def _check(num_samples: int, stand: Stand) -> None:
    if num_samples != stand.packed.num_samples:
        raise RuntimeError(f"read {num_samples} samples of {stand.packed.num_samples}")


EVENLOAD, RAW, RAY = "evenload, shuffled", "raw fetch, in order", "ray.data.read_kafka, in order"
CONFLUENT = "confluent-kafka, sequential"
WAYS: Mapping[str, Callable[[Stand], Reading]] = {
    EVENLOAD: _read_evenload,
    RAW: _read_raw,
    CONFLUENT: _read_confluent,
    "torch DataLoader, in memory": _read_memory,
    RAY: _read_ray,
}


def _document(stand: Stand, readings: Mapping[str, list[Reading]]) -> dict[str, Any]:
    num_samples = stand.packed.num_samples

    def ratio_to(other: str) -> float:
        """The median over repetitions of how many times faster evenload was."""
        pairs = zip(readings[EVENLOAD], readings[other], strict=True)
        return statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs)

    rows = []
    for name, passes in readings.items():
        wire = passes[0].num_wire_bytes
        rows.append(
            {
                "way": name,
                "samples_per_s": round(num_samples / statistics.median(each.seconds for each in passes)),
                "seconds": [round(each.seconds, 3) for each in passes],
                "wire_over_payload": None if wire is None else round(wire / stand.packed.num_bytes, 3),
                "evenload_is_faster_by": round(ratio_to(name), 3),
            }
        )
    return {
        "benchmark": "read",
        "machine": machine("torch", "ray", "confluent-kafka", "kafka-python"),
        "num_samples": num_samples,
        "num_bytes": stand.packed.num_bytes,
        "batch": BATCH,
        "of_raw_fetch": round(ratio_to(RAW), 3),
        "of_ray_data": round(ratio_to(RAY), 3),
        "of_confluent": round(ratio_to(CONFLUENT), 3),
        "ways": rows,
    }


def _table(document: Mapping[str, Any]) -> Table:
    table = Table("way", "samples/s", "wire / payload", "evenload is faster by", box=None)
    for row in document["ways"]:
        wire = row["wire_over_payload"]
        table.add_row(
            row["way"],
            f"{row['samples_per_s']:,}",
            f"{wire:.3f}" if wire else "",
            f"{row['evenload_is_faster_by']:.2f}",
        )
    return table


def _draw(document: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    rows = list(reversed(document["ways"]))
    bars = axes.barh([row["way"] for row in rows], [row["samples_per_s"] for row in rows], color="#2b7de9")
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set_xlabel(f"samples/s ({SAMPLE_BYTES} bytes each)")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
