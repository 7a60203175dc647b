"""Make what the live page shows out of what the collector knows.

    overview = make_overview(cached, statistics, history, reports=..., intents=..., weights=..., explain=...,
                             now_s=time.monotonic())

The idea: one pure function of values, so the page of any night can be made again in a test. Nothing is
measured when somebody looks. How willing one is to send to a broker is the router's business, which lies
above this package: it comes in as `explain`.

All lists are bounded: with 1,000 brokers, 100,000 partitions and as many producers the document stays small
enough to be asked for every two seconds.

Invariants, checked in tests/property/telemetry_collector/service/page/test_overview.py:
1. A broker's forecast is what it uses plus what loads have announced, over its capacity.
2. Bytes of the topics shown, over brokers, are those of the snapshot.
3. Lists are no longer than their bounds, and `num_*` says how many there are.
4. The JSON of an overview is valid, and reads back as the same overview.

Read next: findings.py, which turns it into sentences.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.pushed.client_figures import Kind
from evenload.telemetry_collector.pushed.felt import FeltByProducers
from evenload.telemetry_collector.reports import JAVA_PRODUCER, Intent, RouteReport
from evenload.telemetry_collector.service.page.findings import find
from evenload.telemetry_collector.service.page.history import History
from evenload.telemetry_collector.service.page.overview_model import (
    BrokerOverview,
    HistoryOverview,
    Overview,
    ProducersOverview,
    RouteOverview,
    TopicOverview,
)
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot
from evenload.telemetry_collector.statistics import CollectorStatistics
from evenload.telemetry_collector.weights import Weights

__all__ = ["Explain", "Explanation", "make_overview"]

Key = TypeVar("Key", int, str)  # a broker, or a topic
Part = TypeVar("Part", int, float)  # bytes, or a share, or what requests take

MAX_TOPICS = 50
MAX_HOLDERS = 32  # brokers of a topic or a route
MAX_ROUTES = 50
MAX_PARTITIONS = 32  # of a route
MAX_NOTES = 10  # of a route
MAX_FAILURES = 50
MAX_WARNINGS = 5
MAX_PUT_ASIDE = 50
MAX_LINES = 8  # brokers with a history of their own
MAX_TEXT = 500
BY_ID_MAX = 12  # so many brokers are found at a glance, and stay where they are
_TREND_S = 600.0
_TREND_MIN_S = 60.0
_ANNOUNCED_FOR_S = 60.0  # what comes is what was announced, if that lasts so long at the present rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How willing one should be to send to each broker, and why: what a router makes of a snapshot.

    Attributes:
        willingness: 0 to 1 by broker id, the operator's weights counted in.
        scores: by score function, 0 to 1 by broker id.
        put_aside: by name, the goals and functions without a say, and what they did ("returned nan ...").
    """

    willingness: Mapping[int, float] = field(default_factory=dict)
    scores: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    put_aside: Mapping[str, str] = field(default_factory=dict)


Explain = Callable[[ClusterSnapshot], Explanation]
"""Asks the score functions about every broker. Doesn't raise because of what they do."""


def make_overview(
    cached: CachedSnapshot | None,
    statistics: CollectorStatistics,
    history: History,
    *,
    reports: Iterable[RouteReport],
    intents: Iterable[Intent],
    weights: Weights,
    felt: Mapping[Kind, FeltByProducers] | None = None,
    explain: Explain,
    now_s: float,
) -> Overview:
    """What the live page shows at this moment.

    Args:
        cached: the latest snapshot, or None before the first.
        statistics: what the collector has asked for in vain.
        history: of the last hour; only read.
        reports: how producers route, those that haven't expired.
        intents: what loads have announced, those that haven't expired.
        weights: what an operator has set.
        felt: what producers feel that push their metrics; None: nobody could.
        explain: asked once, about the snapshot.
        now_s: of the clock that the history was fed with.
    """
    snapshot = None if cached is None else cached.snapshot
    throttles = None if snapshot is None else snapshot.throttles
    explanation = Explanation() if snapshot is None else explain(snapshot)
    reports = list(reports)
    felt = felt or {}
    brokers: tuple[BrokerOverview, ...] = ()
    if cached is not None:
        past = history.past(now_s, from_s=_TREND_S, to_s=_TREND_MIN_S)
        brokers = _brokers(cached, explanation, _announced(intents), weights, past)
    put_aside = {name: fault for report in reports for name, fault in report.put_aside.items()}
    put_aside.update(explanation.put_aside)
    overview = Overview(
        cluster_id=None if snapshot is None else snapshot.cluster_id,
        age_s=None if cached is None else cached.age_s,
        is_stale=cached is not None and cached.is_stale,
        utilisation_spread=0.0 if snapshot is None else snapshot.utilisation_spread,
        brokers=brokers,
        topics=() if snapshot is None else _topics(snapshot),
        num_throttled_replicas=0 if throttles is None else sum(throttles.num_replicas.values()),
        num_moving=None if throttles is None else throttles.num_moving,
        num_topics=0 if snapshot is None else len(snapshot.topics),
        routes=_routes(reports, snapshot),
        num_routes=len(reports),
        num_fallback_routes=sum(report.reason is not None for report in reports),
        producers=tuple(_producers(kind, each) for kind, each in felt.items() if each.num_clients),
        num_unrouted_by_topic=_unrouted(felt.get("java"), reports),
        put_aside=_first(put_aside, MAX_PUT_ASIDE),
        weights=weights,
        failures=_first(statistics.failures, MAX_FAILURES),
        num_failures=len(statistics.failures),
        warnings=_first(statistics.warnings, MAX_WARNINGS),
        history=_history(history, brokers, now_s),
    )
    return overview.model_copy(update={"findings": find(overview)})


