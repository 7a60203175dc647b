"""What a collector service knows: what its collector measured, and what it was told by others.

The idea: one collector measures, however many ask. A topic is measured from when it is first asked for until
nobody has asked for some minutes; who wants a figure that is measured after their call shares that
measurement with all who want it at the same time, and there is one in a second at most (a few at once, if
none was wanted before). So a thousand producers, or one who asks without pause, cost the brokers what one
costs.

Belongs to one asyncio loop, but for what instruments.py and the thread that decides routes read. Read next:
http/server.py, which puts HTTP before it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.errors import CollectorError
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.answers import Answers
from evenload.telemetry_collector.service.compressed import Part
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.told.announced import AnnouncedBytes, believable
from evenload.telemetry_collector.service.told.told import Told
from evenload.telemetry_collector.service.told.wanted_topics import WantedTopics
from evenload.telemetry_collector.service.wire import encode_told
from evenload.telemetry_collector.snapshot import ClusterSnapshot
from evenload.telemetry_collector.weights import Weights
from evenload.telemetry_collector.weights_file import WeightsFile

__all__ = ["CollectorService"]

_log = logging.getLogger(__name__)

# A producer that begins with a topic wants two measurements, of which the second shouldn't wait for a second.
_AT_ONCE_MAX = 3
_BREATH_S = 0.1  # from the end of one to the next, for others' questions to the brokers
# As objects in memory: 200 loads on 1,500 brokers; 5,000 routes of 80 partitions.
_INTENTS_MAX_BYTES = 64 << 20
_REPORTS_MAX_BYTES = 128 << 20


class Beside(Protocol):
    """The other services of the same cluster."""

    async def weigh(self, weights: Weights) -> None:
        """Put weights in force in all services, this one too; raises `OSError` if they can't be kept."""

    def announce(self, intent: Intent) -> None:
        """Tell the others what a load will still write."""

    def withdraw(self, load: str) -> None:
        """Tell the others that a load has nothing more to write."""


