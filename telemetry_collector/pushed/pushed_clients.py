"""What all producers that push lately feel, broker by broker: many claims, made into figures that few can
bend.

Anybody who may talk to a broker may push anything, as often and under as many names as they like. So:

- A broker's latency is the median over clients, one voice each, of at least `VOICES_MIN`; a client that tells
  about one broker alone has none, as it compares nothing.
- It is cut at eight times the brokers' median (at least 80 ms). The score function `latency` allows twice the
  median (at least 20 ms), so whatever is claimed, its score doesn't fall below a quarter for that.
- Bytes sent to a broker are summed up, as most clients send to most brokers, and cut at twice the brokers'
  median (at least 4 MiB/s): nor does that of `ingest_rate`.
- None of it says whether a broker can be reached: clients of one that hangs say nothing about it.
- When there is no room, the oldest of whoever (by address) has most goes: a flood pushes out its own.

A client counts for 2.5 of its push intervals, or until it says that it ends.

Invariants, checked in tests/property/telemetry_collector/pushed/test_pushed_clients.py:
1. With fewer liars than honest voices about a broker, its latency lies within the honest ones'.
2. No latency is above the cut, no rate above its.
3. There are never more clients or figures than there is room for, and one address's don't push out another's
that has
   fewer.
4. What has expired counts for nothing.

Any thread may call anything. Read next: sources/pushed_metrics.py, service/http/pushed_routes.py.
"""

from __future__ import annotations

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
_RATE_CUT_MIN_BYTES_PER_S, _RATE_CUT_FACTOR = float(4 << 20), 2.0
_INTERVALS = 2.5
_INTERVAL_UNKNOWN_S = 30.0
_INTERVAL_MIN_S, _INTERVAL_MAX_S = 2.0, 600.0
# All is summed up anew at most so often, as it takes a while where there is much.
_KEPT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushingClient:
    """Who pushed, as its broker knows.

    Attributes:
        instance_id: made up by brokers, a client shows it again.
        client_id: as it is configured.
        address: from where.
        interval_s: how often it is to push; None: its broker doesn't say.
    """

    instance_id: str
    client_id: str
    address: str
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeltByProducers:
    """What producers of one kind feel; times in seconds.

    Attributes:
        num_clients: how many have pushed lately.
        latency_s_by_broker: the median over them, cut; brokers about which too few speak are absent.
        num_voices_by_broker: how many speak about each.
        queue_time_s: the median over them; None where none says.
        throttle_time_s: the highest; None where none says.
        sent_bytes_per_s_by_broker: all of them together, cut.
        num_writing_by_topic: how many write each topic, as far as they say.
    """

    num_clients: int = 0
    latency_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    num_voices_by_broker: Mapping[int, int] = field(default_factory=dict)
    queue_time_s: float | None = None
    throttle_time_s: float | None = None
    sent_bytes_per_s_by_broker: Mapping[int, float] = field(default_factory=dict)
    num_writing_by_topic: Mapping[str, int] = field(default_factory=dict)


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
        num_pushes, num_unreadable: since it was made.
        num_pushed_out: clients for which there was no room any more, likewise.
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
        self._num_by_address: Counter[str] = Counter()
        self._felt: tuple[float, Mapping[Kind, FeltByProducers]] | None = None
        self.num_pushes = 0
        self.num_unreadable = 0
        self.num_pushed_out = 0

    def hear(self, who: PushingClient, figures: ClientFigures) -> None:
        """Take a client's push in place of its last one."""
        now_s = self._clock()
        with self._lock:
            earlier = self._forget(who.instance_id)
            interval_s = who.interval_s
            if interval_s is None and earlier is not None:
                interval_s = now_s - earlier.at_s
            if interval_s is None:
                interval_s = _INTERVAL_UNKNOWN_S
            lifetime_s = _INTERVALS * min(max(interval_s, _INTERVAL_MIN_S), _INTERVAL_MAX_S)
            self._heard[who.instance_id] = _Heard(who, figures, now_s, now_s + lifetime_s)
            self._num_figures += figures.num_figures
            self._num_by_address[who.address] += 1
            self.num_pushes += 1
            if self._has_too_many:
                self._expire(now_s)
            while self._has_too_many:
                self._push_out()

    def end(self, instance_id: str) -> None:
        """A client says that it ends."""
        with self._lock:
            self._forget(instance_id)

    def count_unreadable(self) -> None:
        """A push couldn't be read, or said more than is taken."""
        with self._lock:
            self.num_unreadable += 1

    def felt(self) -> Mapping[Kind, FeltByProducers]:
        """What producers feel, by kind; up to a second old."""
        now_s = self._clock()
        with self._lock:
            if self._felt is not None and now_s - self._felt[0] < _KEPT_S:
                return self._felt[1]
            self._expire(now_s)
            heard = [each.figures for each in self._heard.values()]
        # Without the lock, so that nobody who pushes waits for it.
        felt = {kind: _felt([each for each in heard if each.kind == kind]) for kind in KINDS}
        with self._lock:
            self._felt = (now_s, felt)
        return felt

    @property
    def _has_too_many(self) -> bool:
        return len(self._heard) > self._max_clients or self._num_figures > self._max_figures

    def _push_out(self) -> None:
        address, _ = self._num_by_address.most_common(1)[0]
        self._forget(next(id_ for id_, each in self._heard.items() if each.who.address == address))
        self.num_pushed_out += 1

    def _expire(self, now_s: float) -> None:
        for instance_id in [id_ for id_, each in self._heard.items() if each.until_s <= now_s]:
            self._forget(instance_id)

    def _forget(self, instance_id: str) -> _Heard | None:
        heard = self._heard.pop(instance_id, None)
        if heard is not None:
            self._num_figures -= heard.figures.num_figures
            self._num_by_address[heard.who.address] -= 1
            if not self._num_by_address[heard.who.address]:
                del self._num_by_address[heard.who.address]
        return heard


