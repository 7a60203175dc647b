"""What `BalancedProducer` and `NodeAwarePartitioner` share: one collector, and a routing for each topic.

Choosing a partition costs about a microsecond and never waits, but once: the first record of a topic waits
until brokers have been measured and shares decided (a few hundredths of a second), or a client's whole
queue, filled in a moment, would be spread evenly over brokers that are not. If that takes too long, it goes
on without.

From then on a thread of our own decides shares anew each `refresh_s`, for the topics that got records since,
from what the collector has measured. However long a score function takes, nobody who produces waits for it.
The same thread puts an operator's weights in force, and reports how records are routed.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.routing import PartitionCounter, TopicRouting
from evenload.route_service.patience_in_thread import PatienceInThread
from evenload.route_service.weights_in_force import WeightsInForce
from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import CollectorError
from evenload.telemetry_collector.opening import AnyCollector, open_collector
from evenload.telemetry_collector.sources.client_statistics import ClientStatisticsSource

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0
_EARLY_S = 0.25  # from one early measurement to the next
_EARLY_MAX = 8


class _Topic:
    """A topic's routing, and what its next refresh depends on."""

    def __init__(self, routing: TopicRouting) -> None:
        self.routing = routing
        self.total_bytes: int | None = None  # that will have been sent in the end, where that is known
        self.refreshed_bytes = -1  # sent when it was refreshed last
        self.is_due = True
        self.num_early = 0  # measurements that were asked for before it was their time
        self.is_decided = threading.Event()

    @property
    def remaining_bytes(self) -> int | None:
        if self.total_bytes is None:
            return None
        return max(0, self.total_bytes - self.routing.own_bytes.total_sent)

    @property
    def wants_refresh(self) -> bool:
        return self.is_due or self.routing.own_bytes.total_sent != self.refreshed_bytes


