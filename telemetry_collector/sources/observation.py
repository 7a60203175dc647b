"""What was heard, from whom and when; and the snapshot that follows from it.

The idea: measuring is a set of independent conversations, one with each broker and one about the cluster as
a whole, and any of them may be late or fall silent. Each answer or silence is entered here as it comes. A
snapshot is then a pure function of the entries: it never waits for a broker, and it says of each what was
last known and since when nothing was heard.

Its `taken_at_s` is the time before which no figure of a broker that answers was measured; bytes written after
it are certainly not all counted, bytes written before it are. Exceptions are by design: a broker that missed
an answer keeps its last figures; the sizes and layout of all partitions are asked seldom, and so are metrics
and topics' configurations (config.py).

One missed answer makes no broker unreachable, as all producers would leave it at once for a slow disk or a
lost packet between it and us alone. It takes one of:

- `MISSES_MAX` missed answers in a row,
- a missed answer, and a second witness: the cluster doesn't list it as alive, or has taken from it what it
  led when it last answered (`_is_deposed`),
- a missed answer of a broker that has never answered: nothing is known that could be used.

Whatever comes first: a broker that hangs is left three deadlines and two backoffs after it was asked, at the
latest; one that refuses connections within two seconds.

Invariants, checked in tests/property/telemetry_collector/test_observation.py:
1. A broker is unreachable in the snapshot exactly when one of these was so since its last answer.
2. No figure of a broker whose latest outcome is an answer was asked for before `taken_at_s`.
3. A broker that anything refers to (metadata, a replica, a configured capacity) is in the snapshot.

Not thread-safe: it belongs to the collector's loop. Times that come in are monotonic; the wall clock is
only used to say them. Read next: collector.py, which holds the conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import NamedTuple

from evenload.telemetry_collector.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    LogDirSnapshot,
    PartitionSnapshot,
    ReplicationThrottles,
    TopicConfig,
    TopicPartition,
)
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics, MetricsBook
from evenload.telemetry_collector.sources.byte_rate import ByteRate

__all__ = [
    "MISSES_MAX",
    "Assembled",
    "BrokerStorage",
    "ClusterLayout",
    "HeardConfigs",
    "HeardThrottles",
    "Observations",
]

MISSES_MAX = 3
# What producers say that they send to a broker counts up to there, whoever makes it up: the mean of what
# brokers take is at least half their median, so the score function `ingest_rate` stays at a quarter or more.
_SENT_MIN_BYTES_PER_S, _SENT_FACTOR = float(4 << 20), 2.0

_Topics = Mapping[str, Mapping[int, PartitionSnapshot]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLayout:
    """Who is in the cluster and where partitions are kept.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        racks: the rack (or None) of each broker that the cluster counts as alive.
        topics: the layout of each topic asked for that exists; None when no topic was asked for.
        warnings: sentences about what isn't known.
    """

    cluster_id: str
    racks: Mapping[int, str | None]
    topics: _Topics | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStorage:
    """What one broker says about its log dirs, all of them together.

    Attributes:
        capacity_bytes: what they may hold; None when neither it nor the configuration tells.
        used_bytes: what they hold.
        usable_bytes: what is left; None when it can't be told.
        bytes_by_topic_partition: stored bytes of each replica asked for; None when no sizes were asked for.
        is_cordoned: whether its operator wants nothing new in any of them.
        log_dirs: as a snapshot has them; without replicas when no sizes were asked for.
        warnings: sentences about figures that are used though they look wrong.
    """

    capacity_bytes: int | None
    used_bytes: int
    usable_bytes: int | None
    bytes_by_topic_partition: Mapping[TopicPartition, int] | None
    is_cordoned: bool = False
    log_dirs: Mapping[str, LogDirSnapshot] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("capacity_bytes", "used_bytes", "usable_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}, it can't be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardConfigs:
    """What topics' configurations say.

    Attributes:
        topic_configs: as a snapshot has it.
        warnings: sentences about what isn't known.
    """

    topic_configs: Mapping[str, TopicConfig]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardThrottles:
    """What is set about the rate of replication.

    Attributes:
        throttles: as a snapshot has it; None where nobody may say.
        warnings: sentences about what isn't known.
    """

    throttles: ReplicationThrottles | None
    warnings: tuple[str, ...] = ()


class Assembled(NamedTuple):
    """A snapshot, and the monotonic times that its freshness is judged by.

    Attributes:
        measured_at_s: no figure of a broker that answers is older, nor is the list of brokers.
        layout_at_s: the topics' layout is not older.
    """

    snapshot: ClusterSnapshot
    measured_at_s: float
    layout_at_s: float


@dataclass(slots=True)
class _BrokerRecord:
    referred_at_s: float
    storage: BrokerStorage | None = None
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_dirs: Mapping[str, LogDirSnapshot] = field(default_factory=dict)
    ingest: ByteRate = field(default_factory=ByteRate)
    asked_at_s: float = 0.0
    latency_s: float | None = None
    num_misses: int = 0  # since its last answer
    missed_since_s: float | None = None
    unreachable_since_s: float | None = None
    topics_then: _Topics = field(default_factory=dict)  # the layout when it last answered
    rack: str | None = None

    @property
    def has_been_tried(self) -> bool:
        return self.storage is not None or self.unreachable_since_s is not None

    def hear(self, storage: BrokerStorage, *, asked_at_s: float) -> None:
        if self.storage is not None and self.storage.capacity_bytes != storage.capacity_bytes:
            # A log dir failed or came back, or a volume was resized: what it held then is no earlier total.
            self.ingest.interrupt()
        self.ingest.read(storage.used_bytes, at_s=asked_at_s)
        if storage.bytes_by_topic_partition is not None:
            self.sizes = storage.bytes_by_topic_partition
            self.log_dirs = storage.log_dirs
        else:
            self.log_dirs = {
                path: replace(told, topic_partitions=known.topic_partitions)
                if (known := self.log_dirs.get(path))
                else told
                for path, told in storage.log_dirs.items()
            }
        self.storage = storage
        self.asked_at_s = asked_at_s
        self.num_misses = 0
        self.missed_since_s = self.unreachable_since_s = None

    def miss(self, *, asked_at_s: float) -> None:
        self.num_misses += 1
        if self.missed_since_s is None:
            self.missed_since_s = asked_at_s

    def judge(self, *, is_listed: bool, is_deposed: Callable[[], bool]) -> None:
        """Call it unreachable if what was missed so far and what the cluster says are enough for that."""
        if self.missed_since_s is None or self.unreachable_since_s is not None:
            return
        is_enough = self.storage is None or not is_listed or self.num_misses >= MISSES_MAX
        if is_enough or is_deposed():
            self.unreachable_since_s = self.missed_since_s
            self.ingest.interrupt()  # it may come back with other disks


class Observations:
    """Everything heard so far about one cluster.

    Args:
        capacity_bytes_by_broker: configured capacities; a broker named here exists, whoever else knows it.
        forget_broker_after_s: how long a broker that nothing refers to any more is kept.
        metrics_sources: names of the sources that will tell metrics, in the order in which they count.
        metrics_max_age_s: how long metrics count.
        metrics_claims: those sources that hand on what anybody may have made up.
    """

    def __init__(
        self,
        *,
        capacity_bytes_by_broker: Mapping[int, int] | None = None,
        forget_broker_after_s: float = 600.0,
        metrics_sources: Sequence[str] = (),
        metrics_max_age_s: float = 30.0,
        metrics_claims: Collection[str] = (),
    ) -> None:
        self._capacities = dict(capacity_bytes_by_broker or {})
        self._forget_after_s = forget_broker_after_s
        self._brokers: dict[int, _BrokerRecord] = {}
        self._metrics = MetricsBook(metrics_sources, max_age_s=metrics_max_age_s, claims=metrics_claims)
        self._layout: ClusterLayout | None = None
        self._layout_at_s = 0.0
        self._replica_ids: frozenset[int] = frozenset()
        self._topic_configs: Mapping[str, TopicConfig] = {}
        self._throttles: ReplicationThrottles | None = None
        self._answered_at_s = 0.0
        self._measured_at_s: float | None = None

    @property
    def layout(self) -> ClusterLayout | None:
        """The latest list of brokers together with the latest layout of topics."""
        return self._layout

    @property
    def broker_ids(self) -> frozenset[int]:
        """The brokers to ask: those alive, and those that should be."""
        return frozenset(self._brokers)

    def hear_layout(self, layout: ClusterLayout, *, asked_at_s: float) -> None:
        """Enter the answer to a question that was asked at `asked_at_s`; always of the same cluster."""
        known = self._layout
        assert known is None or known.cluster_id == layout.cluster_id
        topics = layout.topics
        if topics is None:
            topics = known.topics if known is not None else None
        else:
            self._layout_at_s = asked_at_s
            self._replica_ids = frozenset(_replica_ids(topics))
        self._layout = ClusterLayout(cluster_id=layout.cluster_id, racks=layout.racks, topics=topics)
        self._answered_at_s = asked_at_s
        for broker_id in {*layout.racks, *self._capacities, *self._replica_ids}:
            record = self._brokers.setdefault(broker_id, _BrokerRecord(asked_at_s))
            record.referred_at_s = asked_at_s
            record.rack = layout.racks.get(broker_id, record.rack)
        for broker_id in self._brokers:
            self._judge(broker_id)
        self._forget_before(asked_at_s - self._forget_after_s)

    def hear_storage(
        self, broker_id: int, storage: BrokerStorage, *, asked_at_s: float, latency_s: float
    ) -> None:
        """Enter a broker's answer. One that has been forgotten meanwhile is ignored."""
        record = self._brokers.get(broker_id)
        if record is None:
            return
        record.hear(storage, asked_at_s=asked_at_s)
        record.latency_s = latency_s
        assert self._layout is not None, "brokers are known from a layout"
        record.topics_then = self._layout.topics or {}

    def hear_metrics(
        self, source_name: str, broker_id: int, metrics: BrokerMetrics, *, asked_at_s: float
    ) -> None:
        """Enter what a source told about a broker. One that has been forgotten meanwhile is ignored."""
        if broker_id in self._brokers:
            self._metrics.hear(source_name, broker_id, metrics, asked_at_s=asked_at_s)

    def hear_configs(self, heard: HeardConfigs) -> None:
        """Enter topics' configurations; they stay in force until others are heard."""
        self._topic_configs = heard.topic_configs

    def hear_throttles(self, heard: HeardThrottles) -> None:
        """Enter what throttles are set; they stay in force until others are heard."""
        self._throttles = heard.throttles

    def miss(self, broker_id: int, *, asked_at_s: float) -> bool:
        """Enter that a broker didn't answer the question asked at `asked_at_s`.

        Returns:
            Whether it depends on the cluster's word now: it has missed an answer, and isn't unreachable yet.
        """
        record = self._brokers.get(broker_id)
        if record is None:
            return False
        record.miss(asked_at_s=asked_at_s)
        self._judge(broker_id)
        return record.unreachable_since_s is None

    def _judge(self, broker_id: int) -> None:
        assert self._layout is not None, "brokers are known from a layout"
        record = self._brokers[broker_id]
        record.judge(
            is_listed=broker_id in self._layout.racks,
            is_deposed=partial(_is_deposed, broker_id, record.topics_then, self._layout.topics or {}),
        )

    def assemble(self, *, now_s: float, wall_now_s: float) -> Assembled | None:
        """What is known now, or None as long as a broker has never been tried or none has ever answered.

        Args:
            now_s: the monotonic clock, which all entries are in.
            wall_now_s: the same instant, in seconds since 1970.
        """
        layout = self._layout
        if layout is None or not all(record.has_been_tried for record in self._brokers.values()):
            return None
        asked = [r.asked_at_s for r in self._brokers.values() if r.storage and r.missed_since_s is None]
        if asked:
            self._measured_at_s = min(self._answered_at_s, *asked)
        if self._measured_at_s is None:
            return None
        to_wall_s = wall_now_s - now_s
        latencies_s = self._metrics.request_latencies_s(now_s=now_s)
        stored = [
            rate
            for each in self._brokers.values()
            if each.unreachable_since_s is None and (rate := each.ingest.bytes_per_s) is not None
        ]
        sent_max = max(_SENT_MIN_BYTES_PER_S, _SENT_FACTOR * median(stored)) if stored else 0.0
        snapshot = ClusterSnapshot(
            cluster_id=layout.cluster_id,
            taken_at_s=self._measured_at_s + to_wall_s,
            brokers={
                broker_id: self._broker_snapshot(
                    broker_id,
                    record,
                    ingest_bytes_per_s=self._ingest_bytes_per_s(
                        broker_id, record, now_s=now_s, sent_max_bytes_per_s=sent_max
                    ),
                    request_latency_s=latencies_s.get(broker_id),
                    to_wall_s=to_wall_s,
                )
                for broker_id, record in sorted(self._brokers.items())
            },
            topics=layout.topics or {},
            topic_configs=self._topic_configs,
            throttles=self._throttles,
        )
        return Assembled(snapshot, self._measured_at_s, self._layout_at_s)

    def _broker_snapshot(
        self,
        broker_id: int,
        record: _BrokerRecord,
        *,
        ingest_bytes_per_s: float | None,
        request_latency_s: float | None,
        to_wall_s: float,
    ) -> BrokerSnapshot:
        since_s = record.unreachable_since_s
        storage = record.storage
        return BrokerSnapshot(
            broker_id=broker_id,
            rack=record.rack,
            capacity_bytes=storage.capacity_bytes if storage else self._capacities.get(broker_id),
            used_bytes=storage.used_bytes if storage else 0,
            usable_bytes=storage.usable_bytes if storage else None,
            bytes_by_topic_partition=record.sizes,
            unreachable_since_s=None if since_s is None else since_s + to_wall_s,
            latency_s=record.latency_s,
            ingest_bytes_per_s=ingest_bytes_per_s,
            request_latency_s=request_latency_s,
            is_cordoned=storage is not None and storage.is_cordoned,
            log_dirs=record.log_dirs,
        )

    def _ingest_bytes_per_s(
        self, broker_id: int, record: _BrokerRecord, *, now_s: float, sent_max_bytes_per_s: float
    ) -> float | None:
        """As its metrics say, which don't overlook what was deleted meanwhile; else by what it holds.

        What producers say that they send isn't overlooked then either, as far as it can be believed.
        """
        told = self._metrics.ingest_bytes_per_s(broker_id, now_s=now_s)
        if told is not None or record.ingest.bytes_per_s is None:
            return told
        sent = min(self._metrics.sent_bytes_per_s(broker_id, now_s=now_s), sent_max_bytes_per_s)
        return max(record.ingest.bytes_per_s, sent)

    def _forget_before(self, limit_s: float) -> None:
        for broker_id in [b for b, record in self._brokers.items() if record.referred_at_s < limit_s]:
            del self._brokers[broker_id]
            self._metrics.forget(broker_id)


def _replica_ids(topics: _Topics) -> Iterable[int]:
    for partitions in topics.values():
        for placed in partitions.values():
            yield from placed.replica_ids


def _is_deposed(broker_id: int, then: _Topics, now: _Topics) -> bool:
    """Whether the cluster took from a broker what it led then, as it does when it takes it for dead.

    Only some topics may be watched, and others at another time: a broker that leads none of them any more may
    well lead what nobody watches. So what is not watched now says nothing, nor does a copy that was moved
    away. And leadership alone is given to others in a balance too; a dead broker is in sync nowhere.
    """
    if any(_serves(broker_id, placed) for partitions in now.values() for placed in partitions.values()):
        return False
    return any(
        placed.leader_id == broker_id
        and (current := now.get(topic, {}).get(partition)) is not None
        and broker_id in current.replica_ids
        for topic, partitions in then.items()
        for partition, placed in partitions.items()
    )


def _serves(broker_id: int, placed: PartitionSnapshot) -> bool:
    # Without a leader, the last one in sync stays in the list, dead or not.
    return placed.leader_id is not None and broker_id in (placed.leader_id, *placed.isr_ids)
