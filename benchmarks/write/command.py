"""`python -m benchmarks write`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
from confluent_kafka import Producer
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.results import keep, results_option, tell_misses
from benchmarks.stage import FULL_COMPILER
from benchmarks.windows import (
    check_offset,
    fastest_batches,
    fastest_window,
    first_records,
    scheduled_window,
)
from benchmarks.write.collector_conditions import CONDITIONS, Opener
from benchmarks.write.java_clients import java_clients, measure_java_batches, measure_java_latency
from benchmarks.write.report import (
    OURS,
    PLAIN,
    LatencyRow,
    ThroughputRow,
    document,
    draw,
    misses,
    tables,
)
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import temporary_cluster

BROKER_PROPERTIES = {"log.retention.check.interval.ms": "500", "log.segment.delete.delay.ms": "20"}
TOPIC_CONFIGS = {"retention.bytes": str(32 << 20), "segment.bytes": str(16 << 20)}
PARTITIONS_A_BROKER = 4
CAPACITY_BYTES = 1 << 40  # as said, as a disk has it; embedded brokers don't enforce it

LATENCY_RECORD_BYTES = 4 << 10
LEAD_S, WINDOW_S = 0.2, 0.6  # the generator falls behind in longer ones near the limit
# Pairs of windows, by condition and load. Near the limit, windows differ most.
LATENCY_PAIRS = {
    ("well", 0.2): 48,
    ("well", 0.5): 48,
    ("well", 0.8): 96,
    ("dead", 0.5): 96,
    ("slow", 0.5): 48,
    ("service", 0.5): 48,
    ("service", 0.8): 96,
    ("lying", 0.5): 24,
    ("60/60/20", 0.5): 48,
    ("60/60/20, no bounds", 0.5): 48,
}
JAVA_PAIRS = {0.2: 48, 0.5: 48}
NUM_BATCH_PAIRS = 6
NUM_RATE_WINDOWS, RATE_WINDOW_BYTES = 7, 512 << 20

THROUGHPUT_RECORD_BYTES = (100, 4 << 10, 64 << 10, 256 << 10)
NUM_THROUGHPUT_PAIRS = 48
THROUGHPUT_WINDOW_BYTES, THROUGHPUT_WINDOW_RECORDS = 128 << 20, 100_000
WARM_UP_BYTES, WARM_UP_RECORDS = 768 << 20, 300_000  # of each size, whatever is less


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where both write: a topic for each, of one layout; and what both are told."""

    connection: Connection
    topics: Mapping[str, str]
    num_partitions: int
    settings: Mapping[str, Any]

    def open_plain(self) -> AbstractContextManager[Producer]:
        """A plain producer, closed afterwards."""
        return Producer(dict(self.settings))


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="A tenth of the windows: whether it works at all. Writes no result unless --results is given.",
)
@results_option
def write(quick: bool, folder: Path | None) -> None:
    """What balance costs a producer; exit status 1 where it costs more than the goals allow."""
    console = Console(highlight=False)
    shrink = 10 if quick else 1
    logging.getLogger("evenload.kafka_plugin").setLevel(
        logging.ERROR
    )  # each producer says that nobody answers it
    with cluster_stand() as stand:
        console.print("warming up")
        warm_up(stand, 1 / shrink)
        rate = sustained_rate(stand, max(2, NUM_RATE_WINDOWS // shrink))
        console.print(f"the brokers sustain {rate:,.0f} records of {LATENCY_RECORD_BYTES} bytes a second")
        latencies = []
        for (condition, load), pairs in LATENCY_PAIRS.items():
            num_pairs = max(2, pairs // shrink)
            console.print(f"[dim]latency, collector {condition}, {load:.0%}, {num_pairs} pairs[/dim]")
            latencies.append(measure_latency(stand, condition, load, rate * load, num_pairs))
        with java_clients(stand.connection) as windows:
            for load, pairs in JAVA_PAIRS.items():
                num_pairs = max(2, pairs // shrink)
                console.print(f"[dim]latency, Java's client, {load:.0%}, {num_pairs} pairs[/dim]")
                row = measure_java_latency(
                    windows,
                    stand.topics,
                    stand.num_partitions,
                    load=load,
                    records_per_s=rate * load,
                    record_bytes=LATENCY_RECORD_BYTES,
                    lead_s=LEAD_S,
                    window_s=WINDOW_S,
                    num_pairs=num_pairs,
                )
                latencies.append(row)
            batches = measure_java_batches(
                windows, stand.topics, stand.num_partitions, max(2, NUM_BATCH_PAIRS // shrink)
            )
        throughputs = []
        for record_bytes in THROUGHPUT_RECORD_BYTES:
            console.print(f"[dim]throughput, records of {record_bytes:,} bytes[/dim]")
            throughputs += measure_throughput(stand, record_bytes, max(2, NUM_THROUGHPUT_PAIRS // shrink))
    result = document(rate, LATENCY_RECORD_BYTES, latencies, throughputs, batches)
    for table in tables(result):
        console.print(table)
    keep(result, lambda: draw(result), folder, is_whole=not quick)
    tell_misses(console, misses(result), is_judged=not quick)


@contextmanager
def cluster_stand() -> Iterator[Stand]:
    """Three brokers that compile fully, and both topics."""
    with (
        patch.dict(os.environ, FULL_COMPILER),
        temporary_cluster(
            num_brokers=3, capacity_bytes=[CAPACITY_BYTES] * 3, broker_properties=BROKER_PROPERTIES
        ) as cluster,
    ):
        yield make_stand(cluster.connection, cluster.broker_ids)


def make_stand(connection: Connection, broker_ids: Sequence[int]) -> Stand:
    """Both topics, with as many partitions on each broker."""
    topics = {PLAIN: "write-plain", OURS: "write-evenload"}
    for topic in topics.values():
        create_topic(
            connection,
            topic,
            num_partitions=PARTITIONS_A_BROKER * len(broker_ids),
            replication=None,
            assignments=[(broker_id,) for broker_id in broker_ids] * PARTITIONS_A_BROKER,
            configs=TOPIC_CONFIGS,
            timeout_s=60,
        )
    settings = {
        **connection.confluent_config(),
        "acks": "all",
        "enable.idempotence": True,
        "queue.buffering.max.kbytes": 64 << 10,
        "log_level": 3,
    }
    return Stand(
        connection=connection,
        topics=topics,
        num_partitions=PARTITIONS_A_BROKER * len(broker_ids),
        settings=settings,
    )


def warm_up(stand: Stand, fraction: float) -> None:
    """Write until Java has compiled what matters: large records, and many small ones."""
    with stand.open_plain() as producer:
        for topic in stand.topics.values():
            for record_bytes in THROUGHPUT_RECORD_BYTES:
                num_records = int(fraction * min(WARM_UP_BYTES // record_bytes, WARM_UP_RECORDS))
                fastest_window(producer, topic, num_records=num_records, record_bytes=record_bytes)


def sustained_rate(stand: Stand, num_windows: int) -> float:
    """Records a second that the plain client gets acknowledged when it writes as fast as can be."""
    num_records = RATE_WINDOW_BYTES // LATENCY_RECORD_BYTES
    with stand.open_plain() as producer:
        seconds = [
            fastest_window(
                producer,
                stand.topics[PLAIN],
                num_records=num_records,
                record_bytes=LATENCY_RECORD_BYTES,
                told=check_offset,
            )
            for _ in range(num_windows)
        ]
    return num_records / float(np.median(seconds))


def measure_latency(
    stand: Stand, condition: str, load: float, records_per_s: float, num_pairs: int
) -> LatencyRow:
    """Windows of both in turn, each with a producer of its own, so that a plain window bears no collector.

    A producer's first records, for which it connects to brokers and ours waits for a measurement, are timed
    by themselves.
    """
    windows: dict[str, list[NDArray[np.float64]]] = {PLAIN: [], OURS: []}
    first_s: dict[str, list[float]] = {PLAIN: [], OURS: []}
    with CONDITIONS[condition](stand.connection, stand.topics[OURS]) as open_ours:

        def run(name: str) -> None:
            with _open(stand, name, open_ours) as producer:
                first_s[name].append(first_records(producer, stand.topics[name], stand.num_partitions))
                latencies = scheduled_window(
                    producer,
                    stand.topics[name],
                    records_per_s=records_per_s,
                    record_bytes=LATENCY_RECORD_BYTES,
                    lead_s=LEAD_S,
                    window_s=WINDOW_S,
                )
            windows[name].append(latencies)

        _in_turn({name: partial(run, name) for name in windows}, num_pairs)
    return LatencyRow(
        condition=condition,
        load=load,
        records_per_s=records_per_s,
        first_s=first_s,
        p50_ms={name: _percentiles_ms(windows[name], 50) for name in windows},
        p99_ms={name: _percentiles_ms(windows[name], 99) for name in windows},
    )


def _open(stand: Stand, name: str, open_ours: Opener) -> AbstractContextManager[Producer]:
    return stand.open_plain() if name == PLAIN else open_ours(stand.settings)


def _percentiles_ms(windows: Sequence[NDArray[np.float64]], percent: float) -> list[float]:
    return [round(float(np.percentile(window, percent)) * 1000, 4) for window in windows]


def measure_throughput(stand: Stand, record_bytes: int, num_pairs: int) -> list[ThroughputRow]:
    """One by one and in batches, with reports and without, both clients in turn."""
    num_records = min(THROUGHPUT_WINDOW_RECORDS, THROUGHPUT_WINDOW_BYTES // record_bytes)
    rows = []
    with ExitStack() as opened:
        producers: dict[str, Producer] = {
            PLAIN: opened.enter_context(stand.open_plain()),
            OURS: opened.enter_context(BalancedProducer(stand.settings, connection=stand.connection)),
        }
        for method, window in (("produce", fastest_window), ("produce_batch", fastest_batches)):
            for told in (None, check_offset):
                seconds: dict[str, list[float]] = {PLAIN: [], OURS: []}

                def run(name: str, window: Any = window, told: Any = told, seconds: Any = seconds) -> None:
                    spent_s = window(
                        producers[name],
                        stand.topics[name],
                        num_records=num_records,
                        record_bytes=record_bytes,
                        told=told,
                    )
                    seconds[name].append(spent_s)

                ways = {name: partial(run, name) for name in seconds}
                _in_turn(ways, 1)
                seconds[PLAIN].clear()
                seconds[OURS].clear()
                _in_turn(ways, num_pairs)
                rate = {name: [num_records / each for each in seconds[name]] for name in seconds}
                rows.append(
                    ThroughputRow(
                        record_bytes=record_bytes, method=method, has_reports=told is not None, rate=rate
                    )
                )
    return rows


def _in_turn(ways: Mapping[str, Callable[[], None]], num_pairs: int) -> None:
    """A B B A A B B A ..."""
    for pair in range(num_pairs):
        for name in list(ways) if pair % 2 == 0 else reversed(list(ways)):
            ways[name]()
