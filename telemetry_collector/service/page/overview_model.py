"""What the live page shows, as values: the JSON of `/v1/overview`.

The idea: everything is decided before it is shown. The page only draws; the sentences, the order of the
brokers, what is left out because there is too much of it, are made by pure functions (overview.py,
findings.py) that tests call without a browser. So all lists are bounded here, and a `num_*` beside a bounded
list says how many there are.

Bytes are stored bytes, of all replicas unless it says leader; ratios are 0 to 1 (more where more is held
than was configured); times are seconds. Read next: overview.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from evenload.telemetry_collector.weights import Weights

__all__ = [
    "BrokerOverview",
    "Finding",
    "HistoryOverview",
    "Overview",
    "ProducersOverview",
    "RouteOverview",
    "Severity",
    "TopicOverview",
]

Severity = Literal["critical", "warning", "notice", "fine"]
"""Somebody has to act now; somebody should look today; good to know; nothing is wrong."""


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Finding(_Shown):
    """One sentence for an operator.

    Attributes:
        kind: what it is about, the same for as long as it is the same trouble (`text` holds ages and
            counts, which change).
        severity: how urgent it is.
        text: the sentence.
        broker_ids: whom it is about, as far as it is about brokers.
    """

    kind: str
    severity: Severity
    text: str
    broker_ids: tuple[int, ...] = ()


class BrokerOverview(_Shown):
    """One broker.

    Attributes:
        broker_id, rack, capacity_bytes, used_bytes, usable_bytes, utilisation, ingest_bytes_per_s,
            latency_s, request_latency_s, is_cordoned: as in `BrokerSnapshot`.
        announced_bytes: what loads have announced for it, and not written yet.
        forecast_utilisation: what its utilisation will be once that has come; None without a capacity.
        full_in_s: when it will be full if bytes go on coming as now; None where that isn't known, or never,
            or while what comes has been announced (then the forecast says where it ends).
        is_drained: whether its operator's weight is 0.
        weight: its operator's weight, 0 to 1, of `/v1/weights`; None where none is given.
        willingness: how willing one is to send to it, 0 to 1; None where it wasn't explained.
        scores: by score function, what it said, 0 to 1.
        why: what makes the willingness less than 1, in words; empty where nothing does.
        is_reachable: whether it answered when it was last asked.
        unreachable_s: for how long it hasn't.
        throttle_bytes_per_s: the rate that replication is held to on it; None where no throttle is known.
    """

    broker_id: int
    rack: str | None
    capacity_bytes: int | None
    used_bytes: int
    usable_bytes: int | None
    utilisation: float | None
    announced_bytes: int
    forecast_utilisation: float | None
    ingest_bytes_per_s: float | None
    full_in_s: float | None
    is_cordoned: bool
    is_drained: bool
    weight: float | None
    willingness: float | None
    scores: Mapping[str, float]
    why: str
    is_reachable: bool
    unreachable_s: float | None
    latency_s: float | None
    request_latency_s: float | None
    throttle_bytes_per_s: int | None = None


class TopicOverview(_Shown):
    """One topic.

    Attributes:
        topic: its name.
        num_partitions: how many it has.
        num_brokers: how many hold something of it.
        stored_bytes: what all of them hold.
        stored_bytes_by_broker: of those that hold most.
        leader_bytes_by_broker: what each leads, of those that lead most.
    """

    topic: str
    num_partitions: int
    num_brokers: int
    stored_bytes: int
    stored_bytes_by_broker: Mapping[int, int]
    leader_bytes_by_broker: Mapping[int, int]


class RouteOverview(_Shown):
    """How one producer routes one topic, as it reported.

    Attributes:
        producer, topic, reason, notes, put_aside, sent_bytes, remaining_bytes, num_fallbacks: as in
            `RouteReport`; long texts are cut.
        shares_by_broker: part of the bytes by the broker that leads the partition, of those that get most;
            what goes to partitions whose leader isn't known is missing.
        num_brokers: how many get something.
        shares_by_partition: part of the bytes by partition, of those that get most.
        num_partitions: of how many.
    """

    producer: str
    topic: str
    shares_by_broker: Mapping[int, float]
    num_brokers: int
    shares_by_partition: Mapping[int, float]
    num_partitions: int
    reason: str | None
    notes: tuple[str, ...]
    put_aside: Mapping[str, str]
    sent_bytes: int
    remaining_bytes: int | None
    num_fallbacks: int


class ProducersOverview(_Shown):
    """What producers of one kind feel, of those that push their metrics through brokers.

    Attributes:
        client: whose producers: java or librdkafka.
        num_clients, queue_time_s, num_throttled: as in `FeltByProducers`.
        latency_s_by_broker: how long requests take, of the brokers where they take longest.
        num_brokers: of how many that is known.
    """

    client: str
    num_clients: int
    queue_time_s: float | None
    num_throttled: int
    latency_s_by_broker: Mapping[int, float]
    num_brokers: int


class HistoryOverview(_Shown):
    """The last hour, oldest first: all sequences are of one length.

    Attributes:
        span_s: how far it can go back.
        step_s: what lies between two points while measurements come; more is a gap.
        ago_s: how long before this overview each point was.
        lowest, highest: over all brokers; None where no capacity was known.
        by_broker: utilisation of the fullest brokers; None where it wasn't known.
    """

    span_s: float
    step_s: float
    ago_s: tuple[float, ...]
    lowest: tuple[float | None, ...]
    highest: tuple[float | None, ...]
    by_broker: Mapping[int, tuple[float | None, ...]]


class Overview(_Shown):
    """Everything that the live page shows.

    Attributes:
        schema_version: of this document; a reader refuses another one.
        findings: what an operator has to know, the most urgent first; never empty.
        cluster_id: None before the first snapshot, as is `age_s`.
        age_s: how old the measurements are.
        is_stale: whether that is too old to decide from.
        utilisation_spread: highest minus lowest utilisation.
        brokers: in the order to show them: by id, or where there are more than 12, first those that don't
            answer, then the fullest.
        topics: those that hold most.
        num_throttled_replicas: how many replicas are held to the brokers' throttles, as topics name them.
        num_moving: partitions that are being reassigned; None where that isn't known.
        routes: of the producers that report, fallbacks first.
        producers: what those feel that push their metrics, by kind; empty where none does.
        num_unrouted_by_topic: of Java's producers that push, how many at least write a topic that has a
            route, and report none for it.
        put_aside: goals and score functions without a say, here or at a producer, and what they did.
        weights: what `/v1/weights` holds.
        failures: what was asked and has no answer, with the reason.
        warnings: whose answer is used though something in it looks wrong, with what that is.
        history: the last hour.
    """

    schema_version: Literal[1] = 1
    findings: tuple[Finding, ...] = ()
    cluster_id: str | None
    age_s: float | None
    is_stale: bool
    utilisation_spread: float
    brokers: tuple[BrokerOverview, ...]
    topics: tuple[TopicOverview, ...]
    num_topics: int
    num_throttled_replicas: int = 0
    num_moving: int | None = None
    routes: tuple[RouteOverview, ...]
    num_routes: int
    num_fallback_routes: int
    producers: tuple[ProducersOverview, ...] = ()
    num_unrouted_by_topic: Mapping[str, int] = {}
    put_aside: Mapping[str, str]
    weights: Weights
    failures: Mapping[str, str]
    warnings: Mapping[str, str] = {}
    num_failures: int
    history: HistoryOverview
