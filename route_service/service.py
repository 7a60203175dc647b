"""One thread that decides the routes of all topics that somebody asks for, for all who ask.

A topic is decided anew when there is something new to decide on: a measurement, weights, what loads
announce, what producers report; at most each second. After each round the thread rests as long as the round
took, so that deciding takes half a core at most: in a cluster where it takes longer, routes are a little
older, and say so.

Nobody who asks waits for a decision, but for a topic's first. Read next: deciding.py; http_routes.py, which
puts HTTP before it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Self

from evenload.route_service.deciding import TopicDeciding
from evenload.route_service.pace import Pace
from evenload.route_service.patience_in_thread import PatienceInThread
from evenload.route_service.route_answer import RouteAnswer, encode_route
from evenload.route_service.weights_in_force import WeightsInForce
from evenload.router.config import RouterConfig
from evenload.router.router import Router
from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.weights import Weights

__all__ = ["DecidedRoute", "RouteService"]

_log = logging.getLogger(__name__)
_DECIDED_HERE = "decided by this service"
_EACH_S = 1.0
_TOPIC_LIFETIME_S = 60.0  # of one that nobody asks for
_CLOSE_TIMEOUT_S = 0.3  # a service that is stopped ends within a second
# However many ask, they ask so often in all.
_ASKED_PER_S = 500.0


class DecidedRoute(NamedTuple):
    """A topic's route: as it travels, and what changes with it and with each request.

    Attributes:
        answer: what was decided.
        body: the same, encoded.
        measured_at_s: when brokers were measured for it, by the service's clock.
    """

    answer: RouteAnswer
    body: bytes
    measured_at_s: float


class _Inputs(NamedTuple):
    """What a decision was made of."""

    cached: CachedSnapshot | None
    weights: Weights | None
    announced_bytes: Mapping[int, int]
    reports: Sequence[RouteReport]
    poll_s: float

    def is_as(self, other: _Inputs | None) -> bool:
        """Whether nothing is new. What producers report are other objects when they are told anew."""
        if other is None:
            return False
        ours, theirs = (
            (each.cached.snapshot, each.cached.is_stale) if each.cached is not None else (None, False)
            for each in (self, other)
        )
        return (
            ours[0] is theirs[0]
            and ours[1] == theirs[1]
            and (self.weights, self.announced_bytes, self.poll_s)
            == (other.weights, other.announced_bytes, other.poll_s)
            and list(map(id, self.reports)) == list(map(id, other.reports))
        )


class _Topic:
    def __init__(self, deciding: TopicDeciding, now_s: float) -> None:
        self.deciding = deciding
        self.asked_at_s = now_s
        self.decided: DecidedRoute | None = None
        self.shown: RouteReport | None = None
        self.first: Future[None] = Future()
        self.inputs: _Inputs | None = None
        self.decided_at_s = float("-inf")


class RouteService:
    """Decides routes in a thread, until it is closed; a context manager. Any thread may ask.

    Args:
        service: what is measured, weighted, announced and reported.
        config: what to level by.
        clock: monotonic seconds, as the service's.
    """

    def __init__(
        self,
        service: CollectorService,
        config: RouterConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        config = config or RouterConfig()
        self._router = Router(config, patience=PatienceInThread)
        self._weights = WeightsInForce(self._router, config)
        self._clock = clock
        self._topics: dict[str, _Topic] = {}  # who was asked for longest ago comes first
        self._versions = itertools.count(1)
        self._pace = Pace(_ASKED_PER_S)
        self._lock = threading.Lock()  # guards which topics there are, and the pace
        self._wake = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._decide_on, name="evenload-routes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.info("deciding routes takes longer than %g s; it is left to itself", _CLOSE_TIMEOUT_S)

    def find(self, topic: str) -> DecidedRoute | None:
        """A topic's route, if somebody has asked for it lately, and it was decided."""
        known = self._topics.get(topic)
        return None if known is None else known.decided

    def ask(self, topic: str) -> tuple[DecidedRoute | None, Future[None]]:
        """A topic's route, if it was decided yet, and what is done when it is. It is decided from now on."""
        now_s = self._clock()
        with self._lock:
            self._pace.count()
            known = self._topics.pop(topic, None)
            if known is None:
                while len(self._topics) >= self._service.config.topics_max:
                    del self._topics[next(iter(self._topics))]
                known = _Topic(TopicDeciding(topic, self._router, self._versions.__next__), now_s)
                self._wake.set()
            self._topics[topic] = known
            known.asked_at_s = now_s
        return known.decided, known.first

    # In the thread.

    def _decide_on(self) -> None:
        while not self._is_closed.is_set():
            begun_s = self._clock()
            try:
                self._decide_all()
            except Exception:  # noqa: BLE001 - whatever it is, the next round may do better
                _log.exception("routes can't be decided anew and stay as they are")
            worked_s = self._clock() - begun_s
            self._is_closed.wait(worked_s)
            self._wake.wait(max(0.0, _EACH_S - 2 * worked_s))  # a new topic doesn't wait for the next second
            self._wake.clear()

    def _decide_all(self) -> None:
        now_s = self._clock()
        with self._lock:
            silent = [n for n, each in self._topics.items() if now_s - each.asked_at_s > _TOPIC_LIFETIME_S]
            for name in silent:
                del self._topics[name]
            topics = dict(self._topics)
        weights = self._service.weights
        self._weights.follow(weights)
        reports: dict[str, list[RouteReport]] = {name: [] for name in topics}
        for report in self._service.reports:
            if report.topic in reports:
                reports[report.topic].append(report)
        announced = _Announced(self._service.intents)
        with self._lock:
            self._pace.look(now_s)
            poll_s = self._pace.poll_s
        for name, topic in topics.items():
            if self._is_closed.is_set():
                return
            if self._clock() - topic.decided_at_s < _EACH_S:
                continue
            inputs = _Inputs(self._service.latest, weights, announced.to_others(name), reports[name], poll_s)
            if not inputs.is_as(topic.inputs):
                try:
                    self._decide(topic, inputs)
                except Exception:  # noqa: BLE001 - others are decided, and the next round may do better
                    _log.exception("the route of topic %s can't be decided anew and stays as it is", name)
        self._service.decided = [each.shown for each in topics.values() if each.shown is not None]

    def _decide(self, topic: _Topic, inputs: _Inputs) -> None:
        topic.decided_at_s = now_s = self._clock()
        heard = set() if topic.inputs is None else set(map(id, topic.inputs.reports))
        answer = topic.deciding.decide(
            inputs.cached,
            inputs.reports,
            inputs.announced_bytes,
            news=[each for each in inputs.reports if id(each) not in heard],
            now_s=now_s,
            poll_s=inputs.poll_s,
        )
        earlier = topic.decided
        body = earlier.body if earlier is not None and earlier.answer is answer else encode_route(answer)
        topic.decided = DecidedRoute(answer, body, topic.deciding.measured_at_s)
        topic.shown = _shown(answer, self._router.put_aside)
        topic.inputs = inputs
        if not topic.first.done():
            topic.first.set_result(None)


def _shown(answer: RouteAnswer, put_aside: Mapping[str, str]) -> RouteReport:
    """A decision, as the page shows producers' reports."""
    return RouteReport(
        producer=_DECIDED_HERE,
        topic=answer.topic,
        shares=dict(enumerate(answer.shares)),
        reason=answer.reason,
        notes=answer.notes,
        put_aside=put_aside,
    )


class _Announced:
    """What loads will still write, all copies, by broker: summed up once, however many topics are decided."""

    def __init__(self, intents: Sequence[Intent]) -> None:
        self._all = Counter[int]()
        self._by_topic: dict[str, Counter[int]] = {}
        for intent in intents:
            self._all.update(intent.bytes_by_broker)
            self._by_topic.setdefault(intent.topic, Counter()).update(intent.bytes_by_broker)

    def to_others(self, topic: str) -> Mapping[int, int]:
        """To other topics than this: what comes to it itself, its producers' reports say."""
        own = self._by_topic.get(topic)
        return self._all if own is None else self._all - own
