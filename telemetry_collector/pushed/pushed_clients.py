"""The latest push of each producer, as long as it counts, and what all of them feel.

Anybody who may talk to a broker may push anything, as often and under as many names as they like. So there is
room for so many clients and figures. When it is used up, clients of the address that takes most of it are
forgotten, the oldest first: a flood pushes out its own.

A client counts for 2.5 of its push intervals, or until it says that it ends.

Invariants, checked in tests/property/telemetry_collector/pushed/test_pushed_clients.py:
1. There are never more clients or figures than there is room for, and nobody is pushed out by an address that
   takes less of it.
2. What has expired counts for nothing.

Any thread may call anything. Read next: sources/pushed_metrics.py, service/http/pushed_routes.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from evenload.telemetry_collector.pushed.client_figures import KINDS, ClientFigures, Kind
from evenload.telemetry_collector.pushed.felt import FeltByProducers, felt_by

__all__ = ["PushedClients", "PushingClient"]

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
        self._felt = {kind: felt_by([each for each in heard if each.kind == kind]) for kind in KINDS}
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
        taken: dict[str, float] = {}
        by_taken = []
        for instance_id, heard in reversed(self._heard.items()):
            part = 1 / self._max_clients + heard.figures.num_figures / self._max_figures
            taken[heard.who.address] = taken.get(heard.who.address, 0.0) + part
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
