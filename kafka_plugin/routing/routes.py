"""The routes of all topics that one producer writes, kept fresh by a thread of their own.

Choosing a partition costs about a microsecond and never waits. Adding a topic waits until its first shares
are known (a few hundredths of a second), or a client's whole queue, filled in a moment, would be spread
evenly over brokers that are not. If that takes too long, it goes on without.

From then on the thread looks after the topics that got records since: in decided_routes.py it decides, in
followed_routes.py it asks a service. Whatever goes wrong there, nobody who produces waits for it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.routing.topic_route import PartitionCounter, TopicRoute

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 5.0
_FIRST_MIN_S = 0.1


class WrittenTopic:
    """A topic's route, and what the next look at it depends on.

    Attributes:
        route: By which it is written.
        total_bytes: That will have been sent in the end; None: nobody knows.
        is_due: Whether to look after it, whether or not anything was sent.
        is_known: Set once there are shares, or it is certain that there will be none soon.
    """

    def __init__(self, route: TopicRoute) -> None:
        self.route = route
        self.total_bytes: int | None = None
        self.is_due = True
        self.is_known = threading.Event()
        self._looked_at_bytes = -1  # that had been sent by then

    @property
    def remaining_bytes(self) -> int | None:
        """Payload that this producer will still send to it."""
        if self.total_bytes is None:
            return None
        return max(0, self.total_bytes - self.route.own_bytes.total_sent)

    @property
    def wants_a_look(self) -> bool:
        """Whether anything was sent since the last one, or it is due."""
        return self.is_due or self.route.own_bytes.total_sent != self._looked_at_bytes

    def look(self) -> None:
        """It is looked after now."""
        self.is_due = False
        self._looked_at_bytes = self.route.own_bytes.total_sent


class Routes(ABC):
    """Routes of the topics that one producer writes. Any thread may call any method.

    Args:
        config: How long to stay on a partition, and to wait for a topic's first shares.
        queued_s: As `OwnBytes` takes it.
        count_partitions: As `TopicRoute` takes it.
    """

    def __init__(
        self, config: ProducerConfig, *, queued_s: float = 0.0, count_partitions: PartitionCounter
    ) -> None:
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            _log.warning(
                "this Python runs without the interpreter lock (free-threaded), which counting the bytes of "
                "several threads relies on: shares may drift from what was decided; use one with the lock"
            )
        self._config = config
        self._queued_s = queued_s
        self._count_partitions = count_partitions
        self._name = f"{socket.gethostname()}/{os.getpid()}/{id(self):x}"
        self._lock = threading.Lock()
        self._topics: dict[str, WrittenTopic] = {}
        self._expected: dict[str, int] = {}  # of topics that have no route yet
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.stored_ratio: float | None = None  # stored for each byte of payload, where the producer knows it
        self.num_failed_rounds = 0  # shares stayed as they were; the log has the reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, and what it asks."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                _log.warning("looking after shares takes longer than %g s; it goes on", _CLOSE_TIMEOUT_S)

    def find(self, topic: str) -> TopicRoute | None:
        """The route of a topic that was added."""
        known = self._topics.get(topic)
        return known.route if known is not None else None

    def add(self, topic: str, num_partitions: int) -> TopicRoute:
        """The route of a topic, looked after from now on. Waits for its first shares."""
        gives_up_at_s = time.monotonic() + self._config.first_snapshot_timeout_s
        known = self._topics.get(topic)
        if known is not None:
            return known.route
        self._prepare(topic, self._config.first_snapshot_timeout_s)
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                known = self._topics[topic] = WrittenTopic(self._make_route(topic, num_partitions))
            if topic in self._expected:
                known.total_bytes = self._expected.pop(topic)
            self._start()
        self._wake.set()
        known.is_known.wait(max(_FIRST_MIN_S, gives_up_at_s - time.monotonic()))
        return known.route

    def expect(self, topic: str, size_bytes: int) -> None:
        """As `BalancedProducer.expect`."""
        with self._lock:
            known = self._topics.get(topic)
            if known is None:
                self._expected[topic] = size_bytes
                return
        known.total_bytes = size_bytes + known.route.own_bytes.total_sent
        self._look_after(known)

    def recount(self, route: TopicRoute, partition: int) -> None:
        """The client knows no partition of such a number, so none above: only others get records now."""
        route.recount(max(1, min(route.num_partitions, partition)))
        self._look_after(self._topics[route.topic])

    @property
    def num_fallbacks(self) -> int:
        """How often shares were even because nothing fresh was known."""
        return sum(topic.route.num_fallbacks for topic in list(self._topics.values()))

    @property
    @abstractmethod
    def num_without_service(self) -> int:
        """How often the collector service gave nothing usable, and it went on without."""

    # For those who look after topics.

    @abstractmethod
    def _prepare(self, topic: str, left_s: float) -> None:
        """Have what is needed to look after a topic; may wait for so many seconds."""

    def _make_route(self, topic: str, num_partitions: int) -> TopicRoute:
        return TopicRoute(
            topic,
            num_partitions,
            batch_bytes=self._config.batch_bytes,
            queued_s=self._queued_s,
            count_partitions=self._count_partitions,
        )

    @abstractmethod
    def _look(self) -> float:
        """One round. Returns how long to wait for the next, in seconds."""

    def _look_after(self, topic: WrittenTopic) -> None:
        topic.is_due = True
        self._wake.set()

    def _try(self, act: Callable[[], None]) -> None:
        """What goes wrong is counted, and leaves things as they are; the next round may do better."""
        try:
            act()
        except Exception:  # noqa: BLE001 - whatever it is, producing goes on
            self.num_failed_rounds += 1
            if self.num_failed_rounds == 1:
                _log.exception("shares can't be decided anew and stay as they are")

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(
                target=_look_on, args=(weakref.ref(self), self._wake), name="evenload-routing", daemon=True
            )
            self._thread.start()


def _look_on(routes: weakref.ref[Routes], wake: threading.Event) -> None:
    """Round after round, until it is closed; or gone, as a producer may be dropped without being closed."""
    while True:
        wake.clear()
        alive = routes()
        if alive is None or alive._is_closed:
            return
        wait_s = alive._look()
        del alive
        wake.wait(wait_s)
