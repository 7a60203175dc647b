"""What clients push, made up: as a broker's plugin hands it on. For tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric, ResourceMetrics

__all__ = ["java_push", "librdkafka_push", "request_of"]

_AT_NS = 1_700_000_000 * 10**9
_SPAN_NS = 10 * 10**9


def java_push(
    instance_id: str,
    latency_ms_by_broker: Mapping[int, float],
    *,
    sent_bytes_by_broker: Mapping[int, float] | None = None,
    sent_bytes_by_topic: Mapping[str, float] | None = None,
    queue_time_ms: float | None = None,
    **attributes: Any,
) -> ResourceMetrics:
    """What a Java producer pushes each 10 s.

    Args:
        instance_id: of the client.
        latency_ms_by_broker: means of its produce requests.
        sent_bytes_by_broker: within the last 10 s.
        sent_bytes_by_topic: likewise.
        queue_time_ms: mean time of a batch.
        attributes: what the broker adds, with `_` for `.` and without `evenload.`.
    """
    metrics = [
        *(
            _gauge("node.request.latency.avg", ms, {"node_id": f"node-{b}"})
            for b, ms in latency_ms_by_broker.items()
        ),
        *(
            _sum("node.outgoing.byte.total", size, {"node_id": f"node-{b}"})
            for b, size in (sent_bytes_by_broker or {}).items()
        ),
        *(_sum("topic.byte.total", size, {"topic": t}) for t, size in (sent_bytes_by_topic or {}).items()),
        *([_gauge("record.queue.time.avg", queue_time_ms, {})] if queue_time_ms is not None else []),
    ]
    return _push(instance_id, metrics, attributes)


def librdkafka_push(
    instance_id: str, latency_ms_by_broker: Mapping[int, float], *, written_ms: float = 1.0, **attributes: Any
) -> ResourceMetrics:
    """What a producer of librdkafka's pushes.

    Args:
        instance_id, latency_ms_by_broker, attributes: as `java_push` has them.
        written_ms: the longest of its produce requests; 0: it wrote nothing.
    """
    metrics = [
        _gauge("node.request.latency.avg", ms, {"node.id": b}) for b, ms in latency_ms_by_broker.items()
    ]
    return _push(instance_id, [*metrics, _gauge("request.latency.max", written_ms, {})], attributes)


def request_of(*pushes: ResourceMetrics) -> bytes:
    """What the plugin sends: the body of `POST /v1/metrics`."""
    return ExportMetricsServiceRequest(resource_metrics=pushes).SerializeToString()


def _push(instance_id: str, metrics: list[Metric], attributes: Mapping[str, Any]) -> ResourceMetrics:
    told = ResourceMetrics()
    known = {
        "client_instance_id": instance_id,
        "client_id": f"client-{instance_id}",
        "client_address": "10.0.0.1",
    }
    for name, value in {**known, **attributes}.items():
        told.resource.attributes.append(_pair(f"evenload.{name.replace('_', '.')}", value))
    told.scope_metrics.add().metrics.extend(metrics)
    return told


def _gauge(name: str, value: float, attributes: Mapping[str, str | int]) -> Metric:
    metric = Metric(name=f"org.apache.kafka.producer.{name}")
    metric.gauge.data_points.add(
        as_double=value, time_unix_nano=_AT_NS, attributes=[_pair(*item) for item in attributes.items()]
    )
    return metric


def _sum(name: str, value: float, attributes: Mapping[str, str | int]) -> Metric:
    metric = Metric(name=f"org.apache.kafka.producer.{name}")
    metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    metric.sum.data_points.add(
        as_double=value,
        start_time_unix_nano=_AT_NS - _SPAN_NS,
        time_unix_nano=_AT_NS,
        attributes=[_pair(*item) for item in attributes.items()],
    )
    return metric


def _pair(key: str, value: str | int) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    return KeyValue(key=key, value=AnyValue(string_value=value))
