"""The same windows with Kafka's Java client: its own partitioner, and evenload's with a real service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks.java.programs import JavaWindows, following, java_windows
from benchmarks.service_process import ServiceProcess
from benchmarks.write.report import OURS, PLAIN, LatencyRow
from evenload.kafka_connection import Connection

BATCH_RECORD_BYTES, BATCH_RECORDS_PER_S, BATCH_WINDOW_S = 1 << 10, 4000.0, 4.0
NUM_WARM_UPS = 8
CONDITION = "Java, service"


@contextmanager
def java_clients(connection: Connection) -> Iterator[JavaWindows]:
    """A JVM with both kinds of producers, and the service that one of them follows."""
    with ServiceProcess(connection) as service:
        plain = {"bootstrap.servers": connection.bootstrap_servers, "acks": "all"}
        with java_windows({PLAIN: plain, OURS: {**plain, **following(service.url)}}) as windows:
            yield windows


def measure_java_latency(
    windows: JavaWindows,
    topics: Mapping[str, str],
    num_partitions: int,
    *,
    load: float,
    records_per_s: float,
    record_bytes: int,
    lead_s: float,
    window_s: float,
    num_pairs: int,
) -> LatencyRow:
    """Windows of both in turn, each with a producer of its own."""
    told: dict[str, list[dict[str, float]]] = {PLAIN: [], OURS: []}
    for pair in range(-NUM_WARM_UPS, num_pairs):
        for name in (PLAIN, OURS) if pair % 2 == 0 else (OURS, PLAIN):
            window = windows.window(
                name,
                topics[name],
                num_partitions,
                records_per_s=records_per_s,
                record_bytes=record_bytes,
                lead_s=lead_s,
                window_s=window_s,
            )
            if pair >= 0:
                told[name].append(window)
    of = {
        key: {name: [each[key] for each in told[name]] for name in told}
        for key in ("first_s", "p50_ms", "p99_ms")
    }
    return LatencyRow(condition=CONDITION, load=load, records_per_s=records_per_s, **of)


def measure_java_batches(
    windows: JavaWindows, topics: Mapping[str, str], num_partitions: int, num_pairs: int
) -> dict[str, list[float]]:
    """The mean size of a batch, in bytes, for each of some windows at a rate that no broker feels."""
    batches: dict[str, list[float]] = {PLAIN: [], OURS: []}
    for _ in range(num_pairs):
        for name, sizes in batches.items():
            window = windows.window(
                name,
                topics[name],
                num_partitions,
                records_per_s=BATCH_RECORDS_PER_S,
                record_bytes=BATCH_RECORD_BYTES,
                lead_s=0.0,
                window_s=BATCH_WINDOW_S,
            )
            sizes.append(window["batch_bytes"])
    return batches
