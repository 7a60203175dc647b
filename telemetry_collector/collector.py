"""The collector: measures a cluster in a thread of its own, so that nobody who produces ever waits.

    with Collector(connection, topics=["clicks"]) as collector:
        cached = collector.cache.latest()        # a reference and an age, about a microsecond
        fresh = collector.snapshot(max_age_s=0)  # waits until measured anew

The thread (snapshot_thread.py) runs an asyncio loop (measuring.py); kafka-python's I/O thread serves it.
Those two are all, however many brokers there are and whatever state they are in (a host name in
`metrics_url_by_broker` is looked up by one more). `close` ends them. What goes wrong in them is never lost:
an unreachable broker is marked in the snapshot, a failed question is in `statistics`, and should the loop
itself ever fail, `snapshot` raises that and the cache grows stale.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from evenload.extras import naming_extra
from evenload.kafka_connection import Connection
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import ClusterChangedError
from evenload.telemetry_collector.measuring import Measuring
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.snapshot_thread import SnapshotThread
from evenload.telemetry_collector.sources.cluster_metadata import ClusterMetadataSource
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.log_dirs import LogDirsSource
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.sources.source import Source
from evenload.telemetry_collector.sources.throttles import ThrottlesSource
from evenload.telemetry_collector.sources.topic_configs import TopicConfigsSource
from evenload.telemetry_collector.statistics import CollectorStatistics, StatisticsCounter
from evenload.telemetry_collector.weights import Weights
from evenload.telemetry_collector.weights_file import WeightsFile

__all__ = ["Collector", "sample_once"]


class Collector(SnapshotThread):
    """Measures one cluster until it is closed. All methods may be called from any thread.

    Args:
        connection: how the cluster is reached, and capacities that brokers can't tell.
        config: how often to ask and how long to wait.
        topics: the topics whose layout and sizes matter; None: all of them.
        sources: whom to ask instead of the cluster's brokers (for tests); closed with the collector.
        more_sources: whom to ask for metrics, beside the exporters that `config` names, which count first;
            closed with the collector.
        publish: told of each snapshot too, in the collector's thread.
        is_for_many: whether topics are named by others: one that may not be described is then left out and
            said in a warning, where it would else be the reason why nothing is measured. When another cluster
            answers at its addresses, it fails with that; one for its own process follows.
        clock: monotonic seconds, of which ages are made.
    """

    def __init__(
        self,
        connection: Connection,
        config: CollectorConfig | None = None,
        topics: Collection[str] | None = None,
        *,
        sources: Sequence[Source] | None = None,
        more_sources: Sequence[Source] = (),
        publish: Callable[[Assembled], None] | None = None,
        is_for_many: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection, config, thread_name="evenload-collector", clock=clock)
        self._topics = None if topics is None else frozenset(topics)
        self._given_sources = sources
        self._more_sources = more_sources
        self._publish_too = publish
        self._is_for_many = is_for_many
        self._weights_file = WeightsFile(connection.weights_path) if connection.weights_path else None
        if sources is not None:
            names = [source.name for source in sources]
        else:
            names = [*_KAFKA_SOURCE_NAMES, *([_SCRAPE_NAME] if self._config.metrics_url_by_broker else [])]
            names += [ThrottlesSource.name] if is_for_many else []
        self._counter = StatisticsCounter([*names, *(source.name for source in more_sources)])
        self._measuring: Measuring | None = None

    def refresh(self) -> None:
        """Ask for everything anew, without waiting for it. Does nothing while the collector doesn't run."""
        self._tell(lambda measuring: measuring.refresh())

    def watch(self, topics: Iterable[str], *, is_urgent: bool = True) -> None:
        """Count `topics` among those that matter from now on, without waiting for their layout.

        Args:
            topics: which.
            is_urgent: whether all is asked anew now; else at the next turn.
        """
        added = frozenset(topics)
        with self._news:
            if self._topics is None or self._topics.issuperset(added):
                return
            self._topics |= added
        if is_urgent:
            self.refresh()

    def unwatch(self, topics: Iterable[str]) -> None:
        """Count `topics` no longer among those that matter; does nothing where all of them do."""
        with self._news:
            if self._topics is not None:
                self._topics -= frozenset(topics)

    @property
    def statistics(self) -> CollectorStatistics:
        """What was counted so far, and which questions have no answer at the moment."""
        return self._counter.read()

    @property
    def weights(self) -> Weights | None:
        """What the connection's file of weights says, looked at anew; None without one."""
        return self._weights_file.latest() if self._weights_file is not None else None

    @property
    def num_without_service(self) -> int:
        """0: it asks no service."""
        return 0

    # Those who measure for themselves have nobody to tell. A collector service does (service/client.py).

    def announce(self, intent: Intent) -> None:
        """Nobody else would hear of it."""

    def withdraw(self, load: str) -> None:
        """Nothing was announced."""

    def report(self, reports: Iterable[RouteReport]) -> None:
        """Nobody would show them."""

    def _tell(self, act: Callable[[Measuring], None]) -> None:
        with self._news:
            measuring = self._measuring
        if measuring is not None:
            self._in_loop(lambda: act(measuring))

    def _publish(self, assembled: Assembled) -> None:
        super()._publish(assembled)
        if self._publish_too is not None:
            self._publish_too(assembled)

    # In the collector's thread.

    async def _run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for source in (*(self._given_sources or ()), *self._more_sources):
                stack.push_async_callback(source.close)
            while True:
                try:
                    await self._measure()
                except ClusterChangedError as error:
                    if self._is_for_many:
                        # What loads have announced and operators have weighted is of the other cluster, too.
                        raise
                    self._follow(error.known_id, error.found_id)
                    self._counter.count_cluster_change()
                else:
                    return

    async def _measure(self) -> None:
        """Measure one cluster until stopped."""
        rng = random.Random()
        async with contextlib.AsyncExitStack() as stack:
            sources = self._given_sources
            if sources is None:
                requests = KafkaRequests(self._connection)
                stack.push_async_callback(requests.close)
                sources = self._make_sources(requests, rng)
                for source in sources:
                    stack.push_async_callback(source.close)
            with self._news:
                measuring = self._measuring = Measuring(
                    [*sources, *self._more_sources],
                    self._config,
                    topics=lambda: self._topics,
                    bootstrap_servers=self._connection.bootstrap_servers,
                    capacity_bytes_by_broker=self._connection.capacity_bytes_by_broker,
                    publish=self._publish,
                    counter=self._counter,
                    rng=rng,
                )
                if not self._begin(measuring.stop):
                    return
            await measuring.run()

    def _make_sources(self, requests: KafkaRequests, rng: random.Random) -> Sequence[Source]:
        return [
            ClusterMetadataSource(
                requests,
                hedge_delay_s=self._config.hedge_delay_s,
                rng=rng,
                is_for_many=self._is_for_many,
            ),
            LogDirsSource(requests, capacity_bytes_by_broker=self._connection.capacity_bytes_by_broker),
            TopicConfigsSource(requests, rng=rng),
            # A thousand producers that measure for themselves don't all ask for what people read.
            *([ThrottlesSource(requests, rng=rng)] if self._is_for_many else []),
            *_exporter_sources(self._config),
        ]


