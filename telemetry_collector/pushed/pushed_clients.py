"""What all producers that push lately feel: many claims, made into figures that few can bend.

Anybody who may talk to a broker may push anything, as often and under as many names as they like; a median
alone doesn't keep out who makes up more clients than there are. So:

- A broker's latency is the median over clients, one voice each, of at least `VOICES_MIN`; a client that tells
  about one broker alone has none, as it compares nothing. People are shown that.
- What is decided by is cut at eight times the brokers' median (at least 80 ms). The score function `latency`
  allows twice the median (at least 20 ms), so whatever is claimed, its score doesn't fall below a quarter for
  that.
- Bytes that at least as many clients send to a broker are summed up; sources/observation.py cuts them.
- None of it says whether a broker can be reached: clients of one that hangs say nothing about it.
- When there is no room, the oldest of whoever (by address) takes most of it go: a flood pushes out its own.

A client counts for 2.5 of its push intervals, or until it says that it ends.

Invariants, checked in tests/property/telemetry_collector/pushed/test_pushed_clients.py:
1. With fewer liars than honest voices about a broker, its latency lies within the honest ones'.
2. What is decided by is never above the cut.
3. There are never more clients or figures than there is room for, and nobody is pushed out by an address that
   takes less of it.
4. What has expired counts for nothing.

Any thread may call anything. Read next: sources/pushed_metrics.py, service/http/pushed_routes.py.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from threading import Lock

from evenload.telemetry_collector.pushed.client_figures import KINDS, ClientFigures, Kind

__all__ = ["VOICES_MIN", "FeltByProducers", "PushedClients", "PushingClient"]

VOICES_MIN = 3
_CUT_MIN_S, _CUT_FACTOR = 0.080, 8.0
_INTERVALS = 2.5
_INTERVAL_UNKNOWN_S = 30.0
_INTERVAL_MIN_S, _INTERVAL_MAX_S = 1.0, 600.0
_GAP_MIN_S = 10.0
# All is summed up anew, and what has expired is looked for, at most so often: it takes a while where there is
# much.
_KEPT_S = 1.0
# So much of the room is used once some had to go, or each push would take looking through all of it.
_USED_AFTER_ROOM_WAS_MADE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PushingClient:
    """Who pushed, as its broker knows.

    Attributes:
        instance_id: made up by brokers, a client shows it again.
        address: from where.
        interval_s: how often it is to push; None: its broker doesn't say.
    """

    instance_id: str
    address: str
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeltByProducers:
    """What producers of one kind feel; times in seconds.

    Attributes:
        num_clients: how many have pushed lately.
        latency_s_by_broker: the median over them; brokers about which too few speak are absent.
        queue_time_s: the median over them; None where none says.
        num_throttled: how many say that brokers hold them back by quota.
        sent_bytes_per_s_by_broker: all of them together; brokers to which too few send are absent.
        num_writing_by_topic: how many write each topic, as far as they say.
    """

    num_clients: int = 0
    latency_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    queue_time_s: float | None = None
    num_throttled: int = 0
    sent_bytes_per_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    num_writing_by_topic: Mapping[str, int] = field(default_factory=dict)

    def cut_latency_s(self, broker_id: int) -> float | None:
        """What may be decided by; None where too few speak about the broker."""
        latency_s = self.latency_s_by_broker.get(broker_id)
        if latency_s is None:
            return None
        return min(latency_s, max(_CUT_MIN_S, _CUT_FACTOR * median(self.latency_s_by_broker.values())))


@dataclass(frozen=True, slots=True)
class _Heard:
    who: PushingClient
    figures: ClientFigures
    at_s: float
    until_s: float


class PushedClients:
    """The latest push of each client.

    Args:
        max_clients: how many are kept.
        max_figures: how many numbers of theirs, together.
        clock: monotonic seconds.

    Attributes:
        num_pushes, num_unreadable: of all that came, and of these those that told nothing as they couldn't be
        read. num_pushed_out: clients for which there was no room any more.
    """

    def __init__(
        self,
        *,
        max_clients: int = 10_000,
        max_figures: int = 300_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_clients = max_clients
        self._max_figures = max_figures
        self._clock = clock
        self._lock = Lock()
        self._heard: dict[str, _Heard] = {}  # who was heard longest ago comes first
        self._num_figures = 0
        self._looked_at_s = -math.inf  # when what has expired was looked for last
        self._summing = Lock()
        self._felt: Mapping[Kind, FeltByProducers] = {kind: FeltByProducers() for kind in KINDS}
        self._felt_at_s = -math.inf
        self.num_pushes = 0
        self.num_unreadable = 0
        self.num_pushed_out = 0

    def count(self, *, is_readable: bool) -> None:
        """A push came."""
        with self._lock:
            self.num_pushes += 1
            self.num_unreadable += not is_readable

    def hear(self, who: PushingClient, figures: ClientFigures) -> None:
        """Take what a client has pushed in place of what it pushed before."""
        now_s = self._clock()
        with self._lock:
            earlier = self._forget(who.instance_id)
            until_s = now_s + _INTERVALS * _interval_s(who, earlier, now_s)
            self._heard[who.instance_id] = _Heard(who, figures, now_s, until_s)
            self._num_figures += figures.num_figures
            if self._has_too_many:
                self._make_room(now_s)

    def end(self, instance_id: str) -> None:
        """A client says that it ends."""
        with self._lock:
            self._forget(instance_id)

    def felt(self) -> Mapping[Kind, FeltByProducers]:
        """What producers feel, by kind; about a second old. May take a while: not for an event loop."""
        if self._clock() - self._felt_at_s >= _KEPT_S and self._summing.acquire(blocking=False):
            # Others get what is there meanwhile.
            try:
                self._sum_up()
            finally:
                self._summing.release()
        return self._felt

    def _sum_up(self) -> None:
        with self._lock:
            self._expire(self._clock())
            heard = [each.figures for each in self._heard.values()]
        # Without the lock, so that nobody who pushes waits for it.
        self._felt = {kind: _felt([each for each in heard if each.kind == kind]) for kind in KINDS}
        self._felt_at_s = self._clock()

    @property
    def _has_too_many(self) -> bool:
        return len(self._heard) > self._max_clients or self._num_figures > self._max_figures

    def _make_room(self, now_s: float) -> None:
        if now_s - self._looked_at_s >= _KEPT_S:
            self._expire(now_s)
        if not self._has_too_many:
            return
        # Beside each client, what its address takes with it and those heard after it: the most is where
        # whoever has most began.
        taken: Counter[str] = Counter()
        by_taken = []
        for instance_id, heard in reversed(self._heard.items()):
            taken[heard.who.address] += heard.figures.num_figures
            by_taken.append((taken[heard.who.address], instance_id))
        by_taken.sort(key=lambda each: -each[0])
        max_clients = int(_USED_AFTER_ROOM_WAS_MADE * self._max_clients)
        max_figures = int(_USED_AFTER_ROOM_WAS_MADE * self._max_figures)
        for _, instance_id in by_taken:
            if len(self._heard) <= max_clients and self._num_figures <= max_figures:
                return
            self._forget(instance_id)
            self.num_pushed_out += 1

    def _expire(self, now_s: float) -> None:
        self._looked_at_s = now_s
        for instance_id in [id_ for id_, each in self._heard.items() if each.until_s <= now_s]:
            self._forget(instance_id)

    def _forget(self, instance_id: str) -> _Heard | None:
        heard = self._heard.pop(instance_id, None)
        if heard is not None:
            self._num_figures -= heard.figures.num_figures
        return heard


def _interval_s(who: PushingClient, earlier: _Heard | None, now_s: float) -> float:
    """How often a client pushes: as its broker says, else as it did until now."""
    interval_s = who.interval_s
    if interval_s is None and earlier is not None and now_s < earlier.until_s:
        interval_s = max(now_s - earlier.at_s, _GAP_MIN_S)  # two may come one right after the other
    if interval_s is None:
        interval_s = _INTERVAL_UNKNOWN_S
    return min(max(interval_s, _INTERVAL_MIN_S), _INTERVAL_MAX_S)


def _felt(heard: Iterable[ClientFigures]) -> FeltByProducers:
    """What clients of one kind feel."""
    heard = list(heard)
    voices: dict[int, list[float]] = {}
    sent: dict[int, list[float]] = {}
    writing: Counter[str] = Counter()
    for figures in heard:
        if len(figures.latency_s_by_broker) > 1:
            for broker_id, latency_s in figures.latency_s_by_broker.items():
                voices.setdefault(broker_id, []).append(latency_s)
        for broker_id, rate in figures.sent_bytes_per_s_by_broker.items():
            sent.setdefault(broker_id, []).append(rate)
        writing.update(topic for topic, rate in figures.sent_bytes_per_s_by_topic.items() if rate > 0)
    queue_times_s = [each.queue_time_s for each in heard if each.queue_time_s is not None]
    return FeltByProducers(
        num_clients=len(heard),
        latency_s_by_broker={b: median(told) for b, told in voices.items() if len(told) >= VOICES_MIN},
        queue_time_s=median(queue_times_s) if queue_times_s else None,
        num_throttled=sum(bool(each.throttle_time_s) for each in heard),
        sent_bytes_per_s_by_broker={b: sum(told) for b, told in sent.items() if len(told) >= VOICES_MIN},
        num_writing_by_topic=writing,
    )
