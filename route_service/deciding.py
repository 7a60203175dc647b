"""Decide one topic's route for all who write it.

What a producer that decides for itself knows of its own bytes, the service knows from what producers
report: how much they have sent since brokers were measured, and how much they will still send. Both are
claims, so they bend a decision within bounds only: what was sent counts up to twice what the topic was
measured to grow by in that time, and what is to come up to what the cluster holds.

Pure: snapshots, reports and times come in. Read next: service.py, which has a thread for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from evenload.route_service.route_answer import RouteAnswer
from evenload.route_service.sent_bytes import SentBytes
from evenload.router.route import Route
from evenload.router.router import Router
from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.reports import RouteReport
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["TopicDeciding"]

_GROWTH_FACTOR = 2.0
# What of the smallest broker of a topic may be sent unheard of: so much is seen in no picture of it.
_UNSEEN_PART = 1e-3
_REPORT_MIN_BYTES = 64 << 10
_REPORT_MAX_BYTES = 1 << 30
_UNBELIEVABLE_BYTES = 1 << 50


class TopicDeciding:
    """One topic's decisions, each beginning from the one before. For one thread.

    Args:
        topic: its name.
        router: decides the shares.
        next_version: gives a number that no answer had before, of whatever topic.

    Attributes:
        answer: the latest; None before the first.
        measured_at_s: when brokers were measured for it.
    """

    def __init__(self, topic: str, router: Router, next_version: Callable[[], int]) -> None:
        self.topic = topic
        self._next_version = next_version
        self.answer: RouteAnswer | None = None
        self.measured_at_s = float("-inf")
        self._router = router
        self._sent = SentBytes()
        self._num_partitions = 0
        self._route: Route | None = None
        self._grown: _Growth | None = None

    def decide(
        self,
        cached: CachedSnapshot | None,
        reports: Sequence[RouteReport],
        announced_bytes: Mapping[int, int],
        *,
        news: Sequence[RouteReport],
        now_s: float,
        poll_s: float,
    ) -> RouteAnswer:
        """The route from now on; the one before, itself, while nothing about it has changed.

        Args:
            cached: the latest measurement; None before the first.
            reports: of the producers that write the topic at the moment.
            announced_bytes: stored bytes to come from loads into other topics, by broker.
            news: those of the reports that have come since the decision before.
            now_s: the time, by the clock that reports are heard at.
            poll_s: how often producers should ask.
        """
        snapshot = None if cached is None else _with_announced(cached.snapshot, announced_bytes)
        if cached is not None:
            self.measured_at_s = now_s - cached.age_s
        num_partitions = 0 if snapshot is None else len(snapshot.topics.get(self.topic, ()))
        if num_partitions != self._num_partitions:
            self._route = None  # it would be kept while brokers are even: without the new partitions
        self._num_partitions = num_partitions
        self._hear(news, now_s=now_s)
        route = self._router.route(
            snapshot,
            self.topic,
            num_partitions=max(1, num_partitions),
            remaining_bytes=_to_come(reports, snapshot),
            own_bytes={} if cached is None or snapshot is None else self._own_bytes(snapshot, cached.age_s),
            now_s=0.0 if cached is None or snapshot is None else snapshot.taken_at_s + cached.age_s,
            previous=self._route,
        )
        if route is not self._route:
            # It is followed from now on, though not here: what would change little leaves it as it is.
            route.partition_for(0)
            self._route = route
        shares = tuple(route.shares.get(number, 0.0) for number in range(num_partitions))
        answer = RouteAnswer(
            cluster_id="" if cached is None else cached.snapshot.cluster_id,
            topic=self.topic,
            version=1 if self.answer is None else self.answer.version,
            shares=() if route.is_fallback else shares,
            expires_s=self._router.config.snapshot_age_max_s,
            turn_max_bytes=route.batch_bytes,
            poll_s=poll_s,
            report_bytes=self._report_bytes(snapshot, len(reports)),
            reason=route.reason,
            notes=route.notes,
        )
        if self.answer is None or answer != self.answer:
            self.answer = answer.model_copy(update={"version": self._next_version()})
        return self.answer

    def _hear(self, news: Sequence[RouteReport], *, now_s: float) -> None:
        """Take in what producers say that they have sent, to partitions that there are."""
        for report in news:
            sent = {
                n: total for n, total in report.sent_bytes_by_partition.items() if n < self._num_partitions
            }
            if sent:
                self._sent.hear(report.producer, sent, now_s=now_s)

    def _own_bytes(self, snapshot: ClusterSnapshot, age_s: float) -> dict[int, int]:
        """What was sent since the measurement, as far as it can be believed."""
        sent = self._sent.since(self.measured_at_s)
        believed = max(
            _GROWTH_FACTOR * self._growth_per_s(snapshot) * age_s,
            _UNSEEN_PART * _smallest_capacity(snapshot, self.topic),
        )
        part = min(1.0, believed / max(1, sum(sent.values())))
        return {number: int(part * size_bytes) for number, size_bytes in sent.items()}

    def _growth_per_s(self, snapshot: ClusterSnapshot) -> float:
        """How fast the topic's leaders grow, from one measurement to the next; 0 while there was only one."""
        if self.topic not in snapshot.topics:
            return 0.0
        stored_bytes = sum(snapshot.leader_bytes(self.topic).values())
        if self._grown is None:
            self._grown = _Growth(snapshot.taken_at_s, stored_bytes, 0.0)
        passed_s = snapshot.taken_at_s - self._grown.at_s
        if passed_s > 0:
            per_s = max(0.0, (stored_bytes - self._grown.stored_bytes) / passed_s)
            self._grown = _Growth(snapshot.taken_at_s, stored_bytes, per_s)
        return self._grown.per_s

    def _report_bytes(self, snapshot: ClusterSnapshot | None, num_producers: int) -> int:
        if snapshot is None:
            return _REPORT_MAX_BYTES
        unseen = int(_UNSEEN_PART * _smallest_capacity(snapshot, self.topic) / max(1, num_producers))
        # A power of two: with each producer more or less, it would be another answer for all of them.
        return min(_REPORT_MAX_BYTES, max(_REPORT_MIN_BYTES, 1 << unseen.bit_length() >> 1))


