"""In what state the collector is while a producer writes: well, a service, dead, slow, or lying.

A condition opens a producer as often as it is asked to, each time for one window. `well` is a collector in
the producer's own process, as by default; with `service`, the producer follows routes that a real service
decides. The others stand in for a collector that many producers share: it goes on from window to window, and
all that a producer sees of it is a cache, and what becomes of the question for a fresh snapshot. To try
another one, give `CONDITIONS` another function.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from benchmarks.service_process import ServiceProcess
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.router.config import RouterConfig
from evenload.telemetry_collector.cache import SnapshotCache
from evenload.telemetry_collector.collector import Collector, sample_once
from evenload.telemetry_collector.errors import CollectorClosedError, NoFreshSnapshotError
from evenload.telemetry_collector.opening import AnyCollector
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot
from evenload.telemetry_collector.statistics import CollectorStatistics, StatisticsCounter

LATE_S = 5.0
# How full brokers are said to be, in order of their ids.
LIE = (0.0, 0.94, 0.94)  # below the router's limit: a broker over it gets nothing, whatever is said
HOT_LEADER = (0.2, 0.6, 0.6)
_COPY_INTERVAL_S = 0.1

Opener = Callable[[Mapping[str, Any]], AbstractContextManager[BalancedProducer]]
Condition = Callable[[Connection, str], AbstractContextManager[Opener]]


class StandIn(AnyCollector):
    """Runs already, has no weights, and nothing that it is told changes what it says."""

    def __init__(self) -> None:
        self.cache = SnapshotCache(30.0)

    def start(self) -> Self:
        """Nothing more."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""

    def close(self) -> None:
        """Shared: it goes on."""

    def refresh(self) -> None:
        """It measures when it does."""

    def watch(self, topics: Iterable[str]) -> None:
        """It knows the benchmark's topic already, or none."""

    def announce(self, intent: Intent) -> None:
        """In vain."""

    @property
    def num_without_service(self) -> int:
        """0: it is one."""
        return 0

    def withdraw(self, load: str) -> None:
        """In vain."""

    def report(self, reports: Iterable[RouteReport]) -> None:
        """In vain."""

    @property
    def weights(self) -> None:
        """Nobody has set any."""
        return None

    @property
    def statistics(self) -> CollectorStatistics:
        """Of nothing."""
        return StatisticsCounter([]).read()


class DeadCollector(StandIn):
    """Nobody answers: connections are refused, at once."""

    def snapshot(self, max_age_s: float | None = None, timeout_s: float = 10.0) -> ClusterSnapshot:  # noqa: ARG002
        """Fails at once."""
        raise CollectorClosedError("connection refused")


class SlowCollector(StandIn):
    """All that it says is what a real one said 5 s before; no question is answered sooner than after that."""

    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__()
        self._servers = connection.bootstrap_servers
        self._source = Collector(connection, topics=[topic])
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="slow-collector", daemon=True)

    def __enter__(self) -> Self:
        self._source.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._source.close()

    def snapshot(self, max_age_s: float | None = None, timeout_s: float = 10.0) -> ClusterSnapshot:  # noqa: ARG002
        """Waits in vain for as long as the caller has patience, or 5 s."""
        self._is_over.wait(min(timeout_s, LATE_S))
        raise NoFreshSnapshotError(self._servers, timeout_s, {"collector": f"takes {LATE_S:g} s to answer"})

    def _copy(self) -> None:
        said: deque[tuple[float, ClusterSnapshot]] = deque()
        while not self._is_over.wait(_COPY_INTERVAL_S):
            now_s = time.monotonic()
            if (latest := self._source.cache.latest()) is not None:
                said.append((now_s, latest.snapshot))
            while said and said[0][0] <= now_s - LATE_S:
                self.cache.put(said.popleft()[1])