def _felt(heard: Iterable[ClientFigures]) -> FeltByProducers:
    """What clients of one kind feel."""
    heard = list(heard)
    voices: dict[int, list[float]] = {}
    sent: dict[int, float] = {}
    writing: Counter[str] = Counter()
    for figures in heard:
        if len(figures.latency_s_by_broker) > 1:
            for broker_id, latency_s in figures.latency_s_by_broker.items():
                voices.setdefault(broker_id, []).append(latency_s)
        for broker_id, rate in figures.sent_bytes_per_s_by_broker.items():
            sent[broker_id] = sent.get(broker_id, 0.0) + rate
        writing.update(topic for topic, rate in figures.sent_bytes_per_s_by_topic.items() if rate > 0)
    medians_s = {broker_id: median(told) for broker_id, told in voices.items() if len(told) >= VOICES_MIN}
    queue_times_s = [each.queue_time_s for each in heard if each.queue_time_s is not None]
    return FeltByProducers(
        num_clients=len(heard),
        latency_s_by_broker=_cut(medians_s, least=_CUT_MIN_S, factor=_CUT_FACTOR),
        num_voices_by_broker={broker_id: len(told) for broker_id, told in voices.items()},
        queue_time_s=median(queue_times_s) if queue_times_s else None,
        throttle_time_s=max((t for each in heard if (t := each.throttle_time_s) is not None), default=None),
        sent_bytes_per_s_by_broker=_cut(sent, least=_RATE_CUT_MIN_BYTES_PER_S, factor=_RATE_CUT_FACTOR),
        num_writing_by_topic=writing,
    )


def _cut(by_broker: Mapping[int, float], *, least: float, factor: float) -> Mapping[int, float]:
    if not by_broker:
        return {}
    most = max(least, factor * median(by_broker.values()))
    return {broker_id: min(value, most) for broker_id, value in by_broker.items()}
