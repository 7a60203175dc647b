"""The ways of choosing partitions that `benchmarks balance` compares: what people use today, and evenload.

Each is opened on a fresh topic, is told once or twice to write a number of records (another load may come in
between), and returns when they are acknowledged. All have their client's default settings, but for the same
memory for records on their way (32 MiB, the Java client's default), and wait for all replicas.

Seeds: kafka-python and evenload draw from Python's `random`; where the Java client and librdkafka begin, and
what their queues do, can't be seeded.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Producer
from kafka import KafkaProducer

from benchmarks.java.programs import following
from benchmarks.records import Records
from benchmarks.service_process import ServiceProcess
from evenload.jvm.jar import evenload_jar
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.local_cluster.jars import tools_classpath
from evenload.local_cluster.start import java_runtime
from evenload.router.config import RouterConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig

DELIVERY_TIMEOUT_S = 300.0
MEMORY_BYTES = 32 << 20
UNASSIGNED = -1  # librdkafka's word for "the partitioner decides"

# Another load that comes half-way through one of seconds, not minutes, has to be seen as much sooner: brokers
# are measured each 0.2 s instead of each 5 s, and shares decided anew each 0.1 s instead of each second.
WATCHFUL = (CollectorConfig(interval_s=0.2, full_interval_s=1.0), ProducerConfig(refresh_s=0.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be written, and where.

    Attributes:
        connection: The cluster, with the capacities of the layout.
        topic: Made, ready, empty.
        assignment: The replicas of each of its partitions, leader first.
        num_records: In all.
        records: Their values.
        records_per_s: No faster than this; None: as fast as can be.
    """

    connection: Connection
    topic: str
    assignment: Sequence[tuple[int, ...]]
    num_records: int
    records: Records
    records_per_s: float | None

    @property
    def num_bytes(self) -> int:
        """Payload in all."""
        return self.records.num_bytes(self.num_records)

    def turns(self, num_records: int) -> Iterator[int]:
        """0, 1, ... `num_records` - 1, no faster than wanted."""
        begun_s = time.monotonic()
        for number in range(num_records):
            if self.records_per_s is not None:
                time.sleep(max(0.0, begun_s + number / self.records_per_s - time.monotonic()))
            yield number


class Writer(Protocol):
    """Writes one load."""

    def write(self, num_records: int) -> None:
        """Write this many records, and have them acknowledged."""

    def close(self) -> None:
        """Leave nothing running."""


class JavaClient:
    """The Java client's built-in partitioner (KIP-794), in Kafka's own producer-performance tool."""

    def __init__(self, load: Load, more_settings: Mapping[str, str] | None = None) -> None:
        self._load = load
        self._more = [f"{name}={value}" for name, value in (more_settings or {}).items()]
        classpath = (*tools_classpath(), evenload_jar())
        self._runtime = replace(java_runtime(lambda _: None), classpath=classpath)

    def write(self, num_records: int) -> None:
        """As Writer.write, each time in a process of its own."""
        load = self._load
        servers = load.connection.bootstrap_servers
        with tempfile.TemporaryDirectory(prefix="evenload-java-") as scratch:
            subprocess.run(
                self._runtime.command(
                    Path(scratch),
                    "org.apache.kafka.tools.ProducerPerformance",
                    *("--topic", load.topic, "--num-records", str(num_records)),
                    *load.records.java_arguments(Path(scratch)),
                    *("--throughput", str(load.records_per_s or -1)),
                    *("--command-property", f"bootstrap.servers={servers}", "acks=all", *self._more),
                ),
                check=True,
                capture_output=True,
                timeout=DELIVERY_TIMEOUT_S,
            )

    def close(self) -> None:
        """Nothing runs."""


class JavaBalanced(JavaClient):
    """The same tool with evenload's partitioner, told how much will come, before a service of its own."""

    def __init__(self, load: Load) -> None:
        self._service = ServiceProcess(load.connection)
        self._service.__enter__()
        try:
            told = {
                "evenload.expect.bytes": str(load.num_bytes),
                "evenload.first.route.timeout.ms": "60000",  # a load of seconds shouldn't begin without
            }
            super().__init__(load, {**following(self._service.url), **told})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the service."""
        self._service.__exit__(None, None, None)


class KafkaPython:
    """kafka-python's default partitioner: each record to a random partition."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._values = load.records.values()
        self._producer = KafkaProducer(**load.connection.kafka_python_config(), acks="all")

    def write(self, num_records: int) -> None:
        """As Writer.write."""
        sent = [
            self._producer.send(self._load.topic, next(self._values)) for _ in self._load.turns(num_records)
        ]
        self._producer.flush(DELIVERY_TIMEOUT_S)
        for future in sent:
            future.get(0)

    def close(self) -> None:
        """Ends its thread."""
        self._producer.close()