class SayingCollector(StandIn):
    """Says how full brokers are, whatever is true; a producer has to believe somebody."""

    def __init__(self, connection: Connection, topic: str, utilisation: Sequence[float]) -> None:
        super().__init__()
        self._truth = sample_once(connection, topics=[topic])
        self._utilisation = dict(zip(sorted(self._truth.brokers), utilisation, strict=True))

    def snapshot(self, max_age_s: float | None = None, timeout_s: float = 10.0) -> ClusterSnapshot:  # noqa: ARG002
        """What it says, as if measured now."""
        truth = self._truth
        said = ClusterSnapshot(
            cluster_id=truth.cluster_id,
            taken_at_s=time.time(),
            brokers={
                broker_id: BrokerSnapshot(
                    broker_id=broker_id,
                    capacity_bytes=broker.capacity_bytes,
                    used_bytes=int(self._utilisation[broker_id] * (broker.capacity_bytes or 0)),
                    bytes_by_topic_partition=broker.bytes_by_topic_partition,
                )
                for broker_id, broker in truth.brokers.items()
            },
            topics=truth.topics,
        )
        self.cache.put(said)
        return said


@contextmanager
def well(connection: Connection, topic: str) -> Iterator[Opener]:  # noqa: ARG001 (a Condition)
    """Each producer has a collector of its own."""

    @contextmanager
    def open_producer(settings: Mapping[str, Any]) -> Iterator[BalancedProducer]:
        with (
            Collector(connection, topics=[]) as collector,
            BalancedProducer(settings, connection=connection, collector=collector) as producer,
        ):
            yield producer

    yield open_producer


@contextmanager
def service(connection: Connection, topic: str) -> Iterator[Opener]:  # noqa: ARG001 (a Condition)
    """One service for all, which decides about the topic from the first producer on."""
    with ServiceProcess(connection) as process:
        told = connection.model_copy(update={"collector_url": process.url})
        yield lambda settings: BalancedProducer(settings, connection=told)


@contextmanager
def dead(connection: Connection, topic: str) -> Iterator[Opener]:  # noqa: ARG001 (a Condition)
    """See DeadCollector."""
    yield _sharing(connection, DeadCollector())


@contextmanager
def slow(connection: Connection, topic: str) -> Iterator[Opener]:
    """See SlowCollector; from when it has said something."""
    with SlowCollector(connection, topic) as collector:
        gives_up_s = time.monotonic() + 4 * LATE_S
        while collector.cache.latest() is None:
            if time.monotonic() > gives_up_s:
                raise TimeoutError(f"the collector has measured nothing within {4 * LATE_S:g} s")
            time.sleep(_COPY_INTERVAL_S)
        yield _sharing(connection, collector)


@contextmanager
def lying(connection: Connection, topic: str) -> Iterator[Opener]:
    """It says that one broker is empty and all others are nearly full."""
    yield _sharing(connection, SayingCollector(connection, topic, LIE))


@contextmanager
def hot_leader(connection: Connection, topic: str) -> Iterator[Opener]:
    """Two brokers are said to be at 60 %, one at 20 %: levelling them would make that one lead everything."""
    yield _sharing(connection, SayingCollector(connection, topic, HOT_LEADER))


@contextmanager
def unbounded(connection: Connection, topic: str) -> Iterator[Opener]:
    """The same, with a router that does so."""
    router = RouterConfig(safe_streams=False)
    yield _sharing(connection, SayingCollector(connection, topic, HOT_LEADER), router)


CONDITIONS: Mapping[str, Condition] = {
    "well": well,
    "service": service,
    "dead": dead,
    "slow": slow,
    "lying": lying,
    "60/60/20": hot_leader,
    "60/60/20, no bounds": unbounded,
}


def _sharing(connection: Connection, collector: StandIn, router: RouterConfig | None = None) -> Opener:
    """Opens producers that share a collector and leave it running."""

    def open_producer(settings: Mapping[str, Any]) -> BalancedProducer:
        return BalancedProducer(settings, connection=connection, collector=collector, router_config=router)

    return open_producer