def _announced(intents: Iterable[Intent]) -> Counter[int]:
    announced: Counter[int] = Counter()
    for intent in intents:
        announced.update(intent.bytes_by_broker)
    return announced


def _brokers(
    cached: CachedSnapshot,
    explanation: Explanation,
    announced: Mapping[int, int],
    weights: Weights,
    past: Mapping[int, float],
) -> tuple[BrokerOverview, ...]:
    wall_s = cached.snapshot.taken_at_s + cached.age_s
    throttled = cached.snapshot.throttles.bytes_per_s if cached.snapshot.throttles is not None else {}
    shown = [
        _broker(
            broker,
            explanation,
            announced.get(broker_id, 0),
            weight=weights.brokers.get(broker_id),
            past=past.get(broker_id),
            throttle_bytes_per_s=throttled.get(broker_id),
            wall_s=wall_s,
        )
        for broker_id, broker in sorted(cached.snapshot.brokers.items())
    ]
    if len(shown) > BY_ID_MAX:
        # By whole points, so that brokers which are as good as equal don't change places all the time.
        shown.sort(key=lambda broker: (broker.is_reachable, -round((broker.utilisation or 0.0) * 100)))
    return tuple(shown)


def _broker(
    broker: BrokerSnapshot,
    explanation: Explanation,
    announced_bytes: int,
    *,
    weight: float | None,
    past: float | None,
    throttle_bytes_per_s: int | None,
    wall_s: float,
) -> BrokerOverview:
    broker_id = broker.broker_id
    scores = {
        name: by_broker[broker_id] for name, by_broker in explanation.scores.items() if broker_id in by_broker
    }
    capacity_bytes = broker.capacity_bytes
    since_s = broker.unreachable_since_s
    return BrokerOverview(
        broker_id=broker_id,
        rack=broker.rack,
        capacity_bytes=capacity_bytes,
        used_bytes=broker.used_bytes,
        usable_bytes=broker.usable_bytes,
        utilisation=broker.utilisation,
        announced_bytes=announced_bytes,
        forecast_utilisation=(broker.used_bytes + announced_bytes) / capacity_bytes
        if capacity_bytes
        else None,
        ingest_bytes_per_s=broker.ingest_bytes_per_s,
        full_in_s=_full_in_s(broker, announced_bytes, past),
        is_cordoned=broker.is_cordoned,
        is_drained=weight == 0,
        weight=weight,
        willingness=explanation.willingness.get(broker_id),
        scores=scores,
        why=_why(scores, weight),
        is_reachable=broker.is_reachable,
        unreachable_s=None if since_s is None else max(0.0, wall_s - since_s),
        latency_s=broker.latency_s,
        request_latency_s=broker.request_latency_s,
        throttle_bytes_per_s=throttle_bytes_per_s,
    )


def _full_in_s(broker: BrokerSnapshot, announced_bytes: int, past: float | None) -> float | None:
    rate = broker.ingest_bytes_per_s or 0.0
    if past is not None and broker.capacity_bytes and broker.utilisation is not None:
        # A minute's burst is no trend: it is taken to have begun ten minutes ago.
        rate = min(rate, (broker.utilisation - past) * broker.capacity_bytes / _TREND_S)
    # A load that has said how much it will write ends there, and the forecast says where that is. Its rate,
    # taken for ever, would call every large load a disaster.
    if rate <= 0 or announced_bytes > rate * _ANNOUNCED_FOR_S:
        return None
    # Whichever is used up first: its capacity, or its volume, which others may fill too.
    free = [] if broker.capacity_bytes is None else [max(0, broker.capacity_bytes - broker.used_bytes)]
    free += [] if broker.usable_bytes is None else [broker.usable_bytes]
    full_in_s = min(free) / rate if free else math.inf
    return full_in_s if math.isfinite(full_in_s) else None


def _why(scores: Mapping[str, float], weight: float | None) -> str:
    against = [] if weight is None or weight == 1 else [f"its operator's weight is {weight:g}"]
    lowest_first = sorted((score, name) for name, score in scores.items() if score < 1)
    against += [f"{name} says {score:.2f}" for score, name in lowest_first]
    return "; ".join(against)


