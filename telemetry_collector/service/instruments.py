"""What a service exports about itself and about the producers that report to it, beside what it measured.

Entries of the same kind as in export/instruments.py, so Prometheus and OpenTelemetry show the same. Labels
are bounded, whatever producers and loads say: routes are the server's own, brokers those of the snapshot,
functions those that most producers have put aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain

from evenload.telemetry_collector.export.instruments import MAX_TOPICS, Instrument, Point, Reading
from evenload.telemetry_collector.pushed.felt import FeltByProducers
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.snapshot import ReplicationThrottles

__all__ = ["service_instruments"]

_MAX_FUNCTIONS = 50
_NAME_MAX_CHARS = 100


def service_instruments(service: CollectorService) -> tuple[Instrument, ...]:
    """The instruments of one service; read from any thread."""
    return (
        Instrument(
            name="evenload_service_requests_total",
            unit="1",
            kind="counter",
            description="Requests that the collector service answered.",
            labels=("route", "status"),
            read=_labelled(
                lambda: (((route, str(status)), n) for (route, status), n in list(service.requests.items()))
            ),
        ),
        Instrument(
            name="evenload_service_clients",
            unit="1",
            kind="gauge",
            description="Clients that have asked the collector service for something lately.",
            labels=(),
            read=_single(lambda: service.num_clients),
        ),
        Instrument(
            name="evenload_service_loads",
            unit="1",
            kind="gauge",
            description="Loads that have announced bytes.",
            labels=(),
            read=_single(lambda: len(service.intents)),
        ),
        Instrument(
            name="evenload_broker_announced_bytes",
            unit="By",
            kind="gauge",
            description="Stored bytes that loads have announced for a broker and that have not come yet.",
            labels=("broker_id",),
            read=_labelled(lambda: _announced(service)),
        ),
        Instrument(
            name="evenload_service_routes",
            unit="1",
            kind="gauge",
            description="Routes that producers report, one for each producer and topic.",
            labels=(),
            read=_single(lambda: len(service.reports)),
        ),
        Instrument(
            name="evenload_decided_routes",
            unit="1",
            kind="gauge",
            description="Topics whose route is decided here for all who write them.",
            labels=(),
            read=_single(lambda: len(service.decided)),
        ),
        Instrument(
            name="evenload_even_routes",
            unit="1",
            kind="gauge",
            description="Those of the routes whose shares are only even (a fallback) at the moment.",
            labels=(),
            read=_single(lambda: sum(report.reason is not None for report in service.reports)),
        ),
        Instrument(
            name="evenload_route_fallbacks_total",
            unit="1",
            kind="counter",
            description="How often producers' shares were only even, as far as they report it.",
            labels=(),
            read=_single(lambda: service.num_fallbacks),
        ),
        Instrument(
            name="evenload_function_put_aside_routes",
            unit="1",
            kind="gauge",
            description="Routes in which a goal or score function has no say, because it failed.",
            labels=("function",),
            read=_labelled(lambda: _put_aside(service)),
        ),
        *_pushed_instruments(service.pushed),
        *_throttle_instruments(service),
    )


def _pushed_instruments(pushed: PushedClients) -> tuple[Instrument, ...]:
    """What Kafka's own clients push."""
    return (
        Instrument(
            name="evenload_client_pushes_total",
            unit="1",
            kind="counter",
            description="Pushes of Kafka clients' metrics that brokers have handed on.",
            labels=(),
            read=_single(lambda: pushed.num_pushes),
        ),
        Instrument(
            name="evenload_unreadable_client_pushes_total",
            unit="1",
            kind="counter",
            description="Those that could not be read, or said more than is taken.",
            labels=(),
            read=_single(lambda: pushed.num_unreadable),
        ),
        Instrument(
            name="evenload_clients_pushed_out_total",
            unit="1",
            kind="counter",
            description="Pushing clients that were forgotten as there was no room for all.",
            labels=(),
            read=_single(lambda: pushed.num_pushed_out),
        ),
        Instrument(
            name="evenload_pushing_producers",
            unit="1",
            kind="gauge",
            description="Producers that have pushed their metrics lately.",
            labels=("client",),
            read=_labelled(lambda: _felt(pushed, lambda felt: felt.num_clients)),
        ),
        Instrument(
            name="evenload_producer_queue_time_seconds",
            unit="s",
            kind="gauge",
            description="Median over pushing producers of what their data waits in them: Java's for a batch, "
            "librdkafka's for a request. None where nobody says.",
            labels=("client",),
            read=_labelled(lambda: _felt(pushed, lambda felt: felt.queue_time_s)),
        ),
        Instrument(
            name="evenload_throttled_producers",
            unit="1",
            kind="gauge",
            description="Those of them that say that brokers hold them back by quota.",
            labels=("client",),
            read=_labelled(lambda: _felt(pushed, lambda felt: felt.num_throttled)),
        ),
        Instrument(
            name="evenload_broker_felt_latency_seconds",
            unit="s",
            kind="gauge",
            description="Median over pushing producers of how long a broker takes over a request.",
            labels=("broker_id", "client"),
            read=lambda _: [
                Point((str(broker_id), kind), latency_s)
                for kind, felt in pushed.felt().items()
                for broker_id, latency_s in felt.latency_s_by_broker.items()
            ],
        ),
    )


