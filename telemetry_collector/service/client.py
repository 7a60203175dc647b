"""`RemoteCollector`: what a collector service has measured, read like one's own measurements.

    with RemoteCollector(connection, topics=["clicks"]) as collector:   # in place of Collector
        cached = collector.cache.latest()

It keeps the promises of `Collector` (a thread of its own, a cache that is read without waiting, nothing left
after `close`) and adds what only a service can know: weights, and bytes that other loads will still write.

While the service gives nothing usable, what is known grows stale, after which shares are even; that is
counted in `num_without_service` and said once in the log. It never measures the brokers itself: a service's
producers may be a thousand, and what it fails of is often the brokers' own trouble, which a thousand times as
many questions would make worse.

Checked against `Collector` in tests/unit/telemetry_collector/test_any_collector.py. Read next: polling.py.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from evenload.kafka_connection import Connection
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.polling import CLUSTER_ID, SERVICE_NAME, Polling
from evenload.telemetry_collector.service.service_requests import ServiceRequests
from evenload.telemetry_collector.snapshot_thread import SnapshotThread
from evenload.telemetry_collector.sources.cluster_metadata import ClusterMetadataSource
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.observation import Assembled, ClusterLayout
from evenload.telemetry_collector.sources.source import Question, Source
from evenload.telemetry_collector.statistics import CollectorStatistics, StatisticsCounter
from evenload.telemetry_collector.weights import Weights

__all__ = ["RemoteCollector"]

_log = logging.getLogger(__name__)


class RemoteCollector(SnapshotThread):
    """Reads one service until it is closed. All methods may be called from any thread; none waits for it.

    Args:
        connection: the service's URL, and how the cluster that it should measure is reached.
        config: how often to ask, how long to wait, how old an answer may be.
        topics: the topics whose layout and sizes matter; None: all that the service measures.
        make_sources: whom to ask for the cluster's id instead of its brokers (for tests), made anew.
        clock: monotonic seconds, of which ages are made.
    """

    def __init__(
        self,
        connection: Connection,
        config: CollectorConfig | None = None,
        topics: Collection[str] | None = None,
        *,
        make_sources: Callable[[], Sequence[Source]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if connection.collector_url is None:
            raise ValueError("the connection names no collector service (collector_url)")
        super().__init__(connection, config, thread_name="evenload-remote-collector", clock=clock)
        self._url = connection.collector_url
        self._topics = None if topics is None else frozenset(topics)
        self._make_sources = make_sources
        self._counter = StatisticsCounter([SERVICE_NAME, CLUSTER_ID])
        self._polling: Polling | None = None
        self._weights: Weights | None = None
        self._num_without_service = 0
        self._is_without_service = False

    def refresh(self) -> None:
        """Ask for everything anew, without waiting for it. Does nothing while the collector doesn't run."""
        self._tell(lambda polling: polling.refresh())

    def watch(self, topics: Iterable[str]) -> None:
        """Count `topics` among those that matter from now on, without waiting for their layout."""
        added = frozenset(topics)
        with self._news:
            if self._topics is None or self._topics.issuperset(added):
                return
            self._topics |= added
        self._tell(lambda polling: polling.ask_now())

    @property
    def statistics(self) -> CollectorStatistics:
        """What was counted about the service, and what is wrong at the moment."""
        return self._counter.read()

    @property
    def num_without_service(self) -> int:
        """How often it had to go on without the service."""
        return self._num_without_service

    @property
    def is_without_service(self) -> bool:
        """Whether it goes on without the service at the moment."""
        return self._is_without_service

    @property
    def weights(self) -> Weights | None:
        """The service's weights, as they were heard last; None while nobody has set any."""
        return self._weights

    def announce(self, intent: Intent) -> None:
        """Tell the service what a load will still write; our own snapshots don't count it."""
        self._tell(lambda polling: polling.announce(intent))

    def withdraw(self, load: str) -> None:
        """Tell the service that a load has nothing more to write; told on `close` at the latest."""
        self._tell(lambda polling: polling.withdraw(load))

    def report(self, reports: Iterable[RouteReport]) -> None:
        """Tell the service how records are routed."""
        told = tuple(reports)
        self._tell(lambda polling: polling.report(told))

    def _tell(self, act: Callable[[Polling], None]) -> None:
        with self._news:
            polling = self._polling
        if polling is not None:
            self._in_loop(lambda: act(polling))

    # In the thread.

    async def _run(self) -> None:
        rng = random.Random()
        async with ServiceRequests(self._connection, self._config.deadline_s) as requests:
            with self._news:
                polling = self._polling = Polling(
                    requests,
                    self._config,
                    topics=lambda: self._topics,
                    bootstrap_servers=self._connection.bootstrap_servers,
                    ask_cluster_id=self._ask_cluster_id,
                    observer=self,
                    counter=self._counter,
                    rng=rng,
                    clock=self._clock,
                )
                if not self._begin(polling.stop):
                    return
            await polling.run()

    def use(self, assembled: Assembled, weights: Weights | None) -> None:
        """An answer of the service (polling.py)."""
        self._weights = weights
        self._publish(assembled)

    async def go_without(self, reason: str) -> None:
        """The service gives nothing usable (polling.py)."""
        self._is_without_service = True
        self._num_without_service += 1
        _log.warning(
            "the collector service at %s can't be used: %s; shares are even from an age of %g s on",
            self._url,
            reason,
            self._config.age_max_s,
        )
        with self._news:
            self._news.notify_all()

    def _waits_in_vain(self) -> bool:
        """A first record that waited for a service that is down would wait for each new topic."""
        return self._is_without_service

    async def come_back(self) -> None:
        """The service can be used again (polling.py)."""
        self._is_without_service = False
        _log.warning("the collector service at %s can be used again", self._url)

    def follow(self, known_id: str, found_id: str) -> None:
        """Our own brokers belong to another cluster than before (polling.py)."""
        self._follow(known_id, found_id)
        self._counter.count_cluster_change()

    async def _ask_cluster_id(self) -> str:
        """Which cluster our own brokers belong to: asked seldom, over connections that are closed again."""
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            if self._make_sources is not None:
                source = next(source for source in self._make_sources() if not source.is_per_broker)
            else:
                requests = KafkaRequests(self._connection)
                stack.push_async_callback(requests.close)
                source = ClusterMetadataSource(
                    requests, hedge_delay_s=config.hedge_delay_s, rng=random.Random()
                )
            stack.push_async_callback(source.close)
            layout = await source.answer(
                Question(
                    broker_id=None,
                    topics=frozenset(),
                    is_full=False,
                    layout=None,
                    timeout_s=config.deadline_s,
                )
            )
        assert isinstance(layout, ClusterLayout)
        return layout.cluster_id
