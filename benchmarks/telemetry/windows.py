"""One window of `benchmarks telemetry`: collectors are opened, left alone for some seconds, closed.

What opening them asks of the brokers comes before the window and is counted by itself: connections, who is in
the cluster, and with a service which cluster the brokers belong to. The window begins when all of them know
something and `SETTLE_S` has gone by.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from benchmarks.service_process import ServiceProcess
from benchmarks.telemetry.broker_counts import BrokerCounts, CountedBrokers
from benchmarks.telemetry.following import FollowingProducers
from benchmarks.telemetry.report import FOLLOWING, OWN, Case, Window
from evenload.kafka_connection import Connection
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.service.client import RemoteCollector

SETTLE_S = 0.5
OPEN_TIMEOUT_S = 60.0
# Nobody else reads here. Kafka counts a fetch twice, the second time with who it is that fetches.
_BETWEEN_BROKERS = {"Fetch", "FetchFollower", "OffsetsForLeaderEpoch"}


def measure_window(
    brokers: CountedBrokers,
    connection: Connection,
    topics: Mapping[str, Sequence[str]],
    *,
    case: Case,
    service: ServiceProcess | None,
    window_s: float,
) -> Window:
    """Open what a case says, and count for so long.

    Args:
        topics: By a way of measuring, what the producers would write, in turn, one each.
        service: Runs already; None: each measures for itself.
    """
    at_first = brokers.read()
    with ExitStack() as opened:
        _open(opened, connection, topics[case.way], case, service)
        time.sleep(SETTLE_S)
        num_asked = service.num_requests() if service is not None else 0.0
        before = brokers.read()
        began = _Clocks.now(brokers, service)
        time.sleep(window_s)
        ended = _Clocks.now(brokers, service)
        during = brokers.read() - before
        num_asked = service.num_requests() - num_asked if service is not None else 0.0
    seconds = ended.at_s - began.at_s
    return Window(
        case=case,
        requests={kind: num / during.at_s for kind, num in _of_others(during).items()},
        wire_bytes=(during.received_bytes + during.sent_bytes) / during.at_s,
        broker_cpu_ms=1000 * (ended.broker_s - began.broker_s) / seconds,
        client_cpu_ms=1000 * (ended.client_s - began.client_s) / seconds,
        service_cpu_ms=1000 * (ended.service_s - began.service_s) / seconds,
        service_requests=num_asked / seconds,
        opening_requests=sum(_of_others(before - at_first).values()) / max(1, case.num_producers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clocks:
    """Processor time so far, in seconds."""

    at_s: float
    broker_s: float
    client_s: float
    service_s: float

    @classmethod
    def now(cls, brokers: CountedBrokers, service: ServiceProcess | None) -> Self:
        return cls(
            at_s=time.monotonic(),
            broker_s=brokers.cpu_s(),
            client_s=time.process_time(),
            service_s=0.0 if service is None else service.cpu_s(),
        )


def _open(
    opened: ExitStack,
    connection: Connection,
    topics: Sequence[str],
    case: Case,
    service: ServiceProcess | None,
) -> None:
    """Start all, then wait until each knows something."""
    url = None if service is None else service.url
    if case.way in FOLLOWING:
        assert url is not None
        following = FollowingProducers(url, topics, case.num_producers, timeout_s=OPEN_TIMEOUT_S)
        opened.enter_context(following)
        return
    kind = Collector if case.way == OWN else RemoteCollector
    told = connection.model_copy(update={"collector_url": url})
    collectors = [
        opened.enter_context(kind(told, topics=[topics[number % len(topics)]]))
        for number in range(case.num_producers)
    ]
    for collector in collectors:
        collector.snapshot(timeout_s=OPEN_TIMEOUT_S)


def _of_others(counts: BrokerCounts) -> dict[str, float]:
    """Requests of others than brokers, by kind."""
    return {kind: num for kind, num in counts.requests.items() if num > 0 and kind not in _BETWEEN_BROKERS}