def _felt(
    pushed: PushedClients, value: Callable[[FeltByProducers], float | None]
) -> Iterable[tuple[tuple[str, ...], float]]:
    for kind, felt in pushed.felt().items():
        if (known := value(felt)) is not None:
            yield (kind,), known


def _throttle_instruments(service: CollectorService) -> tuple[Instrument, ...]:
    """What only a service asks brokers for."""
    return (
        Instrument(
            name="evenload_broker_replication_throttle_bytes_per_second",
            unit="By/s",
            kind="gauge",
            description="The rate that replication is held to on a broker; none where no throttle is set.",
            labels=("broker_id",),
            read=_labelled(
                lambda: (((str(broker),), rate) for broker, rate in _throttles(service).bytes_per_s.items())
            ),
        ),
        Instrument(
            name="evenload_topic_throttled_replicas",
            unit="1",
            kind="gauge",
            description="Replicas of a topic that are held to a throttle; none where there are none.",
            labels=("topic",),
            read=_labelled(
                lambda: (
                    ((topic,), count)
                    for topic, count in Counter(_throttles(service).num_replicas).most_common(MAX_TOPICS)
                )
            ),
        ),
        Instrument(
            name="evenload_reassigning_partitions",
            unit="1",
            kind="gauge",
            description="Partitions whose replicas are being moved, by whomever; none where it isn't known.",
            labels=(),
            read=_labelled(
                lambda: [((), moving)] if (moving := _throttles(service).num_moving) is not None else []
            ),
        ),
    )


def _throttles(service: CollectorService) -> ReplicationThrottles:
    cached = service.latest
    return (cached.snapshot.throttles if cached is not None else None) or ReplicationThrottles()


def _announced(service: CollectorService) -> Iterable[tuple[tuple[str, ...], float]]:
    announced: Counter[int] = Counter()
    for intent in service.intents:
        announced.update(intent.bytes_by_broker)
    cached = service.latest
    known = announced.keys() & (cached.snapshot.brokers if cached is not None else {}).keys()
    return (((str(broker_id),), announced[broker_id]) for broker_id in known)


def _put_aside(service: CollectorService) -> Iterable[tuple[tuple[str, ...], float]]:
    reports = chain(service.decided, service.reports)
    routes = Counter(name[:_NAME_MAX_CHARS] for report in reports for name in report.put_aside)
    return (((name,), count) for name, count in routes.most_common(_MAX_FUNCTIONS))


def _single(value: Callable[[], float]) -> Callable[[Reading], Iterable[Point]]:
    return lambda _: [Point((), value())]


def _labelled(
    values: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
) -> Callable[[Reading], Iterable[Point]]:
    return lambda _: [Point(labels, value) for labels, value in values()]
