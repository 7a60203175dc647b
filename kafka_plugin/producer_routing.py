"""What `BalancedProducer` and `NodeAwarePartitioner` share: one collector, and a routing for each topic.

Choosing a partition costs about a microsecond and never waits, but once: the first record of a topic waits
until brokers have been measured (a few hundredths of a second), or a client's whole queue, filled in a
moment, would be spread evenly over brokers that are not. If that takes too long, it goes on without. From
then on, shares are decided anew at most every `refresh_s`, by whichever thread comes by, from what the
collector has measured in the background.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from types import TracebackType
from typing import Self

from kafka_connection import Connection
from kafka_plugin.config import ProducerConfig
from kafka_plugin.routing import PartitionCounter, TopicRouting
from router.config import RouterConfig
from router.router import Router
from telemetry_collector.collector import Collector
from telemetry_collector.config import CollectorConfig
from telemetry_collector.errors import CollectorError
from telemetry_collector.sources.client_statistics import ClientStatisticsSource

_log = logging.getLogger(__name__)


class ProducerRouting:
    """Routings of the topics that one producer writes. Any thread may call any method.

    Args:
        connection: The cluster, for the collector.
        config: How often to decide, how long to stay on a partition.
        router_config: What to level by.
        collector: One that runs already, to be shared and left running; None: one of our own.
        statistics: What our client experiences; for a collector of our own.
        count_partitions: As `TopicRouting` takes it.
    """

    def __init__(
        self,
        connection: Connection,
        config: ProducerConfig,
        router_config: RouterConfig,
        collector: Collector | None,
        *,
        statistics: ClientStatisticsSource | None = None,
        count_partitions: PartitionCounter,
    ) -> None:
        self._config = config
        self._count_partitions = count_partitions
        batched = router_config.model_copy(update={"batch_bytes": config.batch_bytes})
        # Producers that start together begin in different places, or they would fill one broker together.
        self._router = Router(batched, start=random.random())
        self._is_own_collector = collector is None
        if collector is None:
            more_sources = [] if statistics is None else [statistics]
            # What our client experiences is there already: asking often costs nobody anything.
            measuring = CollectorConfig(metrics_interval_s=1.0)
            collector = Collector(connection, measuring, [], more_sources=more_sources).start()
        self._collector = collector
        self._lock = threading.Lock()
        self._routings: dict[str, TopicRouting] = {}
        self._remaining_bytes: dict[str, int] = {}
        self._due_s: dict[str, float] = {}
        self.stored_ratio = 1.0  # stored bytes for each byte of payload, where the producer knows it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the collector, if it is ours."""
        if self._is_own_collector:
            self._collector.close()

    def find(self, topic: str) -> TopicRouting | None:
        """The routing of a topic that was added."""
        return self._routings.get(topic)

    def add(self, topic: str, num_partitions: int) -> TopicRouting:
        """The routing of a topic; its layout is measured from now on. Waits for the first measurement."""
        with self._lock:
            routing = self._routings.get(topic)
            if routing is not None:
                return routing
            routing = TopicRouting(
                topic,
                num_partitions,
                router=self._router,
                cache=self._collector.cache,
                batch_bytes=self._config.batch_bytes,
                count_partitions=self._count_partitions,
            )
            self._routings[topic] = routing
            self._due_s[topic] = 0.0
            self._collector.watch([topic])
        self._wait_for_snapshot(topic)
        return routing

    def _wait_for_snapshot(self, topic: str) -> None:
        timeout_s = self._config.first_snapshot_timeout_s
        try:
            self._collector.snapshot(max_age_s=0.0, timeout_s=timeout_s)
        except CollectorError as error:
            _log.warning("the first records of topic %s go evenly to its partitions: %s", topic, error)

    def expect(self, topic: str, size_bytes: int) -> None:
        """Say how much payload is still to come for a topic: shares are then decided for all of it."""
        self._remaining_bytes[topic] = size_bytes + self._sent_bytes(topic)
        self._due_s[topic] = 0.0

    def partition_for(self, routing: TopicRouting, size_bytes: int) -> int:
        """Where the next record of a topic goes; it counts as sent."""
        now_s = time.monotonic()
        if now_s >= self._due_s[routing.topic] and self._lock.acquire(blocking=False):
            try:
                self._refresh(routing, now_s)
            finally:
                self._lock.release()
        return routing.partition_for(size_bytes)

    def recount(self, routing: TopicRouting) -> None:
        """The client knows no partition of such a number: decide shares anew, over those that it knows."""
        known = routing.num_partitions
        routing.num_partitions = self._count_partitions(routing.topic, known) or known
        self._due_s[routing.topic] = 0.0

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even because nothing fresh was known."""
        return sum(routing.num_fallbacks for routing in list(self._routings.values()))

    def _refresh(self, routing: TopicRouting, now_s: float) -> None:
        self._due_s[routing.topic] = now_s + self._config.refresh_s
        total_bytes = self._remaining_bytes.get(routing.topic)
        remaining_bytes = None
        if total_bytes is not None:
            remaining_bytes = max(0, total_bytes - self._sent_bytes(routing.topic))
        routing.refresh(remaining_bytes, expected_ratio=self.stored_ratio)

    def _sent_bytes(self, topic: str) -> int:
        routing = self._routings.get(topic)
        return routing.own_bytes.total_sent if routing is not None else 0
