"""The collector: measures a cluster in a thread of its own, so that nobody who produces ever waits.

    with Collector(connection, topics=["clicks"]) as collector:
        cached = collector.cache.latest()        # a reference and an age, about a microsecond
        fresh = collector.snapshot(max_age_s=0)  # waits until measured anew

The thread runs an asyncio loop (measuring.py); kafka-python's I/O thread serves it. Those two are all,
however many brokers there are and whatever state they are in (a host name in `metrics_url_by_broker` is
looked up by one more). `close` ends them. What goes wrong in them is never lost: an unreachable broker is
marked in the snapshot, a failed question is in `statistics`, and should the loop itself ever fail, `snapshot`
raises that and the cache grows stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self

from kafka_connection import Connection
from telemetry_collector.cache import SnapshotCache
from telemetry_collector.config import CollectorConfig
from telemetry_collector.errors import CollectorClosedError, NoFreshSnapshotError
from telemetry_collector.measuring import Measuring
from telemetry_collector.observation import Assembled
from telemetry_collector.snapshot import ClusterSnapshot
from telemetry_collector.sources.cluster_metadata import ClusterMetadataSource
from telemetry_collector.sources.kafka_requests import KafkaRequests
from telemetry_collector.sources.log_dirs import LogDirsSource
from telemetry_collector.sources.source import Source
from telemetry_collector.sources.topic_limits import TopicLimitsSource
from telemetry_collector.statistics import CollectorStatistics, StatisticsCounter

__all__ = ["Collector", "sample_once"]

_log = logging.getLogger(__name__)


class Collector:
    """Measures one cluster until it is closed. All methods may be called from any thread.

    Args:
        connection: how the cluster is reached, and capacities that brokers can't tell.
        config: how often to ask and how long to wait.
        topics: the topics whose layout and sizes matter; None: all of them.
        sources: whom to ask instead of the cluster's brokers (for tests); closed with the collector.
        more_sources: whom to ask for metrics, beside the exporters that `config` names, which count first;
            closed with the collector.
    """

    def __init__(
        self,
        connection: Connection,
        config: CollectorConfig | None = None,
        topics: Collection[str] | None = None,
        *,
        sources: Sequence[Source] | None = None,
        more_sources: Sequence[Source] = (),
    ) -> None:
        self._connection = connection
        self._config = config or CollectorConfig()
        self._topics = None if topics is None else frozenset(topics)
        self._given_sources = sources
        self._more_sources = more_sources
        self.cache = SnapshotCache(self._config.age_max_s)
        if sources is not None:
            names = [source.name for source in sources]
        else:
            names = [*_KAFKA_SOURCE_NAMES, *([_SCRAPE_NAME] if self._config.metrics_url_by_broker else [])]
        self._counter = StatisticsCounter([*names, *(source.name for source in more_sources)])
        self._news = threading.Condition()  # guards what follows
        self._assembled: Assembled | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._measuring: Measuring | None = None
        self._is_closed = False
        self._failure: BaseException | None = None

    def start(self) -> Self:
        """Start measuring; returns at once. Does nothing when it runs already.

        Raises:
            CollectorClosedError: it has been closed.
        """
        with self._news:
            if self._is_closed:
                raise CollectorClosedError("it has been closed; make another one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="evenload-collector", daemon=True)
                self._thread.start()
        return self

    def close(self) -> None:
        """End the measuring; afterwards no thread, task or connection of it is left. May be called twice.

        The cache keeps the last snapshot, which grows stale.
        """
        with self._news:
            self._is_closed = True
            thread = self._thread
            self._news.notify_all()
        if thread is None:
            return
        self._in_loop(lambda measuring: measuring.stop())
        thread.join(self._config.close_timeout_s)
        if thread.is_alive():
            _log.warning("the collector's thread didn't end within %g s", self._config.close_timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> None:
        """Ask for everything anew, without waiting for it. Does nothing while the collector doesn't run."""
        self._in_loop(lambda measuring: measuring.refresh())

    def watch(self, topics: Iterable[str]) -> None:
        """Count `topics` among those that matter from now on, without waiting for their layout."""
        added = frozenset(topics)
        with self._news:
            if self._topics is not None:
                self._topics |= added
        self._in_loop(lambda measuring: measuring.watch(added))

    def snapshot(self, max_age_s: float | None = None, timeout_s: float = 10.0) -> ClusterSnapshot:
        """A snapshot of which nothing is older than asked for; measures anew when there is none.

        Args:
            max_age_s: the oldest that is accepted, in seconds; 0: measured after this call; None: the
                configuration's `age_max_s`.
            timeout_s: how long to wait for it, in seconds.

        Raises:
            NoFreshSnapshotError: no broker has answered in time, with what each question failed of.
            CollectorClosedError: the collector hasn't been started, has been closed, or has failed.
        """
        if max_age_s is None:
            max_age_s = self._config.age_max_s
        needed_at_s = time.monotonic() - max_age_s
        with self._news:
            self._check_runs()
            if (assembled := self._newer_than(needed_at_s)) is not None:
                return assembled.snapshot
        self.refresh()
        gives_up_at_s = time.monotonic() + timeout_s
        with self._news:
            while (assembled := self._newer_than(needed_at_s)) is None:
                self._check_runs()
                if not self._news.wait(gives_up_at_s - time.monotonic()):
                    raise NoFreshSnapshotError(
                        self._connection.bootstrap_servers, timeout_s, self.statistics.failures
                    )
            return assembled.snapshot

    @property
    def statistics(self) -> CollectorStatistics:
        """What was counted so far, and which questions have no answer at the moment."""
        return self._counter.read()

    def _newer_than(self, needed_at_s: float) -> Assembled | None:
        assembled = self._assembled
        if assembled is None or min(assembled.measured_at_s, assembled.layout_at_s) < needed_at_s:
            return None
        return assembled

    def _check_runs(self) -> None:
        if self._failure is not None:
            raise CollectorClosedError(f"it failed ({self._failure!r}); make another one") from self._failure
        if self._is_closed:
            raise CollectorClosedError("it has been closed; make another one")
        if self._thread is None:
            raise CollectorClosedError("it hasn't been started; call start()")

    def _in_loop(self, act: Callable[[Measuring], None]) -> None:
        with self._news:
            loop, measuring = self._loop, self._measuring
        if loop is None or measuring is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has just ended: there is nothing to act on
            loop.call_soon_threadsafe(act, measuring)

    # In the collector's thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._measure())
        except BaseException as error:  # noqa: BLE001 - kept for whoever asks for a snapshot
            _log.exception("the collector failed; its snapshots will grow stale")
            with self._news:
                self._failure = error
        finally:
            with self._news:
                self._loop = self._measuring = None
                self._news.notify_all()

    async def _measure(self) -> None:
        rng = random.Random()
        async with contextlib.AsyncExitStack() as stack:
            sources = self._given_sources
            if sources is None:
                requests = KafkaRequests(self._connection)
                stack.push_async_callback(requests.close)
                sources = [
                    *_kafka_sources(requests, self._connection, self._config, rng),
                    *_exporter_sources(self._config),
                ]
            sources = [*sources, *self._more_sources]
            for source in sources:
                stack.push_async_callback(source.close)
            with self._news:
                if self._is_closed:
                    return
                measuring = Measuring(
                    sources,
                    self._config,
                    topics=self._topics,
                    capacity_bytes_by_broker=self._connection.capacity_bytes_by_broker,
                    publish=self._publish,
                    counter=self._counter,
                    rng=rng,
                )
                self._measuring, self._loop = measuring, asyncio.get_running_loop()
            await measuring.run()

    def _publish(self, assembled: Assembled) -> None:
        self.cache.put(assembled.snapshot)
        with self._news:
            self._assembled = assembled
            self._news.notify_all()


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


_KAFKA_SOURCE_NAMES = (ClusterMetadataSource.name, LogDirsSource.name, TopicLimitsSource.name)
_SCRAPE_NAME = "prometheus_scrape"


def _kafka_sources(
    requests: KafkaRequests, connection: Connection, config: CollectorConfig, rng: random.Random
) -> Sequence[Source]:
    return (
        ClusterMetadataSource(requests, hedge_delay_s=config.hedge_delay_s, rng=rng),
        LogDirsSource(requests, capacity_bytes_by_broker=connection.capacity_bytes_by_broker),
        TopicLimitsSource(requests, rng=rng),
    )


def _exporter_sources(config: CollectorConfig) -> Sequence[Source]:
    if not config.metrics_url_by_broker:
        return ()
    # A producer that scrapes nobody doesn't load an HTTP client.
    from telemetry_collector.sources.prometheus_scrape import PrometheusScrapeSource

    return (PrometheusScrapeSource(config.metrics_url_by_broker),)