class CollectorService:
    """The state of one service.

    Args:
        collector: runs already; whoever made it closes it.
        config: how much is kept, and for how long.
        weights_file: where weights are kept; None: until the service ends.
        pushed: what Kafka's own clients push; None: of nobody so far.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        collector: Collector,
        config: ServiceConfig | None = None,
        *,
        weights_file: WeightsFile | None = None,
        pushed: PushedClients | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.collector = collector
        self.config = config or ServiceConfig()
        self.pushed = pushed or PushedClients()
        self.answers = Answers(self.config.encoded_max)
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self.num_fallbacks = 0  # that producers have reported
        self.decided: Sequence[RouteReport] = ()  # routes that are decided here, by whoever sets this
        self._clock = clock
        self._weights_file = weights_file
        self._weights = weights_file.latest() if weights_file is not None else None
        self.beside: Beside | None = None
        self._weights_turn = asyncio.Lock()  # what was read before a write isn't put in force after it
        self._intents: Told[str, Intent] = Told(self.config.intents_max, _INTENTS_MAX_BYTES)
        self._reports: Told[tuple[str, str], RouteReport] = Told(self.config.reports_max, _REPORTS_MAX_BYTES)
        self._clients: Told[str, None] = Told(self.config.clients_max, self.config.clients_max)
        self._topics = WantedTopics(
            self.config.topics_max,
            lifetime_s=self.config.topic_lifetime_s,
            unknown_lifetime_s=self.config.unknown_topic_lifetime_s,
        )
        self._said: tuple[int, Weights | None] | None = None  # what the next two are of
        self._announced = AnnouncedBytes()
        self._encoded_told: Part | None = None
        self._told_number = 0
        self._numbered: ClusterSnapshot | None = None
        self._snapshot_number = 0
        self._measuring: asyncio.Task[None] | None = None
        self._num_begun = 0
        self._num_ended = 0
        self._last_ended_at_s = -math.inf
        self._lately_begun_at_s: deque[float] = deque(maxlen=_AT_ONCE_MAX)

    async def keep_house(self) -> None:
        """Forget what has ended and look at the file of weights, until cancelled.

        Raises:
            CollectorClosedError: nothing will ever be measured again.
            ClusterChangedError: another cluster than before answers.
        """
        while True:
            await asyncio.sleep(self.config.weights_poll_s)
            self.collector.check_runs()
            now_s = self._clock()
            self._reports.expire(now_s)
            self._clients.expire(now_s)
            unwanted = self._topics.expire(self._existing, now_s)
            if unwanted:
                self.collector.unwatch(unwanted)
            if self._weights_file is not None:
                async with self._weights_turn:
                    self._weights = await asyncio.to_thread(self._weights_file.latest)

    def now_s(self) -> float:
        """Monotonic seconds."""
        return self._clock()

    # What is measured.

    @property
    def latest(self) -> CachedSnapshot | None:
        """The latest snapshot."""
        return self.collector.cache.latest()

    @property
    def _existing(self) -> Collection[str]:
        latest = self.latest
        return latest.snapshot.topics.keys() if latest is not None else ()

    def ask_for(self, topics: Collection[str], *, by: str, may_ingest: bool) -> tuple[bool, bool]:
        """Note that somebody wants to know about topics.

        Returns:
            Whether some of them were not measured so far, and whether there was room for all of them.
        """
        asked = self._topics.ask(
            topics, by=by, may_ingest=may_ingest, existing=self._existing, now_s=self._clock()
        )
        self.collector.unwatch(asked.removed)
        # Not measured at once: made-up names, one after the other, would have brokers asked without pause.
        self.collector.watch(asked.added, is_urgent=False)
        return bool(asked.added), asked.has_room

    async def measure(self) -> None:
        """Wait until something was measured after this call, or for `measure_wait_s`."""
        wanted = self._num_begun + 1  # one that is under way may have asked a broker before this call
        try:
            async with asyncio.timeout(self.config.measure_wait_s):
                while self._num_ended < wanted:
                    if self._measuring is None:
                        self._measuring = asyncio.create_task(self._measure_next())
                    await asyncio.shield(self._measuring)  # others wait for it too
        except TimeoutError:
            _log.info("nothing was measured within %g s", self.config.measure_wait_s)

    async def _measure_next(self) -> None:
        """Measure once the pause is over; for all who want it until it begins."""
        try:
            await asyncio.sleep(self._may_begin_at_s() - self._clock())
            self._num_begun += 1
            self._lately_begun_at_s.append(self._clock())
            await asyncio.to_thread(self._measure)
        finally:
            self._num_ended, self._last_ended_at_s = self._num_begun, self._clock()
            self._measuring = None

    def _may_begin_at_s(self) -> float:
        soonest_s = self._last_ended_at_s + _BREATH_S
        if len(self._lately_begun_at_s) < _AT_ONCE_MAX:
            return soonest_s
        return max(soonest_s, self._lately_begun_at_s[0] + _AT_ONCE_MAX * self.config.measure_pause_s)

    def _measure(self) -> None:
        try:
            self.collector.snapshot(max_age_s=0.0, timeout_s=self.config.measure_wait_s)
        except CollectorError as error:
            _log.info("%s", error)

    # What others say.

    @property
    def weights(self) -> Weights | None:
        """The weights in force; None while nobody has set any."""
        return self._weights

    async def set_weights(self, weights: Weights) -> None:
        """Put weights in force, and keep them where there is a file or there are other services.

        Raises:
            OSError: they can't be kept; those in force stay.
        """
        async with self._weights_turn:
            if self.beside is not None:
                await self.beside.weigh(weights)
                return
            if self._weights_file is not None:
                await asyncio.to_thread(self._weights_file.write, weights)
            self._weights = weights

    def announce(self, intent: Intent, size_bytes: int) -> bool:
        """A load says what it will still write. Returns whether there was room."""
        has_room = self._intents.put(
            intent.load,
            intent,
            size_bytes=size_bytes,
            now_s=self._clock(),
            lifetime_s=intent.lifetime_s,
        )
        if has_room and self.beside is not None:
            self.beside.announce(intent)
        return has_room

    def withdraw(self, load: str) -> None:
        """A load has nothing more to write."""
        self._intents.remove(load)
        if self.beside is not None:
            self.beside.withdraw(load)

    # What other services of the cluster were told.

    def hear_weights(self, weights: Weights) -> None:
        """These were set here or elsewhere, and are in force."""
        self._weights = weights

    def hear_intent(self, intent: Intent, lifetime_s: float) -> None:
        """A load has told another service what it will still write."""
        latest = self.latest
        try:
            known = believable(intent, latest.snapshot.brokers if latest is not None else {})
        except ValueError as error:
            _log.info("what another service was told by a load isn't counted: %s", error)
            return
        size_bytes = len(intent.model_dump_json())
        self._intents.put(
            known.load, known, size_bytes=size_bytes, now_s=self._clock(), lifetime_s=lifetime_s
        )

    def hear_withdrawn(self, load: str) -> None:
        """A load has nothing more to write, as it told here or elsewhere."""
        self._intents.remove(load)

    def report(self, reports: Iterable[RouteReport], size_bytes: int) -> bool:
        """A producer says how it routes. Returns whether there was room for everything."""
        has_room = True
        for report in reports:
            key = (report.producer, report.topic)
            earlier = self._reports.get(key)
            is_kept = self._reports.put(
                key,
                report,
                size_bytes=size_bytes,
                now_s=self._clock(),
                lifetime_s=self.config.report_lifetime_s,
            )
            if is_kept:
                more = report.num_fallbacks - (earlier.num_fallbacks if earlier is not None else 0)
                # Fewer than before: another producer by the same name, which counts from the beginning.
                self.num_fallbacks += more if more >= 0 else report.num_fallbacks
            has_room &= is_kept
        return has_room

    def hear_of(self, client: str) -> None:
        """Somebody has asked for something."""
        self._clients.put(
            client, None, size_bytes=0, now_s=self._clock(), lifetime_s=self.config.client_lifetime_s
        )

    @property
    def intents(self) -> list[Intent]:
        """What loads will still write."""
        return self._intents.values(self._clock())

    @property
    def reports(self) -> list[RouteReport]:
        """How producers route, as far as they say."""
        return self._reports.values(self._clock())

    @property
    def num_clients(self) -> int:
        """How many have asked for something lately."""
        return len(self._clients.values(self._clock()))

    # What it all looks like encoded.

    def told(self, without: Collection[str] = ()) -> tuple[Part, int]:
        """What operators and loads have said; and a number, another one for each that is different.

        Args:
            without: loads that don't count, as whoever asks knows of them.
        """
        self._intents.expire(self._clock())
        said = (self._intents.revision, self._weights)
        if self._said != said:
            self._said, self._encoded_told = said, None
            self._told_number += 1
            self._announced.count(self.intents)
        if any(load in self._intents for load in without):
            return self._encode_told(without), self._told_number
        if self._encoded_told is None:
            self._encoded_told = self._encode_told(())
        return self._encoded_told, self._told_number

    def _encode_told(self, without: Collection[str]) -> Part:
        return Part.of([encode_told(self._weights, self._announced.without(without))])

    def number_of(self, snapshot: ClusterSnapshot) -> int:
        """Another number for each latest snapshot; several may be of the same time."""
        if snapshot is not self._numbered:
            self._numbered = snapshot
            self._snapshot_number += 1
        return self._snapshot_number