class ProducerRouting:
    """Routings of the topics that one producer writes. Any thread may call any method.

    Args:
        connection: The cluster, for the collector.
        config: How often to decide, how long to stay on a partition.
        router_config: What to level by.
        collector: One that runs already, to be shared and left running; None: one of our own.
        statistics: What our client experiences; for a collector of our own.
        queued_s: As `OwnBytes` takes it.
        count_partitions: As `TopicRouting` takes it.
    """

    def __init__(
        self,
        connection: Connection,
        config: ProducerConfig,
        router_config: RouterConfig,
        collector: AnyCollector | None,
        *,
        statistics: ClientStatisticsSource | None = None,
        queued_s: float = 0.0,
        count_partitions: PartitionCounter,
    ) -> None:
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            _log.warning(
                "this Python runs without the interpreter lock (free-threaded), which counting the bytes of "
                "several threads relies on: shares may drift from what was decided; use one with the lock"
            )
        self._config = config
        self._queued_s = queued_s
        self._count_partitions = count_partitions
        batched = router_config.model_copy(update={"batch_bytes": config.batch_bytes})
        # Producers that start together begin in different places, or they would fill one broker together.
        self._router = Router(batched, patience=PatienceInThread, start=random.random())
        self._weights = WeightsInForce(self._router, batched)
        self._name = f"{socket.gethostname()}/{os.getpid()}/{id(self):x}"
        self._is_own_collector = collector is None
        if collector is None and statistics is not None:
            # What our client experiences is there already: asking often costs nobody anything.
            measuring = CollectorConfig(metrics_interval_s=1.0)
            collector = Collector(connection, measuring, [], more_sources=[statistics]).start()
        self._collector = collector or open_collector(connection, topics=[]).start()
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._expected: dict[str, int] = {}  # of topics that have no routing yet
        self._reported_s = 0.0
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.stored_ratio: float | None = None  # stored for each byte of payload, where the producer knows it
        self.num_failed_refreshes = 0  # shares stayed as they were; the log has the reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the deciding, and the collector if it is ours."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                _log.warning("deciding shares takes longer than %g s; it is left to itself", _CLOSE_TIMEOUT_S)
        if self._is_own_collector:
            self._collector.close()

    def find(self, topic: str) -> TopicRouting | None:
        """The routing of a topic that was added."""
        known = self._topics.get(topic)
        return known.routing if known is not None else None

    def add(self, topic: str, num_partitions: int) -> TopicRouting:
        """The routing of a topic; its layout is measured from now on. Waits for its first shares."""
        with self._lock:
            known = self._topics.get(topic)
            if known is not None:
                return known.routing
            routing = TopicRouting(
                topic,
                num_partitions,
                router=self._router,
                cache=self._collector.cache,
                batch_bytes=self._config.batch_bytes,
                is_shared=True,
                queued_s=self._queued_s,
                count_partitions=self._count_partitions,
            )
            added = _Topic(routing)
            self._collector.watch([topic])
        gives_up_at_s = time.monotonic() + self._config.first_snapshot_timeout_s
        self._wait_for_snapshot(topic)
        with self._lock:
            added = self._topics.setdefault(topic, added)
            if topic in self._expected:
                added.total_bytes = self._expected.pop(topic)
            self._start_deciding()
        self._wake.set()
        added.is_decided.wait(max(0.1, gives_up_at_s - time.monotonic()))
        return added.routing

    def _wait_for_snapshot(self, topic: str) -> None:
        timeout_s = self._config.first_snapshot_timeout_s
        try:
            self._collector.snapshot(max_age_s=0.0, timeout_s=timeout_s)
        except CollectorError as error:
            _log.warning("the first records of topic %s go evenly to its partitions: %s", topic, error)

    def expect(self, topic: str, size_bytes: int) -> None:
        """As `BalancedProducer.expect`."""
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                self._expected[topic] = size_bytes
                return
        known.total_bytes = size_bytes + known.routing.own_bytes.total_sent
        known.is_due = True
        self._wake.set()

    def recount(self, routing: TopicRouting) -> None:
        """The client knows no partition of such a number: only those that it knows get records now."""
        known = routing.num_partitions
        routing.recount(self._count_partitions(routing.topic, known) or known)
        self._topics[routing.topic].is_due = True
        self._wake.set()

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even because nothing fresh was known."""
        return sum(topic.routing.num_fallbacks for topic in list(self._topics.values()))

    @property
    def num_without_service(self) -> int:
        """How often the collector service gave nothing usable, and it went on without."""
        return self._collector.num_without_service

    # In the thread that decides.

    def _start_deciding(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(
                target=_decide_on,
                args=(weakref.ref(self), self._wake),
                name="evenload-routing",
                daemon=True,
            )
            self._thread.start()

    def _decide(self) -> float | None:
        """One round. Returns how long to wait for the next, in seconds; None: there is none."""
        if self._is_closed:
            return None
        self._try(lambda: self._weights.follow(self._collector.weights))
        for topic in list(self._topics.values()):
            if topic.wants_refresh:
                self._try(partial(self._refresh, topic))
            topic.is_decided.set()
        self._try(self._report)
        return _EARLY_S if self._measures_early() else self._config.refresh_s

    def _measures_early(self) -> bool:
        """Have brokers measured now where it isn't known yet which part of a topic is ours, a few times."""
        unknown = [each for each in list(self._topics.values()) if each.routing.is_part_unknown]
        early = [each for each in unknown if each.num_early < _EARLY_MAX]
        for topic in early:
            topic.num_early += 1
        if early:
            self._collector.refresh()
        return bool(early)

    def _try(self, act: Callable[[], None]) -> None:
        """What goes wrong is counted, and leaves things as they are; the next round may do better."""
        try:
            act()
        except Exception:  # noqa: BLE001 - whatever it is, producing goes on
            self.num_failed_refreshes += 1
            if self.num_failed_refreshes == 1:
                _log.exception("shares can't be decided anew and stay as they are")

    def _refresh(self, topic: _Topic) -> None:
        topic.is_due = False
        topic.refreshed_bytes = topic.routing.own_bytes.total_sent
        try:
            ratio = self.stored_ratio or topic.routing.overhead_ratio
            topic.routing.refresh(topic.remaining_bytes, expected_ratio=ratio)
        except BaseException:
            topic.is_due = True
            raise

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._config.report_s:
            self._reported_s = now_s
            self._collector.report(
                topic.routing.report(self._name, topic.remaining_bytes)
                for topic in list(self._topics.values())
                if topic.routing.own_bytes.total_sent
            )


def _decide_on(routing: weakref.ref[ProducerRouting], wake: threading.Event) -> None:
    """Round after round, until it is closed; or gone, as a producer may be dropped without being closed."""
    while True:
        wake.clear()
        alive = routing()
        wait_s = alive._decide() if alive is not None else None
        if wait_s is None:
            return
        del alive
        wake.wait(wait_s)
