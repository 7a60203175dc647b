"""The one list of what is exported: names, units, labels, and how each is read from a snapshot.

The idea: an instrument is a function from what is known to points; an exporter is a loop over this list. So
Prometheus and OpenTelemetry can't differ, and a new instrument is one entry. Nothing is measured when an
exporter asks: it reads the cache, and the age of what it read is an instrument too.

Names are `evenload_<noun>_<unit>` in base units, counters end in `_total`. Labels are bounded: brokers and
their log dirs, sources, and the `MAX_TOPICS` topics that hold most bytes. OpenTelemetry's attributes have the
names of its messaging conventions where there is one
(https://opentelemetry.io/docs/specs/semconv/messaging/); `ATTRIBUTE_BY_LABEL` is where they are said.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from evenload.telemetry_collector.cache import CachedSnapshot, SnapshotCache
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot, LogDirSnapshot
from evenload.telemetry_collector.statistics import CollectorStatistics

__all__ = ["ATTRIBUTE_BY_LABEL", "INSTRUMENTS", "MAX_TOPICS", "Instrument", "Measured", "Point", "Reading"]

MAX_TOPICS = 100

ATTRIBUTE_BY_LABEL = {
    "broker_id": "evenload.broker.id",
    "client": "evenload.client.kind",
    "log_dir": "evenload.log_dir.path",
    "function": "evenload.function.name",
    "route": "http.route",
    "source": "evenload.source.name",
    "status": "http.response.status_code",
    "topic": "messaging.destination.name",
}


class Measured(Protocol):
    """What exporters read: a collector, or anything else with a cache and counts."""

    @property
    def cache(self) -> SnapshotCache:
        """Where the latest snapshot is."""
        ...

    @property
    def statistics(self) -> CollectorStatistics:
        """What was counted."""
        ...


class Reading(NamedTuple):
    """What is known at the moment of an export; `cached` is None before the first snapshot."""

    cached: CachedSnapshot | None
    statistics: CollectorStatistics

    @classmethod
    def of(cls, measured: Measured) -> Reading:
        """Read both, without waiting."""
        return cls(measured.cache.latest(), measured.statistics)


class Point(NamedTuple):
    """One value and its labels' values, in the order of the instrument's labels."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One exported quantity.

    Attributes:
        name: as Prometheus and OpenTelemetry show it.
        unit: in UCUM, as OpenTelemetry wants it: By, By/s, s, 1.
        kind: whether it goes up and down or only up.
        description: one sentence.
        labels: the names of its labels.
        read: the points in a reading; none where nothing is known yet.
    """

    name: str
    unit: Literal["By", "By/s", "s", "1"]
    kind: Literal["gauge", "counter"]
    description: str
    labels: tuple[str, ...]
    read: Callable[[Reading], Iterable[Point]]


def _of_brokers(
    value: Callable[[BrokerSnapshot, CachedSnapshot], float | None],
) -> Callable[[Reading], Iterable[Point]]:
    def read(reading: Reading) -> Iterable[Point]:
        cached = reading.cached
        if cached is not None:
            for broker_id, broker in cached.snapshot.brokers.items():
                known = value(broker, cached)
                if known is not None:
                    yield Point((str(broker_id),), known)

    return read


def _of_log_dirs(value: Callable[[LogDirSnapshot], float]) -> Callable[[Reading], Iterable[Point]]:
    def read(reading: Reading) -> Iterable[Point]:
        if reading.cached is not None:
            for broker_id, broker in reading.cached.snapshot.brokers.items():
                for path, log_dir in broker.log_dirs.items():
                    yield Point((str(broker_id), path), value(log_dir))

    return read


def _of_cluster(value: Callable[[CachedSnapshot], float]) -> Callable[[Reading], Iterable[Point]]:
    def read(reading: Reading) -> Iterable[Point]:
        if reading.cached is not None:
            yield Point((), value(reading.cached))

    return read


def _of_sources(field: str) -> Callable[[Reading], Iterable[Point]]:
    def read(reading: Reading) -> Iterable[Point]:
        for source, count in getattr(reading.statistics, field).items():
            yield Point((source,), count)

    return read


def _unreachable_s(broker: BrokerSnapshot, cached: CachedSnapshot) -> float:
    if broker.unreachable_since_s is None:
        return 0.0
    now_s = cached.snapshot.taken_at_s + cached.age_s
    return max(0.0, now_s - broker.unreachable_since_s)


def _largest_topics(snapshot: ClusterSnapshot) -> list[str]:
    stored: Counter[str] = Counter(dict.fromkeys(snapshot.topics, 0))
    for broker in snapshot.brokers.values():
        for (topic, _), size_bytes in broker.bytes_by_topic_partition.items():
            stored[topic] += size_bytes
    return heapq.nsmallest(MAX_TOPICS, stored, key=lambda topic: (-stored[topic], topic))


def _stored_bytes(reading: Reading) -> Iterable[Point]:
    if reading.cached is None:
        return
    snapshot = reading.cached.snapshot
    shown = set(_largest_topics(snapshot))
    for broker_id, broker in snapshot.brokers.items():
        stored: Counter[str] = Counter()
        for (topic, _), size_bytes in broker.bytes_by_topic_partition.items():
            if topic in shown:
                stored[topic] += size_bytes
        for topic, size_bytes in stored.items():
            yield Point((topic, str(broker_id)), size_bytes)


def _leader_bytes(reading: Reading) -> Iterable[Point]:
    if reading.cached is None:
        return
    snapshot = reading.cached.snapshot
    for topic in _largest_topics(snapshot):
        for broker_id, size_bytes in snapshot.leader_bytes(topic).items():
            yield Point((topic, str(broker_id)), size_bytes)


INSTRUMENTS: tuple[Instrument, ...] = (
    Instrument(
        name="evenload_broker_capacity_bytes",
        unit="By",
        kind="gauge",
        description="What a broker's log dirs may hold.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.capacity_bytes),
    ),
    Instrument(
        name="evenload_broker_used_bytes",
        unit="By",
        kind="gauge",
        description="What a broker's log dirs hold, all topics and all replicas.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.used_bytes),
    ),
    Instrument(
        name="evenload_broker_usable_bytes",
        unit="By",
        kind="gauge",
        description="What is left on a broker's volumes.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.usable_bytes),
    ),
    Instrument(
        name="evenload_broker_utilisation_ratio",
        unit="1",
        kind="gauge",
        description="Used over capacity of a broker, 0 to 1.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.utilisation),
    ),
    Instrument(
        name="evenload_broker_unreachable_seconds",
        unit="s",
        kind="gauge",
        description="For how long a broker hasn't answered; 0 while it does.",
        labels=("broker_id",),
        read=_of_brokers(_unreachable_s),
    ),
    Instrument(
        name="evenload_broker_latency_seconds",
        unit="s",
        kind="gauge",
        description="Round trip of the latest measurement that a broker answered.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.latency_s),
    ),
    Instrument(
        name="evenload_broker_request_latency_seconds",
        unit="s",
        kind="gauge",
        description="How long a broker takes over a producer's request, by its metrics or a client's.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.request_latency_s),
    ),
    Instrument(
        name="evenload_broker_ingest_bytes_per_second",
        unit="By/s",
        kind="gauge",
        description="What comes to a broker's log dirs in a second, over about the last minute.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: broker.ingest_bytes_per_s),
    ),
    Instrument(
        name="evenload_broker_cordoned_ratio",
        unit="1",
        kind="gauge",
        description="1 where a broker's operator wants nothing new on it, else 0.",
        labels=("broker_id",),
        read=_of_brokers(lambda broker, _: float(broker.is_cordoned)),
    ),
    Instrument(
        name="evenload_log_dir_capacity_bytes",
        unit="By",
        kind="gauge",
        description="What one of several volumes of a broker may hold.",
        labels=("broker_id", "log_dir"),
        read=_of_log_dirs(lambda log_dir: log_dir.capacity_bytes),
    ),
    Instrument(
        name="evenload_log_dir_used_bytes",
        unit="By",
        kind="gauge",
        description="What one of several volumes of a broker holds.",
        labels=("broker_id", "log_dir"),
        read=_of_log_dirs(lambda log_dir: log_dir.used_bytes),
    ),
    Instrument(
        name="evenload_utilisation_spread_ratio",
        unit="1",
        kind="gauge",
        description="Highest minus lowest utilisation over the brokers.",
        labels=(),
        read=_of_cluster(lambda cached: cached.snapshot.utilisation_spread),
    ),
    Instrument(
        name="evenload_snapshot_age_seconds",
        unit="s",
        kind="gauge",
        description="Age of the measurements that all other values come from.",
        labels=(),
        read=_of_cluster(lambda cached: cached.age_s),
    ),
    Instrument(
        name="evenload_topic_stored_bytes",
        unit="By",
        kind="gauge",
        description="What a broker holds of a topic, led by it or not.",
        labels=("topic", "broker_id"),
        read=_stored_bytes,
    ),
    Instrument(
        name="evenload_topic_leader_bytes",
        unit="By",
        kind="gauge",
        description="Bytes of a topic's partitions that a broker leads.",
        labels=("topic", "broker_id"),
        read=_leader_bytes,
    ),
    Instrument(
        name="evenload_snapshots_total",
        unit="1",
        kind="counter",
        description="Snapshots taken.",
        labels=(),
        read=lambda reading: [Point((), reading.statistics.num_snapshots)],
    ),
    Instrument(
        name="evenload_source_answers_total",
        unit="1",
        kind="counter",
        description="Questions to brokers that were answered.",
        labels=("source",),
        read=_of_sources("num_answers"),
    ),
    Instrument(
        name="evenload_source_failures_total",
        unit="1",
        kind="counter",
        description="Questions to brokers without a usable answer.",
        labels=("source",),
        read=_of_sources("num_failures"),
    ),
    Instrument(
        name="evenload_source_faults_total",
        unit="1",
        kind="counter",
        description="Those of the failures that are a fault of ours; the log has the traceback.",
        labels=("source",),
        read=_of_sources("num_faults"),
    ),
)