def _topics(snapshot: ClusterSnapshot) -> tuple[TopicOverview, ...]:
    stored: dict[str, dict[int, int]] = {topic: {} for topic in snapshot.topics}
    for broker_id, broker in snapshot.brokers.items():
        held: dict[str, int] = {}
        for (topic, _), size_bytes in broker.bytes_by_topic_partition.items():
            held[topic] = held.get(topic, 0) + size_bytes
        for topic, size_bytes in held.items():
            if topic in stored and size_bytes:
                stored[topic][broker_id] = size_bytes
    sizes = {topic: sum(by_broker.values()) for topic, by_broker in stored.items()}
    largest = heapq.nsmallest(MAX_TOPICS, sizes, key=lambda topic: (-sizes[topic], topic))
    return tuple(
        TopicOverview(
            topic=topic,
            num_partitions=len(snapshot.topics[topic]),
            num_brokers=len(stored[topic]),
            stored_bytes=sizes[topic],
            stored_bytes_by_broker=_most(stored[topic]),
            leader_bytes_by_broker=_most(snapshot.leader_bytes(topic)),
        )
        for topic in largest
    )


def _producers(kind: Kind, felt: FeltByProducers) -> ProducersOverview:
    return ProducersOverview(
        client=kind,
        num_clients=felt.num_clients,
        queue_time_s=felt.queue_time_s,
        num_throttled=felt.num_throttled,
        latency_s_by_broker=_most(felt.latency_s_by_broker),
        num_brokers=len(felt.latency_s_by_broker),
    )


def _unrouted(felt: FeltByProducers | None, reports: Iterable[RouteReport]) -> Mapping[str, int]:
    """By topic that somebody follows, how many Java producers write it and don't."""
    if felt is None:
        return {}
    routed = {report.topic: 0 for report in reports}
    for report in reports:
        routed[report.topic] += report.producer.startswith(JAVA_PRODUCER)
    unrouted = {topic: felt.num_writing_by_topic.get(topic, 0) - count for topic, count in routed.items()}
    return _most({topic: count for topic, count in unrouted.items() if count > 0})


def _routes(reports: Sequence[RouteReport], snapshot: ClusterSnapshot | None) -> tuple[RouteOverview, ...]:
    def order(report: RouteReport) -> tuple[bool, int, str, str]:
        return report.reason is None, -(report.remaining_bytes or 0), report.topic, report.producer

    return tuple(_route(report, snapshot) for report in heapq.nsmallest(MAX_ROUTES, reports, key=order))


def _route(report: RouteReport, snapshot: ClusterSnapshot | None) -> RouteOverview:
    layout = {} if snapshot is None else snapshot.topics.get(report.topic, {})
    by_broker: dict[int, float] = {}
    for partition, share in report.shares.items():
        placed = layout.get(partition)
        if placed is not None and placed.leader_id is not None and share:
            by_broker[placed.leader_id] = by_broker.get(placed.leader_id, 0.0) + share
    most = heapq.nsmallest(
        MAX_PARTITIONS, report.shares, key=lambda partition: (-report.shares[partition], partition)
    )
    return RouteOverview(
        producer=report.producer,
        topic=report.topic,
        shares_by_broker=_most(by_broker),
        num_brokers=len(by_broker),
        shares_by_partition={partition: report.shares[partition] for partition in sorted(most)},
        num_partitions=len(report.shares),
        reason=None if report.reason is None else _cut(report.reason),
        notes=tuple(_cut(note) for note in report.notes[:MAX_NOTES]),
        put_aside=_first(report.put_aside, MAX_NOTES),
        sent_bytes=report.sent_bytes,
        remaining_bytes=report.remaining_bytes,
        num_fallbacks=report.num_fallbacks,
    )


def _history(history: History, brokers: Iterable[BrokerOverview], now_s: float) -> HistoryOverview:
    known = (broker for broker in brokers if broker.utilisation is not None)
    fullest = heapq.nsmallest(
        MAX_LINES, known, key=lambda broker: (-(broker.utilisation or 0.0), broker.broker_id)
    )
    shown = sorted(broker.broker_id for broker in fullest)
    points = history.read(now_s, shown)
    return HistoryOverview(
        span_s=history.span_s,
        step_s=history.step_s,
        ago_s=tuple(round(point.ago_s, 1) for point in points),
        lowest=tuple(_rounded(point.lowest) for point in points),
        highest=tuple(_rounded(point.highest) for point in points),
        by_broker={
            broker_id: tuple(_rounded(point.utilisations[index]) for point in points)
            for index, broker_id in enumerate(shown)
        },
    )


def _rounded(utilisation: float | None) -> float | None:
    return None if utilisation is None else round(utilisation, 5)


def _most(parts: Mapping[Key, Part]) -> dict[Key, Part]:
    above_zero = [key for key, part in parts.items() if part]
    most = heapq.nsmallest(MAX_HOLDERS, above_zero, key=lambda key: (-parts[key], key))
    return {key: parts[key] for key in sorted(most)}


def _first(sentences: Mapping[str, str], count: int) -> dict[str, str]:
    return {_cut(name): _cut(said) for name, said in list(sentences.items())[:count]}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
