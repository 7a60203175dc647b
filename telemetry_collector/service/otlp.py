"""What a broker's plugin hands on: OTLP's ExportMetricsServiceRequest, a resource for each client's push.

The plugin (java/) looks at no metric: it puts what a client pushed beside what the broker knows of the
client. So each push is parsed by itself, and one client's garbage costs nobody else's figures.

Read next: pushed/client_figures.py, which knows what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
)

from evenload.telemetry_collector.pushed.client_figures import METRICS, Point
from evenload.telemetry_collector.pushed.pushed_clients import PushingClient

__all__ = ["Push", "pushes_in"]

_RESOURCE_METRICS = 1  # the request's only field
_LENGTH_DELIMITED = 2
_DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_POINTS_MAX = 2000  # of a push; a producer that writes to 500 brokers has 1,500
_METRICS_MAX = 10_000
_TEXT_MAX_CHARS = 300
_NS = 1e-9
_MS = 1e-3


class Push(NamedTuple):
    """One client's.

    Attributes:
        who: pushed it.
        cluster_id: of the broker that it came to; empty where the broker didn't know yet.
        is_last: whether the client ends.
        points: those that are of interest.
    """

    who: PushingClient
    cluster_id: str
    is_last: bool
    points: list[Point]


def pushes_in(body: bytes) -> Iterator[Push | None]:
    """What each client has pushed; None for one whose push can't be read, or says more than is taken.

    Raises:
        ValueError: it is no such request, or not one of evenload's plugin; why, as a clause.
    """
    try:
        # Its resources are fields that an empty message doesn't know, and keeps as they are.
        fields = UnknownFieldSet(Empty.FromString(body))
    except DecodeError as error:
        raise ValueError("it is no OTLP request") from error
    for number in range(len(fields)):
        field = fields[number]
        if field.field_number == _RESOURCE_METRICS and field.wire_type == _LENGTH_DELIMITED:
            try:
                told = ResourceMetrics.FromString(field.data)
            except DecodeError:
                yield None
            else:
                yield _push(told)


def _push(told: ResourceMetrics) -> Push | None:
    # The last of a name is the plugin's, whatever the client says under it.
    attributes = _attributes(told.resource.attributes)
    instance_id = _text(attributes, "evenload.client.instance.id")
    if not instance_id:
        raise ValueError("it doesn't come from evenload's plugin, which says which client has pushed")
    points = _points(told)
    if points is None:
        return None
    interval_ms = attributes.get("evenload.push.interval.ms")
    return Push(
        who=PushingClient(
            instance_id=instance_id,
            address=_text(attributes, "evenload.client.address"),
            interval_s=interval_ms * _MS if isinstance(interval_ms, int) and interval_ms > 0 else None,
        ),
        cluster_id=_text(attributes, "evenload.cluster.id"),
        is_last=attributes.get("evenload.terminating") is True,
        points=points,
    )


def _points(told: ResourceMetrics) -> list[Point] | None:
    """Those of interest; None: there are more than are taken, or too many of others to look through."""
    metrics = list(islice(chain.from_iterable(s.metrics for s in told.scope_metrics), _METRICS_MAX + 1))
    if len(told.scope_metrics) > _METRICS_MAX or len(metrics) > _METRICS_MAX:
        return None
    wanted = chain.from_iterable(_points_of(metric) for metric in metrics if metric.name in METRICS)
    points = list(islice(wanted, _POINTS_MAX + 1))
    return points if len(points) <= _POINTS_MAX else None


def _points_of(metric: Metric) -> Iterator[Point]:
    for point in metric.gauge.data_points:
        yield Point(metric.name, _attributes(point.attributes), _value(point), 0.0)
    is_delta = metric.sum.aggregation_temporality == _DELTA
    for point in metric.sum.data_points:
        span_s = (point.time_unix_nano - point.start_time_unix_nano) * _NS
        is_known = is_delta and point.start_time_unix_nano > 0 and span_s > 0
        yield Point(metric.name, _attributes(point.attributes), _value(point), span_s if is_known else 0.0)


def _value(point: NumberDataPoint) -> float:
    return float(point.as_int) if point.HasField("as_int") else point.as_double


def _attributes(told: Iterable[KeyValue]) -> Mapping[str, str | int]:
    """Texts, whole numbers and truth values by name."""
    attributes: dict[str, str | int] = {}
    for pair in told:
        value = pair.value
        kind = value.WhichOneof("value")
        if kind == "string_value":
            attributes[pair.key] = value.string_value
        elif kind == "int_value":
            attributes[pair.key] = value.int_value
        elif kind == "bool_value":
            attributes[pair.key] = value.bool_value
    return attributes


def _text(attributes: Mapping[str, str | int], name: str) -> str:
    value = attributes.get(name)
    return value[:_TEXT_MAX_CHARS] if isinstance(value, str) else ""