class _Growth(NamedTuple):
    at_s: float
    stored_bytes: int
    per_s: float


def _to_come(reports: Sequence[RouteReport], snapshot: ClusterSnapshot | None) -> int | None:
    """Payload that producers will still send, as far as it can be; None while one of them doesn't know.

    A load that says its end beside streams that have none doesn't take their bounds away.
    """
    said = [each.remaining_bytes for each in reports if each.remaining_bytes is not None]
    if snapshot is None or not said or len(said) < len(reports):
        return None
    capacity = sum(broker.capacity_bytes or 0 for broker in snapshot.brokers.values())
    return min(sum(said), capacity or _UNBELIEVABLE_BYTES)


def _with_announced(snapshot: ClusterSnapshot, announced_bytes: Mapping[int, int]) -> ClusterSnapshot:
    brokers = {
        broker_id: replace(broker, announced_bytes=broker.announced_bytes + announced_bytes[broker_id])
        if announced_bytes.get(broker_id)
        else broker
        for broker_id, broker in snapshot.brokers.items()
    }
    return replace(snapshot, brokers=brokers)


def _smallest_capacity(snapshot: ClusterSnapshot, topic: str) -> int:
    """Of the brokers that hold the topic; 0 where none is known."""
    holding = {
        broker_id for placed in snapshot.topics.get(topic, {}).values() for broker_id in placed.replica_ids
    }
    brokers = (snapshot.brokers.get(broker_id) for broker_id in holding)
    known = [each.capacity_bytes for each in brokers if each is not None and each.capacity_bytes is not None]
    return min(known, default=0)
