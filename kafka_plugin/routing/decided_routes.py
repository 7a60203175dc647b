"""Routes that are decided in this process, from what a collector measures; for who has the extra `measure`.

A thread decides shares anew each `refresh_s`, for the topics that got records since. However long a score
function takes, nobody who produces waits for it. The same thread puts an operator's weights in force, and
reports how records are routed.

Read next: topic_routing.py, one topic.
"""

from __future__ import annotations

import logging
import random
import time
from functools import partial

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.routing.routes import Routes, WrittenTopic
from evenload.kafka_plugin.routing.topic_route import PartitionCounter
from evenload.kafka_plugin.routing.topic_routing import TopicRouting
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
_EARLY_S = 0.25  # from one early measurement to the next
_EARLY_MAX = 8


class DecidedRoutes(Routes):
    """Decides routes by a collector of its own, or a shared one.

    Args:
        connection: The cluster, for the collector.
        config: How often to decide, how long to stay on a partition.
        router_config: What to level by.
        collector: One that runs already, to be shared and left running; None: one of our own.
        statistics: What our client experiences; for a collector of our own.
        queued_s: As `OwnBytes` takes it.
        count_partitions: As `TopicRoute` takes it.
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
        super().__init__(config, queued_s=queued_s, count_partitions=count_partitions)
        batched = router_config.model_copy(update={"batch_bytes": config.batch_bytes})
        # Producers that start together begin in different places, or they would fill one broker together.
        self._router = Router(batched, patience=PatienceInThread, start=random.random())
        self._weights = WeightsInForce(self._router, batched)
        self._is_own_collector = collector is None
        if collector is None and statistics is not None:
            # What our client experiences is there already: asking often costs nobody anything.
            measuring = CollectorConfig(metrics_interval_s=1.0)
            collector = Collector(connection, measuring, [], more_sources=[statistics]).start()
        self._collector = collector or open_collector(connection, topics=[]).start()
        self._reported_s = 0.0
        self._num_early: dict[str, int] = {}  # measurements that were asked for before it was their time

    def close(self) -> None:
        """End the deciding, and the collector if it is ours."""
        super().close()
        if self._is_own_collector:
            self._collector.close()

    @property
    def num_without_service(self) -> int:
        """As `Routes`; of a shared collector that asks one."""
        return self._collector.num_without_service

    def _prepare(self, topic: str, left_s: float) -> None:
        self._collector.watch([topic])
        try:
            self._collector.snapshot(max_age_s=0.0, timeout_s=left_s)
        except CollectorError as error:
            _log.warning("the first records of topic %s go evenly to its partitions: %s", topic, error)

    def _make_route(self, topic: str, num_partitions: int) -> TopicRouting:
        return TopicRouting(
            topic,
            num_partitions,
            router=self._router,
            cache=self._collector.cache,
            batch_bytes=self._config.batch_bytes,
            is_shared=True,
            queued_s=self._queued_s,
            count_partitions=self._count_partitions,
        )

    # In the thread.

    def _look(self) -> float:
        self._try(lambda: self._weights.follow(self._collector.weights))
        for topic in list(self._topics.values()):
            if topic.wants_a_look:
                self._try(partial(self._decide, topic))
            topic.is_known.set()
        self._try(self._report)
        return _EARLY_S if self._measures_early() else self._config.refresh_s

    def _measures_early(self) -> bool:
        """Have brokers measured now where it isn't known yet which part of a topic is ours, a few times."""
        early = [
            name
            for name, topic in list(self._topics.items())
            if _routing_of(topic).is_part_unknown and self._num_early.get(name, 0) < _EARLY_MAX
        ]
        for name in early:
            self._num_early[name] = self._num_early.get(name, 0) + 1
        if early:
            self._collector.refresh()
        return bool(early)

    def _decide(self, topic: WrittenTopic) -> None:
        topic.look()
        routing = _routing_of(topic)
        try:
            routing.refresh(topic.remaining_bytes, expected_ratio=self.stored_ratio or routing.overhead_ratio)
        except BaseException:
            topic.is_due = True
            raise

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._config.report_s:
            self._reported_s = now_s
            self._collector.report(
                topic.route.report(self._name, topic.remaining_bytes)
                for topic in list(self._topics.values())
                if topic.route.own_bytes.total_sent
            )


def _routing_of(topic: WrittenTopic) -> TopicRouting:
    assert isinstance(topic.route, TopicRouting)
    return topic.route