def sample_once(
    connection: Connection, topics: Collection[str] | None = None, timeout_s: float = 10.0
) -> ClusterSnapshot:
    """Measure a cluster once; nothing is left running.

    Args:
        connection: how the cluster is reached.
        topics: the topics whose layout and sizes matter; None: all of them.
        timeout_s: how long to wait for brokers, in seconds, above 0. One that doesn't answer within a third
            of it (or 3 s) is unreachable in the snapshot.

    Raises:
        NoFreshSnapshotError: no broker answered in time.
    """
    deadline_s = min(3.0, max(0.05, timeout_s / 3))
    config = CollectorConfig(
        deadline_s=deadline_s, full_deadline_s=min(600.0, max(deadline_s, timeout_s)), backoff_max_s=1.0
    )
    with Collector(connection, config, topics) as collector:
        return collector.snapshot(timeout_s=timeout_s)


_KAFKA_SOURCE_NAMES = (ClusterMetadataSource.name, LogDirsSource.name, TopicConfigsSource.name)
_SCRAPE_NAME = "prometheus_scrape"


def _exporter_sources(config: CollectorConfig) -> Sequence[Source]:
    if not config.metrics_url_by_broker:
        return ()
    # A producer that scrapes nobody doesn't load an HTTP client.
    with naming_extra("measure", "metrics_url_by_broker"):
        from evenload.telemetry_collector.sources.prometheus_scrape import PrometheusScrapeSource

    return (PrometheusScrapeSource(config.metrics_url_by_broker),)
