"""Ask a collector service again and again, and decide what to do while it doesn't answer.

    usable answer    -> published; asked again after `interval_s`
    nothing usable   -> asked again after a backoff; once nothing new enough is known, or the first three
                        questions were in vain, go on without it
    usable again     -> back to it

Usable is an answer about the cluster that our own brokers belong to, measured not too long ago. Until our
brokers have said which cluster that is, nothing of a service is used, and nothing is told to it. Where a
service says another one, they are asked again: a cluster may have been replaced by another one.

What is to be told (intents, reports) is kept only while a service is usable, the latest of each; a failure
to tell is counted, not repeated: intents and reports are told anew all the time, and expire.

Everything here belongs to one asyncio loop. Read next: client.py, which gives it a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Protocol

from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import ServiceUnusableError, SourceError
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.schedule import Ticks, backoff_s
from evenload.telemetry_collector.service.service_requests import ServiceRequests
from evenload.telemetry_collector.service.wire import SnapshotAnswer
from evenload.telemetry_collector.snapshot import BrokerSnapshot, ClusterSnapshot
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.statistics import StatisticsCounter
from evenload.telemetry_collector.weights import Weights

__all__ = ["CLUSTER_ID", "SERVICE_NAME", "Observer", "Polling"]

SERVICE_NAME = "collector_service"
CLUSTER_ID = "cluster_id"

_log = logging.getLogger(__name__)

_LAST_WORDS_S = 0.5
_REPORTS_MAX = 1000
_FIRST_MISSES = 3


class Observer(Protocol):
    """Whoever wants to know what comes of it. Called in the loop; must not wait."""

    def use(self, assembled: Assembled, weights: Weights | None) -> None:
        """There is an answer to be used."""

    async def go_without(self, reason: str) -> None:
        """The service gives nothing usable, and what is known is getting old."""

    async def come_back(self) -> None:
        """It does again."""

    def follow(self, known_id: str, found_id: str) -> None:
        """Our own brokers belong to another cluster than before."""


class Polling:
    """Asks one service until stopped.

    Args:
        requests: how it is asked.
        config: how often, how long to wait, how old an answer may be.
        topics: says which topics matter, None for all; asked as in measuring.py.
        bootstrap_servers: of our own brokers, for sentences.
        ask_cluster_id: asks our own brokers; raises `SourceError`.
        observer: told of what comes of it.
        counter: counts answers and failures.
        rng: decides about jitter and backoff.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        requests: ServiceRequests,
        config: CollectorConfig,
        *,
        topics: Callable[[], frozenset[str] | None],
        bootstrap_servers: str,
        ask_cluster_id: Callable[[], Awaitable[str]],
        observer: Observer,
        counter: StatisticsCounter,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._requests = requests
        self._config = config
        self._topics = topics
        self._bootstrap_servers = bootstrap_servers
        self._ask_cluster_id = ask_cluster_id
        self._observer = observer
        self._counter = counter
        self._rng = rng
        self._ticks = Ticks(config.interval_s, jitter=config.jitter, rng=rng)
        self._cluster_id: str | None = None
        self._is_cluster_in_doubt = False
        self._max_age_s: float | None = None
        self._tag_by_question: dict[object, str | None] = {}  # of the last answer that proved usable
        self._measured_at_s: float | None = None
        self._num_failures = 0
        self._is_usable = False
        self._is_without = False
        self._own_loads: set[str] = set()
        self._intents: dict[str, Intent | None] = {}  # None: withdrawn
        self._reports: dict[tuple[str, str], RouteReport] = {}
        self._wake = asyncio.Event()
        self._has_news = asyncio.Event()
        self._is_stopped = asyncio.Event()

    async def run(self) -> None:
        """Ask until `stop` is called; then nothing is left running, and last words have been said."""
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._ask_on())
            telling = tasks.create_task(self._tell_on())
            await self._is_stopped.wait()
            asking.cancel()
            telling.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._tell()

    def stop(self) -> None:
        """End `run`."""
        self._is_stopped.set()

    def refresh(self) -> None:
        """Ask now, for what is measured from now on."""
        self._max_age_s = 0.0
        self._wake.set()

    def ask_now(self) -> None:
        """Ask now: other topics matter."""
        self._wake.set()

    def announce(self, intent: Intent) -> None:
        """Tell what a load of ours will still write."""
        self._own_loads.add(intent.load)
        self._put_intent(intent.load, intent)

    def withdraw(self, load: str) -> None:
        """Tell that a load of ours has nothing more to write; unheard, what it has announced expires."""
        if self._is_usable:
            self._put_intent(load, None)
        else:
            self._own_loads.discard(load)

    def report(self, reports: Iterable[RouteReport]) -> None:
        """Tell how records are routed."""
        if self._is_usable:
            self._reports |= {(report.producer, report.topic): report for report in reports}
            while len(self._reports) > _REPORTS_MAX:
                del self._reports[next(iter(self._reports))]
            self._has_news.set()

    # Asking.

    async def _ask_on(self) -> None:
        while True:
            self._wake.clear()
            await self._ask()
            now_s = self._clock()
            wait_s = self._ticks.next_after(now_s) - now_s
            if self._num_failures:
                wait_s = backoff_s(
                    self._num_failures,
                    initial_s=self._config.backoff_initial_s,
                    max_s=self._config.backoff_max_s,
                    rng=self._rng,
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _ask(self) -> None:
        asked = CLUSTER_ID
        try:
            if self._cluster_id is None or self._is_cluster_in_doubt:
                self._learn_cluster(await self._ask_cluster_id())
            assert self._cluster_id is not None
            asked = SERVICE_NAME
            await self._ask_service(self._cluster_id)
        except (ServiceUnusableError, SourceError) as error:
            reason = error.reason if isinstance(error, ServiceUnusableError) else str(error)
            await self._miss(asked, reason, is_fault=False)
        except Exception as error:  # noqa: BLE001 - whatever a service makes of us, we go on
            _log.exception("asking the collector service failed unexpectedly")
            await self._miss(asked, repr(error), is_fault=True)
        else:
            await self._hit()

    def _learn_cluster(self, found_id: str) -> None:
        self._counter.count_answer(CLUSTER_ID, CLUSTER_ID)
        known_id, self._cluster_id, self._is_cluster_in_doubt = self._cluster_id, found_id, False
        if known_id is not None and known_id != found_id:
            self._measured_at_s = None
            self._tag_by_question = {}
            self._observer.follow(known_id, found_id)

    async def _ask_service(self, cluster_id: str) -> None:
        max_age_s, self._max_age_s = self._max_age_s, None
        sent_at_s, sent_wall_s = self._clock(), time.time()
        question = topics, own_loads = self._topics(), frozenset(self._own_loads)
        tag = self._tag_by_question.get(question)
        tagged = await self._requests.snapshot(topics, without_loads=own_loads, max_age_s=max_age_s, tag=tag)
        if tagged is None:
            if self._measured_at_s is not None:
                self._check_age(self._measured_at_s)
            return
        self._tag_by_question = {}
        answer = tagged.answer
        found_id = answer.snapshot.cluster_id
        if found_id != cluster_id:
            self._is_cluster_in_doubt = True
            raise ServiceUnusableError(
                f"it measures cluster {found_id!r}, but the brokers at {self._bootstrap_servers} "
                f"belong to cluster {cluster_id!r}; correct collector_url"
            )
        if not answer.snapshot.brokers:
            raise ServiceUnusableError("its snapshot names no broker")
        # It was measured so long before the request arrived there, and that was after it was sent.
        measured_at_s = min(sent_at_s - answer.age_s, self._clock())
        self._check_age(measured_at_s)
        if not own_loads.issuperset(self._own_loads):
            # What a load of ours has announced meanwhile may be in this answer, as if others had.
            self._max_age_s = max_age_s
            self._wake.set()
            return
        self._measured_at_s = measured_at_s
        snapshot = self._as_ours(answer, taken_at_s=sent_wall_s + (measured_at_s - sent_at_s))
        self._observer.use(Assembled(snapshot, measured_at_s, measured_at_s), answer.weights)
        self._counter.count_snapshot()
        self._tag_by_question = {question: tagged.tag}

    def _as_ours(self, answer: SnapshotAnswer, *, taken_at_s: float) -> ClusterSnapshot:
        """The snapshot in terms of our own clock, with the bytes that others have announced."""
        said = answer.snapshot
        shift_s = taken_at_s - said.taken_at_s
        return replace(
            said,
            taken_at_s=taken_at_s,
            brokers={
                broker_id: _as_ours(broker, answer.announced.get(broker_id, 0), shift_s)
                for broker_id, broker in said.brokers.items()
            },
        )

    def _check_age(self, measured_at_s: float) -> None:
        age_s = self._clock() - measured_at_s
        if age_s > self._usable_age_s:
            raise ServiceUnusableError(f"its latest measurement is {age_s:.0f} s old")

    @property
    def _usable_age_s(self) -> float:
        """So old that it is time to look for something newer, before it is stale for whoever decides."""
        config = self._config
        return max(config.age_max_s / 2, min(config.interval_s + config.deadline_s, config.age_max_s))

    async def _hit(self) -> None:
        self._counter.count_answer(SERVICE_NAME, SERVICE_NAME)
        self._num_failures = 0
        self._is_usable = True
        if self._is_without:
            self._is_without = False
            await self._observer.come_back()

    async def _miss(self, asked: str, reason: str, *, is_fault: bool) -> None:
        self._counter.count_failure(asked, asked, reason, is_fault=is_fault)
        self._num_failures += 1
        self._is_usable = False
        for load in [load for load, intent in self._intents.items() if intent is None]:
            self._own_loads.discard(load)
        self._intents.clear()
        self._reports.clear()
        known = self._measured_at_s
        if known is None:
            # A service that a thousand producers ask as they all start may miss one's first question.
            is_old = self._num_failures >= _FIRST_MISSES
        else:
            is_old = self._clock() - known > self._usable_age_s
        if is_old and not self._is_without:
            self._is_without = True
            await self._observer.go_without(reason)

    # Telling.

    def _put_intent(self, load: str, intent: Intent | None) -> None:
        if self._is_usable:
            self._intents[load] = intent
            self._has_news.set()

    async def _tell_on(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            await self._tell()

    async def _tell(self) -> None:
        """Tell what there is to tell; what is cut short stays to be told."""
        while self._intents:
            load, intent = next(iter(self._intents.items()))
            await self._count(
                "intents",
                self._requests.withdraw(load) if intent is None else self._requests.announce(intent),
            )
            if self._intents.get(load) is intent:  # and nothing newer meanwhile
                self._intents.pop(load, None)
                if intent is None:
                    self._own_loads.discard(load)
        if self._reports:
            reports, self._reports = self._reports, {}
            await self._count("reports", self._requests.report(list(reports.values())))

    async def _count(self, what: str, telling: Awaitable[None]) -> None:
        question = f"{SERVICE_NAME}: {what}"
        try:
            await telling
        except ServiceUnusableError as error:
            self._counter.count_failure(SERVICE_NAME, question, error.reason, is_fault=False)
        except Exception as error:  # noqa: BLE001 - as when asking: we go on
            _log.exception("telling the collector service failed unexpectedly")
            self._counter.count_failure(SERVICE_NAME, question, repr(error), is_fault=True)
        else:
            self._counter.close_question(question)


def _as_ours(broker: BrokerSnapshot, announced_bytes: int, shift_s: float) -> BrokerSnapshot:
    since_s = broker.unreachable_since_s
    if not announced_bytes and since_s is None:
        return broker
    return replace(
        broker,
        announced_bytes=broker.announced_bytes + announced_bytes,
        unreachable_since_s=None if since_s is None else since_s + shift_s,
    )
