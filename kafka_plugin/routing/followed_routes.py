"""Routes that a collector service decides for all who write a topic: here is only a table of them.

Each topic that got records is asked for about each second, others that were written lately now and then, and
a service is told what was sent. While none gives anything usable, the latest shares are followed until they
expire (by default 30 s after brokers were measured), then shares are even; that is counted, and said once in
the log. Nobody measures the brokers meanwhile: a service's producers may be a thousand, and what it fails of
is often the brokers' own trouble.

Of several services, all are told, and one is asked until it fails. An answer about another cluster than the
client's is never used; the client may have been led to another one, so it is asked again.

Read next: `RouteClient` of the package route_service.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.routing.routes import Routes, WrittenTopic
from evenload.kafka_plugin.routing.topic_route import PartitionCounter
from evenload.route_service.client import HeardRoute, RouteClient
from evenload.router.route import Route
from evenload.telemetry_collector.errors import ServiceRefusedError, ServiceUnusableError
from evenload.telemetry_collector.schedule import backoff_s

_log = logging.getLogger(__name__)
_JITTER = 0.2
_BACKOFF_S, _BACKOFF_MAX_S = 1.0, 8.0
_REPORT_MIN_S = 1.0
_FIRST_TIMEOUT_S = 4.0
_ASK_MIN_S = 0.2  # whatever a service says
# A topic that isn't written at the moment is asked for so much less often, and after so long no more.
_IDLE_FACTOR, _IDLE_S = 10, 600.0
# One answer that is late tells nothing; a service that a thousand producers ask as they all start is busy.
_FIRST_MISSES = 2


_rng = random.Random()


def _backoff_s(num_failures: int) -> float:
    return backoff_s(num_failures, initial_s=_BACKOFF_S, max_s=_BACKOFF_MAX_S, rng=_rng)


class _Service:
    """One service, and how it has answered lately."""

    def __init__(self, client: RouteClient) -> None:
        self.client = client
        self.retry_at_s = float("-inf")
        self.tell_at_s = float("-inf")
        self.num_misses = 0  # in a row
        self.is_untold = False

    def hit(self) -> None:
        self.num_misses = 0
        self.retry_at_s = float("-inf")

    def miss(self, now_s: float) -> None:
        self.num_misses += 1
        self.retry_at_s = now_s + _backoff_s(self.num_misses)


class _Followed:
    """What was heard of a topic, and what a service was told of it."""

    def __init__(self) -> None:
        self.heard: HeardRoute | None = None
        self.ask_at_s = self.written_at_s = float("-inf")
        self.num_refusals = 0  # in a row
        self.reported_bytes = 0
        self.reported_at_s = float("-inf")


class FollowedRoutes(Routes):
    """Asks the services of a connection for routes.

    Args:
        connection: Names the services.
        config: How long to stay on a partition, at most; how often to report.
        queued_s: As `OwnBytes` takes it.
        count_partitions: As `TopicRoute` takes it.
        ask_cluster_id: Says which cluster the client writes to, as far as it knows.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        connection: Connection,
        config: ProducerConfig,
        *,
        queued_s: float = 0.0,
        count_partitions: PartitionCounter,
        ask_cluster_id: Callable[[], str | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, queued_s=queued_s, count_partitions=count_partitions)
        self._make_client = partial(RouteClient, connection=connection, name=self._name, clock=clock)
        self._services = [_Service(self._make_client(url)) for url in connection.collector_urls]
        self._first: dict[str, HeardRoute] = {}  # of topics that are being added
        self._ask_cluster_id = ask_cluster_id
        self._clock = clock
        self._followed: dict[str, _Followed] = {}
        self._num_without_service = 0
        self._is_without = False

    @property
    def num_without_service(self) -> int:
        """As `Routes`."""
        return self._num_without_service

    def close(self) -> None:
        """As `Routes`."""
        super().close()
        if self._thread is None or not self._thread.is_alive():
            for service in self._services:
                service.client.close()

    def _prepare(self, topic: str, left_s: float) -> None:
        """Ask beside the thread: many topics may be added at once, and a first answer takes up to 2 s."""
        gives_up_at_s = self._clock() + min(left_s, _FIRST_TIMEOUT_S)
        for service in self._usable():
            left_s = gives_up_at_s - self._clock()
            if left_s <= 0:
                return
            with closing(self._make_client(service.client.url, timeout_s=left_s)) as client:
                try:
                    self._first[topic] = client.ask(topic)
                    return
                except ServiceUnusableError as error:
                    _log.info("topic %s has no route yet: %s: %s", topic, client.url, error.reason)

    # In the thread.

    def _look(self) -> float:
        now_s = self._clock()
        wait_s = self._config.refresh_s
        for name, topic in list(self._topics.items()):
            followed = self._followed.setdefault(name, _Followed())
            if self._is_closed:
                break
            first = self._first.pop(name, None)
            if first is not None:
                self._try(partial(self._begin, first, topic, followed))
            if topic.wants_a_look:
                followed.written_at_s = now_s
            if followed.ask_at_s <= now_s - self._idle_s(topic, followed, now_s):
                self._try(partial(self._ask, topic, followed))
            if followed.ask_at_s > now_s:
                wait_s = min(wait_s, followed.ask_at_s - now_s)
        self._try(self._report)
        return wait_s

    def _idle_s(self, topic: WrittenTopic, followed: _Followed, now_s: float) -> float:
        """How much later it is asked for, as it isn't written at the moment."""
        if topic.wants_a_look or followed.heard is None:
            return 0.0
        if now_s - followed.written_at_s > _IDLE_S:
            return math.inf
        answer = followed.heard.answer
        return min(_IDLE_FACTOR * answer.poll_s, answer.expires_s / 3)

    def _begin(self, first: HeardRoute, topic: WrittenTopic, followed: _Followed) -> None:
        try:
            self._check(first)
        except ServiceUnusableError:  # said when it is asked again
            return
        topic.look()
        self._use(first, topic, followed)

    def _ask(self, topic: WrittenTopic, followed: _Followed) -> None:
        """Ask the services, one after the other, until one has a route that can be used."""
        topic.look()
        refused = None
        for service in self._usable():
            name = topic.route.topic
            try:
                heard = service.client.ask(name)
                self._check(heard)
            except ServiceRefusedError as error:  # it is there, and may answer about others
                service.hit()
                refused = service.client.url, error.reason
            except ServiceUnusableError as error:
                service.client.forget(name)
                service.miss(self._clock())
                self._go_without(service.client.url, error.reason)
            else:
                service.hit()
                self._services.remove(service)
                self._services.insert(0, service)
                self._come_back(service, topic, followed)
                self._use(heard, topic, followed)
                return
        topic.is_due = True  # until it has a route again, whether or not anything is sent
        now_s = self._clock()
        followed.ask_at_s = min(service.retry_at_s for service in self._services)
        if refused is not None:
            followed.num_refusals += 1
            followed.ask_at_s = now_s + _backoff_s(followed.num_refusals)
            if followed.num_refusals == _FIRST_MISSES:
                self._num_without_service += 1
                _log.warning(
                    "the collector service at %s has no route for topic %s: %s; shares are followed until "
                    "they expire, and are even then",
                    refused[0],
                    topic.route.topic,
                    refused[1],
                )
        if self._is_without or followed.num_refusals >= _FIRST_MISSES:
            topic.is_known.set()

    def _usable(self) -> Iterator[_Service]:
        for service in list(self._services):
            if service.retry_at_s <= self._clock():
                yield service

    def _check(self, heard: HeardRoute) -> None:
        """Whether it is about the cluster that the client writes to, as far as both are known."""
        found, ours = heard.answer.cluster_id, self._ask_cluster_id()
        if found and ours is not None and found != ours:
            raise ServiceUnusableError(
                f"it measures cluster {found!r}, but the producer writes to cluster {ours!r}; "
                "correct collector_url"
            )

    def _use(self, heard: HeardRoute, topic: WrittenTopic, followed: _Followed) -> None:
        answer, route = heard.answer, topic.route
        is_new = (
            followed.heard is None or followed.heard.answer is not answer or route.route.reason == "expired"
        )
        is_recounted = route.is_recounted(len(answer.shares))
        ends_s = heard.measured_at_s + answer.expires_s
        if is_new or is_recounted:
            shares = dict(enumerate(answer.shares)) or dict.fromkeys(range(route.num_partitions), 1.0)
            # Producers that start together begin in different places, or they would fill one broker together.
            decided = Route(
                shares,
                batch_bytes=min(self._config.batch_bytes, answer.turn_max_bytes),
                reason=answer.reason,
                notes=answer.notes,
                previous=route.route,
                skip_turns=int(len(shares) * random.random()),
            )
        else:
            decided = route.route
        route.follow(decided, ends_s=ends_s, on_end=partial(self._look_after, topic))
        followed.heard = heard
        poll_s = max(_ASK_MIN_S, answer.poll_s)
        followed.ask_at_s = self._clock() + poll_s * _rng.uniform(1 - _JITTER, 1 + _JITTER)
        topic.is_known.set()

    def _go_without(self, url: str, reason: str) -> None:
        """Say so, once, if no service is there any more."""
        if not self._is_without and all(each.num_misses >= _FIRST_MISSES for each in self._services):
            self._is_without = True
            self._num_without_service += 1
            _log.warning(
                "the collector service at %s can't be used: %s; shares are followed until they expire, and "
                "are even then",
                url,
                reason,
            )

    def _come_back(self, service: _Service, topic: WrittenTopic, followed: _Followed) -> None:
        if self._is_without:
            self._is_without = False
            _log.warning("the collector service at %s can be used again", service.client.url)
        if followed.num_refusals >= _FIRST_MISSES:
            _log.warning(
                "the collector service at %s has a route for topic %s again",
                service.client.url,
                topic.route.topic,
            )
        followed.num_refusals = 0

    def _report(self) -> None:
        """Tell all services what was sent: each `report_s`, and sooner if it is much."""
        now_s = self._clock()
        due = []
        for name, topic in list(self._topics.items()):
            followed = self._followed.get(name)
            if followed is None or followed.heard is None:
                continue
            unsaid_bytes = topic.route.own_bytes.total_sent - followed.reported_bytes
            passed_s = now_s - followed.reported_at_s
            is_much = unsaid_bytes >= followed.heard.answer.report_bytes and passed_s >= _REPORT_MIN_S
            if topic.route.own_bytes.total_sent and (is_much or passed_s >= self._config.report_s):
                due.append(topic.route.report(self._name, topic.remaining_bytes))
                followed.reported_bytes += unsaid_bytes
                followed.reported_at_s = now_s
        if not due:
            return
        for service in self._services:
            if max(service.retry_at_s, service.tell_at_s) > now_s:
                continue
            try:
                service.client.report(due)
            except ServiceUnusableError as error:  # it may answer all the same: to who may only read, say
                service.tell_at_s = self._clock() + _BACKOFF_MAX_S
                if not service.is_untold:
                    _log.warning(
                        "the collector service at %s isn't told: %s", service.client.url, error.reason
                    )
                service.is_untold = True
            else:
                service.is_untold = False
