"""The conversations with a cluster, running side by side until they are stopped.

The idea: each pair of a source and a broker (or of a source and the whole cluster) is one conversation, a
task that asks, enters what it heard or didn't, and waits for its next turn. Conversations share nothing but
`Observations` and the ticks, so a broker that is slow or dead holds up its own conversation and no other.

    answered       -> asked again at the next tick, which all conversations share
    not answered   -> asked again after a backoff of its own, or when the cluster lists the broker again;
                      the cluster is asked at once whether the broker is alive (observation.py)
    refresh()      -> asked at once: first the cluster, then, knowing the layout, every broker

An answer of another cluster is refused. When the next one is of that cluster too, all conversations end with
`ClusterChangedError`: nothing of what was heard holds there, and whoever measures decides what to do.

A snapshot is published when something was heard and no answer is outstanding from a broker that used to
answer; the slowest of them is waited for no longer than `straggler_wait_s`, then it is published again.
What comes from sources that aren't essential has ticks of its own, is not waited for, and is in the next
snapshot.

Invariants, checked in tests/unit/telemetry_collector/sources/test_measuring*.py:
1. A question is given up after `deadline_s` (about all partitions' layout: `full_deadline_s`; about what
   isn't essential: `metrics_deadline_s`), whatever the source does.
2. No conversation has more than one question outstanding.
3. An error of any kind ends a question, never a conversation; it is counted, and its reason kept.
4. When `run` ends, none of its tasks is left.
5. What a source does that isn't essential changes neither who is reachable nor when snapshots are published.

Everything here belongs to one asyncio loop. Read next: collector.py, which gives it a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.errors import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    ClusterChangedError,
    SourceError,
)
from evenload.telemetry_collector.schedule import Ticks, backoff_s
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.observation import (
    Assembled,
    BrokerStorage,
    ClusterLayout,
    HeardConfigs,
    HeardThrottles,
    Observations,
)
from evenload.telemetry_collector.sources.pushed_metrics import PushedMetricsSource
from evenload.telemetry_collector.sources.source import Observation, Question, Source
from evenload.telemetry_collector.statistics import StatisticsCounter

__all__ = ["Measuring"]

_log = logging.getLogger(__name__)

# A source gives up by itself at the deadline, with a better reason; this is for one that doesn't.
_DEADLINE_SLACK_S = 0.2

# For so many intervals metrics count when no newer ones come: one or two may be missed.
_METRICS_LIFE = 3


@dataclass(slots=True, eq=False)
class _Conversation:
    source: Source
    broker_id: int | None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_forced: bool = False
    num_failures: int = 0
    full_due_at_s: float = 0.0

    @property
    def question(self) -> str:
        """What is asked, as people read it."""
        return (
            self.source.name if self.broker_id is None else f"{self.source.name} of broker {self.broker_id}"
        )


class Measuring:
    """Asks all sources about one cluster and publishes what follows.

    Args:
        sources: whom to ask; whoever made them closes them, after `run` has ended.
        config: how often, how long.
        topics: says which topics matter, None for all; asked for each question, after its time is taken:
            what is measured from some time on is of all topics that mattered by then.
        bootstrap_servers: how the cluster is reached, for sentences.
        capacity_bytes_by_broker: configured capacities.
        publish: called in the loop with each new snapshot.
        counter: counts answers and failures.
        rng: decides about jitter and backoff.
        clock: monotonic seconds.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        config: CollectorConfig,
        *,
        topics: Callable[[], frozenset[str] | None],
        bootstrap_servers: str,
        capacity_bytes_by_broker: Mapping[int, int],
        publish: Callable[[Assembled], None],
        counter: StatisticsCounter,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._sources = sources
        self._topics = topics
        self._bootstrap_servers = bootstrap_servers
        self._publish = publish
        self._counter = counter
        self._rng = rng
        self._clock = clock
        self._wall_clock = wall_clock
        self._ticks = Ticks(config.interval_s, jitter=config.jitter, rng=rng)
        self._metrics_ticks = Ticks(config.metrics_interval_s, jitter=config.jitter, rng=rng)
        self._observations = Observations(
            capacity_bytes_by_broker=capacity_bytes_by_broker,
            forget_broker_after_s=config.forget_broker_after_s,
            metrics_sources=[source.name for source in sources if not source.is_essential],
            metrics_max_age_s=_METRICS_LIFE * config.metrics_interval_s,
            metrics_claims=[source.name for source in sources if isinstance(source, PushedMetricsSource)],
        )
        self._conversations: dict[tuple[str, int | None], _Conversation] = {}
        self._awaited: set[_Conversation] = set()
        self._all_are_in = asyncio.Event()
        self._has_changed = asyncio.Event()
        self._is_stopped = asyncio.Event()
        self._found_id: str | None = None  # of another cluster that has answered last
        self._has_cluster_changed = False

    async def run(self) -> None:
        """Measure until `stop` is called; then nothing is left running.

        Raises:
            ClusterChangedError: another cluster answers, twice in a row; nothing is left running either.
        """
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._publish_changes())
            for source in self._sources:
                if not source.is_per_broker:
                    self._start(tasks, source, None)
            await self._is_stopped.wait()
            publishing.cancel()
            for talk in self._conversations.values():
                assert talk.task is not None
                talk.task.cancel()
        if self._has_cluster_changed:
            assert self._observations.layout is not None
            assert self._found_id is not None
            raise ClusterChangedError(
                self._bootstrap_servers, self._observations.layout.cluster_id, self._found_id
            )

    def stop(self) -> None:
        """End `run`."""
        self._is_stopped.set()

    def refresh(self) -> None:
        """Ask everything, now."""
        self._force(is_per_broker=False)

    # The life of one conversation.

    def _start(self, tasks: asyncio.TaskGroup, source: Source, broker_id: int | None) -> None:
        talk = _Conversation(source, broker_id)
        self._conversations[source.name, broker_id] = talk
        talk.task = tasks.create_task(self._converse(tasks, talk), name=talk.question)

    async def _converse(self, tasks: asyncio.TaskGroup, talk: _Conversation) -> None:
        while True:
            talk.wake.clear()
            is_forced, talk.is_forced = talk.is_forced, False
            await self._ask(talk, is_full=is_forced or self._clock() >= talk.full_due_at_s)
            if talk.broker_id is None:
                self._meet_brokers(tasks)
                if is_forced:
                    # Only now, as what to ask a broker follows from the layout.
                    self._force(is_per_broker=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s(talk)):
                    await talk.wake.wait()

    async def _ask(self, talk: _Conversation, *, is_full: bool) -> None:
        asked_at_s = self._clock()
        topics = self._topics()
        question = Question(
            broker_id=talk.broker_id,
            topics=topics,
            is_full=is_full,
            layout=self._observations.layout,
            timeout_s=self._timeout_s(talk, is_about_all=is_full and topics is None),
        )
        if talk.source.is_essential and not talk.num_failures:
            self._awaited.add(talk)
            self._all_are_in.clear()
        try:
            async with asyncio.timeout(question.timeout_s + _DEADLINE_SLACK_S):
                observation = await talk.source.answer(question)
            self._hear(talk, observation, asked_at_s)
        except TimeoutError:
            self._miss(talk, _silence(question), asked_at_s)
        except Exception as error:  # noqa: BLE001 - whatever a source does wrong, the others go on
            self._miss(talk, error, asked_at_s)
        else:
            if is_full:
                talk.full_due_at_s = asked_at_s + self._config.full_interval_s
        finally:
            self._awaited.discard(talk)
            if not self._awaited:
                self._all_are_in.set()
        if talk.source.is_essential:
            self._has_changed.set()

    def _hear(self, talk: _Conversation, observation: Observation, asked_at_s: float) -> None:
        warnings: tuple[str, ...] = ()
        match observation:
            case ClusterLayout():
                self._hear_layout(observation, asked_at_s)
                warnings = observation.warnings
            case BrokerStorage():
                assert talk.broker_id is not None
                latency_s = self._clock() - asked_at_s
                self._observations.hear_storage(
                    talk.broker_id, observation, asked_at_s=asked_at_s, latency_s=latency_s
                )
                warnings = observation.warnings
            case HeardConfigs():
                self._observations.hear_configs(observation)
                warnings = observation.warnings
            case HeardThrottles():
                self._observations.hear_throttles(observation)
                warnings = observation.warnings
            case BrokerMetrics():
                assert talk.broker_id is not None
                self._observations.hear_metrics(
                    talk.source.name, talk.broker_id, observation, asked_at_s=asked_at_s
                )
        talk.num_failures = 0
        self._counter.count_answer(talk.source.name, talk.question, warnings=warnings)

    def _hear_layout(self, layout: ClusterLayout, asked_at_s: float) -> None:
        known = self._observations.layout
        if known is not None and known.cluster_id != layout.cluster_id:
            # One such answer may be a stray: where two clusters are behind the addresses, of either.
            self._has_cluster_changed = self._found_id == layout.cluster_id
            self._found_id = layout.cluster_id
            if self._has_cluster_changed:
                self._is_stopped.set()
            raise BadAnswerError(
                "any", f"it belongs to cluster {layout.cluster_id!r}, not to {known.cluster_id!r}"
            )
        self._found_id = None
        listed_before = known.racks if known is not None else {}
        back = [
            talk
            for talk in self._conversations.values()
            if talk.broker_id in layout.racks and talk.num_failures and talk.broker_id not in listed_before
        ]
        self._observations.hear_layout(layout, asked_at_s=asked_at_s)
        for talk in back:
            talk.wake.set()

    def _miss(self, talk: _Conversation, error: Exception, asked_at_s: float) -> None:
        is_fault = not isinstance(error, SourceError)
        if is_fault:
            _log.error("asking for %s failed unexpectedly", talk.question, exc_info=error)
        reason = error.reason if isinstance(error, SourceError) else repr(error)
        if isinstance(error, AccessRefusedError):
            reason = f"{reason}; {error.permission}"
        talk.num_failures += 1
        self._counter.count_failure(talk.source.name, talk.question, reason, is_fault=is_fault)
        if talk.broker_id is None or not talk.source.is_essential:
            return
        if self._observations.miss(talk.broker_id, asked_at_s=asked_at_s):
            self._ask_the_cluster()

    def _ask_the_cluster(self) -> None:
        """A second witness, now: at its next tick it would be an interval late."""
        for talk in self._conversations.values():
            if talk.broker_id is None and talk.source.is_essential and not talk.num_failures:
                talk.wake.set()

    def _timeout_s(self, talk: _Conversation, *, is_about_all: bool) -> float:
        if not talk.source.is_essential:
            return self._config.metrics_deadline_s
        is_about_all_partitions = talk.broker_id is None and is_about_all
        return self._config.full_deadline_s if is_about_all_partitions else self._config.deadline_s

    def _wait_s(self, talk: _Conversation) -> float:
        if talk.num_failures:
            return backoff_s(
                talk.num_failures,
                initial_s=self._config.backoff_initial_s,
                max_s=self._config.backoff_max_s,
                rng=self._rng,
            )
        now_s = self._clock()
        ticks = self._ticks if talk.source.is_essential else self._metrics_ticks
        return ticks.next_after(now_s) - now_s

    # What conversations do to one another.

    def _meet_brokers(self, tasks: asyncio.TaskGroup) -> None:
        """Start a conversation with each broker that is new, end those with brokers that are forgotten."""
        known = self._observations.broker_ids
        for source in self._sources:
            if source.is_per_broker:
                for broker_id in known:
                    if (source.name, broker_id) not in self._conversations:
                        self._start(tasks, source, broker_id)
        for key, talk in list(self._conversations.items()):
            if talk.broker_id is not None and talk.broker_id not in known:
                del self._conversations[key]
                self._counter.close_question(talk.question)
                assert talk.task is not None
                talk.task.cancel()

    def _force(self, *, is_per_broker: bool) -> None:
        for talk in self._conversations.values():
            if talk.source.is_essential and talk.source.is_per_broker == is_per_broker:
                talk.is_forced = True
                talk.wake.set()

    async def _publish_changes(self) -> None:
        while True:
            await self._has_changed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.straggler_wait_s):
                    await self._all_are_in.wait()
            self._has_changed.clear()
            assembled = self._observations.assemble(now_s=self._clock(), wall_now_s=self._wall_clock())
            if assembled is not None:
                self._publish(assembled)
                self._counter.count_snapshot()


def _silence(question: Question) -> SourceError:
    broker = "any" if question.broker_id is None else question.broker_id
    return BrokerUnreachableError(broker, f"no answer within {question.timeout_s:g} s")