class Librdkafka:
    """librdkafka through confluent-kafka.

    Args:
        load: What to write.
        choose: The partition of the next record, given its size; None leaves it to librdkafka's partitioner.
        producer: A producer of the caller's; None: one with default settings.
    """

    def __init__(
        self, load: Load, choose: Callable[[int], int] | None = None, producer: Producer | None = None
    ) -> None:
        self._load = load
        self._choose = choose
        self._values = load.records.values()
        self._failures: list[Any] = []
        self._producer = producer or confluent_producer(
            load.connection, queue_buffering_max_kbytes=MEMORY_BYTES >> 10
        )

    def write(self, num_records: int) -> None:
        """As Writer.write."""
        for _ in self._load.turns(num_records):
            self._send(next(self._values))
        left = self._producer.flush(DELIVERY_TIMEOUT_S)
        if left or self._failures:
            raise RuntimeError(f"{left} records weren't acknowledged, and failed: {self._failures[:3]}")

    def close(self) -> None:
        """All is acknowledged; nothing to do."""

    def _send(self, value: bytes) -> None:
        partition = UNASSIGNED if self._choose is None else self._choose(len(value))
        gives_up_s = time.monotonic() + DELIVERY_TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    self._load.topic, value, partition=partition, on_delivery=self._delivered
                )
            except BufferError:  # the queue is full: librdkafka's way of asking for patience
                if time.monotonic() > gives_up_s:
                    raise
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failures.append(error)


class Balanced(Librdkafka):
    """evenload's `BalancedProducer`, told how much will come; its defaults, unless the load may change.

    Args:
        load: What to write.
        router_config: What it levels by; None: by disks.
    """

    def __init__(self, load: Load, router_config: RouterConfig | None = None) -> None:
        collecting, deciding = WATCHFUL if load.records_per_s is not None else (None, None)
        self._collector = Collector(load.connection, collecting, topics=[]).start()
        try:
            self._balanced = BalancedProducer(
                {**load.connection.confluent_config(), "queue.buffering.max.kbytes": MEMORY_BYTES >> 10},
                connection=load.connection,
                config=deciding,
                collector=self._collector,
                router_config=router_config,
            )
        except BaseException:
            self._collector.close()
            raise
        self._balanced.expect(load.topic, load.num_bytes)
        super().__init__(load, producer=self._balanced)

    def close(self) -> None:
        """Ends the collector."""
        self._balanced.close()
        self._collector.close()


def round_robin(load: Load) -> Writer:
    """Partitions in turn, even in bytes."""
    return Librdkafka(load, by_shares([1.0] * len(load.assignment)))


def by_record_counts(load: Load) -> Writer:
    """As many records for each broker, whatever their sizes: brokers in turn, and each one's partitions."""
    by_leader: dict[int, Iterator[int]] = {
        leader: cycle([number for number, ids in enumerate(load.assignment) if ids[0] == leader])
        for leader in sorted({ids[0] for ids in load.assignment})
    }
    turn = cycle(by_leader.values())
    return Librdkafka(load, lambda _: next(next(turn)))


def weighted_by_capacity(load: Load) -> Writer:
    """Static shares, as an operator would configure them: by the capacity of who leads a partition."""
    capacity = load.connection.capacity_bytes_by_broker
    leaders = [replicas[0] for replicas in load.assignment]
    return Librdkafka(load, by_shares([capacity[leader] / leaders.count(leader) for leader in leaders]))


def by_shares(shares: Sequence[float]) -> Callable[[int], int]:
    """Chooses the partition that is furthest behind its share, in bytes."""
    sent = [0] * len(shares)
    whole = sum(shares)

    def choose(size_bytes: int) -> int:
        total = sum(sent) + size_bytes
        partition = max(range(len(shares)), key=lambda place: shares[place] / whole * total - sent[place])
        sent[partition] += size_bytes
        return partition

    return choose
