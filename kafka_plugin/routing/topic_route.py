"""The route by which one topic is written, and the books of what was sent by it.

Whoever decides shares swaps them in while records are sent. What the client knows of the topic bounds them: a
partition that it has never heard of gets nothing, whatever was decided. `partition_for` never waits and never
fails; without shares, or with shares that have expired, partitions take turns evenly, which is counted.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from evenload.kafka_plugin.routing.own_bytes import OwnBytes
from evenload.router.route import Route
from evenload.telemetry_collector.reports import RouteReport

_log = logging.getLogger(__name__)
_RECORD_OVERHEAD_BYTES = 10  # a record's own fields in a batch of many (magic 2): 7 to 12
_FIGURES = re.compile(r"\d+(\.\d+)?(%| [KMGT]?i?B\b)")
_SAID_MAX = 100

PartitionCounter = Callable[[str, int], int | None]


class TopicRoute:
    """Chooses partitions of one topic. Any thread may call any method.

    Args:
        topic: Its name.
        num_partitions: How many the client knows.
        batch_bytes: About how many bytes go to one partition in turn, at most.
        queued_s: As `OwnBytes` takes it.
        count_partitions: Told topic and number when others know another number of partitions; answers how
            many the client knows by now, or None when that can't be said. Without it the first number stays.

    Attributes:
        topic: As given.
        num_partitions: How many the client knows.
        own_bytes: What was sent, by partition.
        num_fallbacks: How often shares were even for want of something better.
    """

    def __init__(
        self,
        topic: str,
        num_partitions: int,
        *,
        batch_bytes: int,
        queued_s: float = 0.0,
        count_partitions: PartitionCounter | None = None,
    ) -> None:
        self.topic = topic
        self.num_partitions = num_partitions
        self.own_bytes = OwnBytes(queued_s)
        self.num_fallbacks = 0
        self._count_partitions = count_partitions
        self._sampled_records = self._sampled_bytes = 0
        self._batch_bytes = batch_bytes
        self._swapping = threading.Lock()
        self._route = self._even()
        self._ends_s: float | None = None
        self._on_end: Callable[[], None] | None = None
        self._said: set[str] = set()

    @property
    def route(self) -> Route:
        """The shares in use."""
        return self._route

    def partition_for(self, size_bytes: int) -> int:
        """Where a record of that size goes; it counts as sent."""
        if self._ends_s is not None and time.monotonic() >= self._ends_s:
            self._end()
        partition = self._route.partition_for(size_bytes)
        self.own_bytes.add_sent(partition, size_bytes)
        return partition

    def give_back(self, partition: int, size_bytes: int) -> None:
        """So much of what `partition_for` was asked for did not go there after all; if negative, more did.

        Its next turn comes the sooner. Otherwise each refusal would cost a partition part of its turn, and
        with a queue that is always full, shares would drift apart by whatever turns were lost.
        """
        self.own_bytes.add_lost(partition, size_bytes)
        self._route.give_back(partition, size_bytes)

    def sample(self, num_records: int, size_bytes: int) -> None:
        """Records that went here had this payload: of small ones, more is stored than that."""
        self._sampled_records += num_records
        self._sampled_bytes += size_bytes

    @property
    def overhead_ratio(self) -> float:
        """Stored bytes for each byte of payload, going by the records that were sampled."""
        return 1 + _RECORD_OVERHEAD_BYTES * self._sampled_records / max(1, self._sampled_bytes)

    def follow(
        self, route: Route, *, ends_s: float | None = None, on_end: Callable[[], None] | None = None
    ) -> Route:
        """Go by these shares from now on, as far as the client knows their partitions.

        Args:
            route: What was decided.
            ends_s: When its shares end, by the monotonic clock; None: never.
            on_end: Called once, by whoever notices that; must not wait.

        Returns:
            What is gone by.
        """
        self._say(route.notes)
        with self._swapping:  # the client may have refused a partition while shares were being decided
            self._ends_s, self._on_end = ends_s, on_end
            self.num_fallbacks += route.is_fallback
            self._route = self._restricted(route)
            return self._route

    def recount(self, num_partitions: int) -> None:
        """Use only so many partitions from now on, without deciding anew: the client refuses others."""
        with self._swapping:
            self.num_partitions = num_partitions
            self._route = self._restricted(self._route)

    def is_recounted(self, num_known: int) -> bool:
        """Whether partitions were added, or the topic was deleted and made again with fewer.

        Others can know that minutes before the client, which refuses partitions that it doesn't know.

        Args:
            num_known: How many others know; 0: they don't know the topic.
        """
        before = self.num_partitions
        if self._count_partitions is not None and num_known not in (0, before):
            self.num_partitions = self._count_partitions(self.topic, num_known) or before
        return self.num_partitions != before

    def report(self, producer: str, remaining_bytes: int | None) -> RouteReport:
        """How this topic's records are routed at the moment, for whoever wants to see it."""
        route, sent = self._route, self.own_bytes.sent_by_partition()
        return RouteReport(
            producer=producer,
            topic=self.topic,
            shares=route.shares,
            reason=route.reason,
            notes=route.notes,
            sent_bytes=sum(sent.values()),
            sent_bytes_by_partition=sent,
            remaining_bytes=remaining_bytes,
            num_fallbacks=self.num_fallbacks,
        )

    def _say(self, notes: tuple[str, ...]) -> None:
        """Log what routing can't level and what would help: each once, whatever its figures are by then."""
        for note in notes:
            subject = _FIGURES.sub("", note)
            if subject not in self._said and len(self._said) < _SAID_MAX:
                self._said.add(subject)
                _log.warning("topic %s: %s", self.topic, note)

    def _end(self) -> None:
        with self._swapping:
            if self._ends_s is None:
                return  # another thread was here
            self._ends_s, on_end = None, self._on_end
            self.num_fallbacks += 1
            self._route = self._even(reason="expired", previous=self._route)
        if on_end is not None:
            on_end()

    def _restricted(self, route: Route) -> Route:
        """The same shares over those of the partitions that the client knows."""
        shares = {p: share for p, share in route.shares.items() if p < self.num_partitions}
        if len(shares) == len(route.shares):
            return route
        if not sum(shares.values()):
            return self._even()
        return Route(shares, batch_bytes=self._batch_bytes, reason=route.reason, notes=route.notes)

    def _even(self, *, reason: str | None = None, previous: Route | None = None) -> Route:
        shares = dict.fromkeys(range(self.num_partitions), 1.0)
        return Route(shares, batch_bytes=self._batch_bytes, reason=reason, previous=previous)
