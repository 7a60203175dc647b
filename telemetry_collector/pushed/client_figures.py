"""What one client's push says about the brokers that it writes to.

Java's producers and librdkafka's say it under the same names, and mean different things by it:

| | Java | librdkafka |
| --- | --- | --- |
| which broker | `node_id` is the text "node-1" | `node.id` is the number 1 |
| latency | produce requests, over two windows of 30 s | all requests since its last push |
| queue time | a batch's wait for being sent | a request's wait for its socket |
| bytes by broker and topic | yes | no |

So figures carry their client's kind, and those of two kinds are never compared. What isn't a producer's,
isn't about a broker that is there, or isn't a number is left out. Clients call what they are told to begin
with by numbers below 0, and Java calls a coordinator by 2^31 - 1 less its broker's id. What wasn't measured
is NaN to Java and 0 to librdkafka.

Pure. Sources: KIP-714; Kafka's SenderMetricsRegistry and NetworkClient, librdkafka's
rdkafka_telemetry_encode.h. Read next: pushed_clients.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["BY_TOPIC", "KINDS", "METRICS", "ClientFigures", "Kind", "Point", "figures_of"]

Kind = Literal["java", "librdkafka"]
KINDS: tuple[Kind, ...] = ("java", "librdkafka")

_PREFIX = "org.apache.kafka.producer."
_LATENCY = f"{_PREFIX}node.request.latency.avg"
_BYTES_TO_NODE = f"{_PREFIX}node.outgoing.byte.total"
BY_TOPIC = f"{_PREFIX}topic.byte.total"
"""The one that a client has for each topic, of which there may be thousands."""
_QUEUE_TIME = f"{_PREFIX}record.queue.time.avg"
_THROTTLE_TIME = f"{_PREFIX}produce.throttle.time.avg"
_LATENCY_MAX = f"{_PREFIX}request.latency.max"
METRICS = frozenset({_LATENCY, _BYTES_TO_NODE, BY_TOPIC, _QUEUE_TIME, _THROTTLE_TIME, _LATENCY_MAX})
"""Names of the metrics that are looked at: what clients have to be asked for."""

_MS = 1e-3
_JAVA_NODE = re.compile(r"node-(\d{1,10})")
_TIME_MAX_S = 3600.0
_BYTES_MAX = 2.0**60
_SPAN_MIN_S = 0.5  # a rate over less says little


class Point(NamedTuple):
    """One number of a push.

    Attributes:
        name: of the metric.
        attributes: what it is about.
        value: any number, NaN and infinities too.
        span_s: for a sum, the time over which it came together; 0 where that isn't said, or it is no sum.
    """

    name: str
    attributes: Mapping[str, str | int]
    value: float
    span_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigures:
    """What a producer feels, as it says.

    Attributes:
        kind: whose word it is.
        latency_s_by_broker: how long requests take, above 0.
        sent_bytes_per_s_by_broker: what it sends there, after compression.
        sent_bytes_per_s_by_topic: likewise, by topic.
        queue_time_s: how long what it sends waits in it; None where it isn't known.
        throttle_time_s: for how long brokers hold it back by quota, on average; None likewise.
    """

    kind: Kind
    latency_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    sent_bytes_per_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    sent_bytes_per_s_by_topic: Mapping[str, float] = field(default_factory=dict)
    queue_time_s: float | None = None
    throttle_time_s: float | None = None

    @property
    def num_figures(self) -> int:
        """How many it holds."""
        return (
            len(self.latency_s_by_broker)
            + len(self.sent_bytes_per_s_by_broker)
            + len(self.sent_bytes_per_s_by_topic)
            + 2
        )


def figures_of(
    points: Iterable[Point], *, brokers: Container[int], topics: Container[str]
) -> ClientFigures | None:
    """What a push says, of whatever it holds; None: nothing about brokers that a producer writes to.

    Args:
        points: those of `METRICS`; of several with the same name and attributes, the last one counts.
        brokers: those that are there. Figures about others would be compared with theirs, too.
        topics: those that matter.
    """
    latencies_s: dict[Kind, dict[int, float]] = {"java": {}, "librdkafka": {}}
    to_brokers: dict[int, float] = {}
    to_topics: dict[str, float] = {}
    queue_time_s = throttle_time_s = None
    has_written = False  # as librdkafka says it
    for point in points:
        if point.name == _LATENCY:
            node, latency_s = _node(point.attributes, brokers), _seconds(point.value)
            if node is not None and latency_s:
                latencies_s[node.kind][node.broker_id] = latency_s
        elif point.name == _BYTES_TO_NODE:
            node, rate = _node(point.attributes, brokers), _per_s(point)
            if node is not None and rate is not None:
                to_brokers[node.broker_id] = rate
        elif point.name == BY_TOPIC:
            topic, rate = point.attributes.get("topic"), _per_s(point)
            if isinstance(topic, str) and topic in topics and rate is not None:
                to_topics[topic] = rate
        elif point.name == _QUEUE_TIME:
            queue_time_s = _seconds(point.value)
        elif point.name == _THROTTLE_TIME:
            throttle_time_s = _seconds(point.value)
        elif point.name == _LATENCY_MAX:
            has_written = point.value > 0
    if latencies_s["java"] or to_brokers:
        return ClientFigures(
            kind="java",
            latency_s_by_broker=latencies_s["java"],
            sent_bytes_per_s_by_broker=to_brokers,
            sent_bytes_per_s_by_topic=to_topics,
            queue_time_s=queue_time_s,
            throttle_time_s=throttle_time_s,
        )
    # One that wrote nothing has latencies all the same, of requests that cost a broker nothing.
    if latencies_s["librdkafka"] and has_written:
        return ClientFigures(
            kind="librdkafka",
            latency_s_by_broker=latencies_s["librdkafka"],
            queue_time_s=queue_time_s,
            throttle_time_s=throttle_time_s,
        )
    return None


class _Node(NamedTuple):
    kind: Kind  # of client, which calls it so
    broker_id: int


def _node(attributes: Mapping[str, str | int], brokers: Container[int]) -> _Node | None:
    """Which of the brokers is meant; None: none of them."""
    named, numbered = attributes.get("node_id"), attributes.get("node.id")
    if isinstance(named, str) and (found := _JAVA_NODE.fullmatch(named)):
        node = _Node("java", int(found[1]))
    elif isinstance(numbered, int):
        node = _Node("librdkafka", numbered)
    else:
        return None
    return node if node.broker_id in brokers else None


def _seconds(value_ms: float) -> float | None:
    value_s = value_ms * _MS
    return value_s if 0 <= value_s <= _TIME_MAX_S else None  # nor is NaN


def _per_s(point: Point) -> float | None:
    if not (0 <= point.value <= _BYTES_MAX and _SPAN_MIN_S <= point.span_s < math.inf):
        return None
    return point.value / point.span_s
