"""Route the records of one load, by what its collector measures and what it tells the collector.

Shares follow the measurements and an operator's weights. The load announces the bytes that are still to come,
so that other loads count them before they are stored. Used by the thread that loads. It never waits, except
half a second for a slow score function, which is then put aside.

Read next: topic_routing.py, which chooses partitions.
"""

from __future__ import annotations

import logging
import time
from typing import Self

from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.route_service.patience_in_thread import PatienceInThread
from evenload.route_service.weights_in_force import WeightsInForce
from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.opening import AnyCollector
from evenload.telemetry_collector.reports import Intent

_log = logging.getLogger(__name__)
_ANNOUNCE_S = 1.0
_REPORT_S = 5.0


class LoadRouting:
    """Keeps one load's routing fresh, and tells what it does.

    Args:
        collector: Runs already, and longer than this.
        routing: Where records go.
        weights: Of the router that decides that; None: no router does.
        load: The load, by a name that all its loaders have in common.
        producer: Who loads.

    Attributes:
        routing: As given.
    """

    def __init__(
        self,
        collector: AnyCollector,
        routing: TopicRouting,
        weights: WeightsInForce | None,
        *,
        load: str,
        producer: str,
    ) -> None:
        self._collector = collector
        self.routing = routing
        self._weights = weights
        self._load = load
        self._producer = producer
        self._announced_s = self._reported_s = float("-inf")
        self._has_failed = False

    @classmethod
    def begin(
        cls,
        collector: AnyCollector,
        topic: str,
        num_partitions: int,
        *,
        config: RouterConfig | None,
        batch_bytes: int,
        load: str,
        producer: str,
    ) -> Self:
        """Of a topic that nothing was written to by this loader.

        Args:
            collector: As above; it measures the topic already, where a router decides.
            topic: Where the load goes.
            num_partitions: How many it has.
            config: What a router levels by; None: each partition in turn, by bytes.
            batch_bytes: About how many bytes go to one partition in turn.
            load: As above.
            producer: As above.
        """
        router = weights = None
        if config is not None:
            batched = config.model_copy(update={"batch_bytes": batch_bytes})
            router = Router(batched, patience=PatienceInThread)
            weights = WeightsInForce(router, batched)
        routing = TopicRouting(
            topic, num_partitions, router=router, cache=collector.cache, batch_bytes=batch_bytes
        )
        return cls(collector, routing, weights, load=load, producer=producer)

    def refresh(self, remaining_bytes: int, *, expected_ratio: float) -> None:
        """Decide shares anew, and tell what follows.

        Args:
            remaining_bytes: Payload still to come.
            expected_ratio: Stored bytes for each byte of payload, until it can be measured.
        """
        try:
            if self._weights is not None:
                self._weights.follow(self._collector.weights)
            self.routing.refresh(remaining_bytes, expected_ratio=expected_ratio)
            self._tell(remaining_bytes, expected_ratio)
        except Exception:  # noqa: BLE001 - a load ends well with any shares, and without being heard of
            if not self._has_failed:
                self._has_failed = True
                _log.exception("shares stay as they are, and others aren't told what this load will write")

    def _tell(self, remaining_bytes: int, expected_ratio: float) -> None:
        now_s = time.monotonic()
        if now_s - self._announced_s >= _ANNOUNCE_S:
            self._announced_s = now_s
            to_come = self.routing.stored_bytes_to_come(remaining_bytes, expected_ratio=expected_ratio)
            if to_come:
                told = Intent(load=self._load, topic=self.routing.topic, bytes_by_broker=to_come)
                self._collector.announce(told)
        if now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            self._collector.report([self.routing.report(self._producer, remaining_bytes)])

    def end(self) -> None:
        """There is nothing to come any more, or nobody to write it."""
        self._collector.withdraw(self._load)

    def watch_record(self, partition: int, size_bytes: int, is_stored: bool) -> None:
        """Count a record of which brokers have said what became of it."""
        if is_stored:
            self.routing.own_bytes.add_acknowledged(partition, size_bytes)
        else:
            self.routing.own_bytes.add_lost(partition, size_bytes)
