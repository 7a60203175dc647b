"""The collector that a connection asks for: a service's, or one of one's own.

    with open_collector(connection, topics=["clicks"]) as collector: ...

`AnyCollector` lists what producers and loaders ask of either
(tests/unit/telemetry_collector/test_any_collector.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Protocol, Self

from evenload.kafka_connection import Connection
from evenload.telemetry_collector.cache import SnapshotCache
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import NoFreshSnapshotError, ServiceUnusableError
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.statistics import CollectorStatistics
from evenload.telemetry_collector.weights import Weights

__all__ = ["AnyCollector", "open_collector", "read_weights"]


class AnyCollector(Protocol):
    """What is asked of a collector, whoever measures. All but `snapshot` and `close` return at once."""

    cache: SnapshotCache

    def start(self) -> Self:
        """Start; does nothing when it runs already."""
        ...

    def close(self) -> None:
        """End it; nothing of it is left."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def refresh(self) -> None:
        """Have everything measured anew, now."""
        ...

    def watch(self, topics: Iterable[str]) -> None:
        """Count topics among those that matter."""
        ...

    def snapshot(self, max_age_s: float | None = None, timeout_s: float = 10.0) -> ClusterSnapshot:
        """A snapshot that is new enough, or a `CollectorError`."""
        ...

    @property
    def statistics(self) -> CollectorStatistics:
        """What was counted."""
        ...

    @property
    def num_without_service(self) -> int:
        """How often it had to go on without the service that it was to ask."""
        ...

    @property
    def weights(self) -> Weights | None:
        """What an operator has put in force; None: nothing."""
        ...

    def announce(self, intent: Intent) -> None:
        """Say what a load will still write."""
        ...

    def withdraw(self, load: str) -> None:
        """Say that a load has nothing more to write."""
        ...

    def report(self, reports: Iterable[RouteReport]) -> None:
        """Say how records are routed."""
        ...


def open_collector(
    connection: Connection, config: CollectorConfig | None = None, topics: Collection[str] | None = None
) -> AnyCollector:
    """A collector that isn't started yet.

    Args:
        connection: the cluster, and the service that measures it, if there is one.
        config: how often to ask and how long to wait.
        topics: the topics whose layout and sizes matter; None: all of them.
    """
    if connection.collector_url is None:
        return Collector(connection, config, topics)
    # Loading a web client takes longer than all the rest, and most who measure for themselves need none.
    from evenload.telemetry_collector.service.client import RemoteCollector

    return RemoteCollector(connection, config, topics)


def read_weights(connection: Connection, *, timeout_s: float = 10.0) -> Weights | None:
    """What an operator has put in force, for somebody who asks once; None: nothing.

    Raises:
        ServiceUnusableError: the connection names a service, which doesn't say. To go on without would be to
            fill what an operator drains.
    """
    collector = open_collector(connection, topics=[])
    if connection.collector_url is None:
        return collector.weights  # of a file, or none; no broker is asked
    with collector:
        try:
            collector.snapshot(timeout_s=timeout_s)
        except NoFreshSnapshotError as error:
            why = "; ".join(error.reasons.values()) or f"no answer within {timeout_s:g} s"
            raise ServiceUnusableError(
                f"{why}. The weights in force are kept at {connection.collector_url}: start it again, or "
                "leave out collector_url to go on without them"
            ) from error
        return collector.weights
