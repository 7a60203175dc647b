"""The conversations with a cluster, in virtual time: an hour of outages takes milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from telemetry_collector import ClusterSnapshot, CollectorConfig
from telemetry_collector.broker_metrics import BrokerMetrics
from telemetry_collector.measuring import Measuring
from telemetry_collector.observation import Assembled, ClusterLayout
from telemetry_collector.sources.source import Observation, Question, Source
from telemetry_collector.statistics import StatisticsCounter
from telemetry_collector.testing import FakeCluster, FakeMetricsSource, FakeSource, make_snapshot

WALL_BEGIN_S = 1e9
CONFIG = CollectorConfig(interval_s=5.0, full_interval_s=30.0, deadline_s=3.0, jitter=0.0)


class _JumpingSelector(selectors.SelectSelector):
    """Where a loop would sleep until its next timer, its time jumps there instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left that could happen"
        self.now_s += timeout
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class _Watched:
    """A measuring that runs, what it published, and when."""

    def __init__(
        self, sources: Sequence[Source], config: CollectorConfig, topics: Iterable[str] | None = None
    ) -> None:
        self.wall_jump_s = 0.0
        self.loop = asyncio.get_running_loop()
        self.published: list[tuple[float, Assembled]] = []
        self.counter = StatisticsCounter([source.name for source in sources])
        self.measuring = Measuring(
            sources,
            config,
            topics=topics,
            capacity_bytes_by_broker={},
            publish=lambda assembled: self.published.append((self.loop.time(), assembled)),
            counter=self.counter,
            rng=random.Random(7),
            clock=self.loop.time,
            wall_clock=self.wall_now_s,
        )

    def wall_now_s(self) -> float:
        return WALL_BEGIN_S + self.loop.time() + self.wall_jump_s

    @property
    def latest(self) -> ClusterSnapshot:
        return self.published[-1][1].snapshot

    def reachable(self) -> set[int]:
        return {broker_id for broker_id, broker in self.latest.brokers.items() if broker.is_reachable}

    def ages_s(self) -> list[float]:
        """How old the latest snapshot got before each next one."""
        pairs = zip(self.published, self.published[1:], strict=False)
        return [next_at_s - assembled.measured_at_s for (_, assembled), (next_at_s, _) in pairs]


def _measure(
    sources: Sequence[Source],
    scenario: Callable[[_Watched], Awaitable[None]],
    *,
    config: CollectorConfig = CONFIG,
    topics: Iterable[str] | None = None,
) -> _Watched:
    """Run a scenario beside a measuring, in virtual time; demand that no task is left."""

    async def run() -> _Watched:
        watched = _Watched(sources, config, topics)
        running = asyncio.ensure_future(watched.measuring.run())
        try:
            await scenario(watched)
        finally:
            watched.measuring.stop()
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return watched

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(run())


def _cluster(**kwargs: Any) -> FakeCluster:
    topics = {"t": [(1, 2), (2, 3)], "u": [(3, 1)]}
    stored = {("t", 0): 10, ("t", 1): 20, ("u", 0): 40}
    return FakeCluster(make_snapshot([100, 200, 300], topics=topics, stored_bytes=stored, **kwargs))


async def _for(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_a_snapshot_says_what_the_cluster_says() -> None:
    cluster = _cluster()

    async def scenario(_: _Watched) -> None:
        await _for(1.0)
        cluster.snapshot = make_snapshot([101, 200, 300])
        await _for(5.0)

    watched = _measure(cluster.sources(), scenario)
    first = watched.published[0][1].snapshot
    expected = _cluster().snapshot
    assert first.topics == expected.topics
    assert first.taken_at_s == WALL_BEGIN_S
    for broker_id, broker in first.brokers.items():
        assert replace(broker, latency_s=None) == expected.brokers[broker_id]
    assert watched.latest.brokers[1].used_bytes == 101


def test_all_figures_of_a_snapshot_are_of_one_instant() -> None:
    cluster = _cluster()
    cluster.delay_s = {1: 0.1, 2: 0.2, 3: 0.05}
    watched = _measure(
        cluster.sources(), lambda _: _for(60.0), config=CONFIG.model_copy(update={"jitter": 0.3})
    )
    for published_at_s, assembled in watched.published[1:]:
        assert published_at_s - assembled.measured_at_s == pytest.approx(0.2)


def test_a_paused_broker_is_unreachable_after_the_deadline_and_delays_nobody() -> None:
    cluster = _cluster()

    async def scenario(watched: _Watched) -> None:
        await _for(6.0)
        cluster.paused.add(2)
        await _for(3600.0)
        assert watched.reachable() == {1, 3}
        assert watched.latest.brokers[2].used_bytes == 200
        assert watched.latest.brokers[2].unreachable_since_s == WALL_BEGIN_S + 10.0
        cluster.paused.clear()
        await _for(20.0)
        assert watched.reachable() == {1, 2, 3}

    watched = _measure(cluster.sources(), scenario)
    unreachable_at_s = next(at for at, a in watched.published if not a.snapshot.brokers[2].is_reachable)
    assert unreachable_at_s == pytest.approx(10.0 + CONFIG.deadline_s)
    assert max(watched.ages_s()) <= CONFIG.interval_s + CONFIG.deadline_s
    after_s = [assembled.measured_at_s for at, assembled in watched.published if at > unreachable_at_s]
    assert after_s[-1] > 3600.0
    steps_s = [b - a for a, b in itertools.pairwise(after_s)]
    assert max(steps_s) <= CONFIG.interval_s + 0.01
    # Nor are the others' figures held back while the paused one is tried again.
    first_at_s = {measured: at for at, (_, measured, _) in reversed(watched.published) if at > 3600.0 / 2}
    assert max(at - measured for measured, at in first_at_s.items() if 1900.0 < measured < 3600.0) < 0.01


def test_a_source_that_never_gives_up_is_given_up_after_the_deadline() -> None:
    cluster = _cluster()

    class Hanging(FakeSource):
        async def answer(self, question: Question) -> Observation:
            if question.broker_id == 3:
                await asyncio.Event().wait()
            return await super().answer(question)

    layout, _ = cluster.sources()
    watched = _measure([layout, Hanging(cluster, is_per_broker=True)], lambda _: _for(60.0))
    assert watched.published[0][0] == pytest.approx(CONFIG.deadline_s, abs=0.5)
    assert watched.reachable() == {1, 2}
    assert watched.counter.read().failures == {"log_dirs of broker 3": "no answer within 3 s"}


def test_the_layout_of_all_partitions_may_take_longer_than_anything_else() -> None:
    cluster = _cluster()
    layout, log_dirs = cluster.sources()
    _measure([layout, log_dirs], lambda _: _for(31.0))
    timeouts = {(q.broker_id is None, q.is_full): q.timeout_s for q in layout.questions + log_dirs.questions}
    assert timeouts.pop((True, True)) == CONFIG.full_deadline_s > CONFIG.deadline_s
    assert set(timeouts.values()) == {CONFIG.deadline_s}


def test_no_broker_is_ever_asked_twice_at_once() -> None:
    cluster = _cluster()
    cluster.delay_s = {1: 0.5, 2: 2.9, 3: 100.0}
    outstanding: set[int | None] = set()

    class Counting(FakeSource):
        async def answer(self, question: Question) -> Observation:
            assert question.broker_id not in outstanding
            outstanding.add(question.broker_id)
            try:
                return await super().answer(question)
            finally:
                outstanding.discard(question.broker_id)

    async def scenario(watched: _Watched) -> None:
        for _ in range(200):
            await _for(0.3)
            watched.measuring.refresh()

    sources = [Counting(cluster, is_per_broker=False), Counting(cluster, is_per_broker=True)]
    watched = _measure(sources, scenario)
    assert watched.counter.read().num_faults == {"cluster_metadata": 0, "log_dirs": 0}


def test_slow_brokers_are_waited_for_a_moment_and_then_the_others_are_published() -> None:
    cluster = _cluster()

    async def scenario(_: _Watched) -> None:
        await _for(4.0)
        cluster.delay_s = {2: 2.0}
        cluster.snapshot = make_snapshot([111, 222, 333])
        await _for(4.0)

    watched = _measure(cluster.sources(), scenario)
    seen = [
        (round(at, 2), [b.used_bytes for b in a.snapshot.brokers.values()]) for at, a in watched.published
    ]
    assert seen[-2:] == [(5.25, [111, 200, 333]), (7.0, [111, 222, 333])]
    # Until the slow one has answered, the snapshot is as old as what is known of that one.
    assert watched.published[-2][1].measured_at_s == 0.0
    assert watched.published[-1][1].measured_at_s == 5.0


@pytest.mark.parametrize("is_per_broker", [False, True])
def test_an_unexpected_error_ends_a_question_and_is_counted_with_its_reason(is_per_broker: bool) -> None:
    cluster = _cluster()
    sources = cluster.sources()
    faulty = sources[is_per_broker]

    async def scenario(watched: _Watched) -> None:
        await _for(7.0)
        num_before = len(watched.published)
        faulty.fault = ZeroDivisionError("a bug")
        await _for(60.0)
        statistics = watched.counter.read()
        assert statistics.num_faults[faulty.name] == statistics.num_failures[faulty.name] > 0
        assert "ZeroDivisionError('a bug')" in set(statistics.failures.values())
        # Nothing was measured, so nothing may look fresh.
        assert {a.measured_at_s for _, a in watched.published[num_before:]} <= {5.0}
        faulty.fault = None
        await _for(60.0)

    watched = _measure(sources, scenario)
    assert watched.reachable() == {1, 2, 3}
    assert watched.counter.read().failures == {}
    assert watched.published[-1][1].measured_at_s > 120.0


def test_an_impossible_answer_is_a_fault_and_never_reaches_a_snapshot() -> None:
    cluster = _cluster()

    class Lying(FakeSource):
        async def answer(self, question: Question) -> Observation:
            observation = await super().answer(question)
            return replace(observation, used_bytes=-1) if question.broker_id == 1 else observation

    layout, _ = cluster.sources()
    watched = _measure([layout, Lying(cluster, is_per_broker=True)], lambda _: _for(20.0))
    assert watched.reachable() == {2, 3}
    assert watched.counter.read().num_faults["log_dirs"] > 0


def test_a_broker_that_the_cluster_lists_again_is_asked_at_once() -> None:
    cluster = _cluster()

    async def scenario(watched: _Watched) -> None:
        await _for(2.0)
        cluster.killed.add(3)
        await _for(600.0)  # the backoff is at its longest by now
        cluster.killed.clear()
        came_back_at_s = watched.loop.time()
        while 3 not in watched.reachable():
            await _for(0.1)
        assert watched.loop.time() - came_back_at_s <= CONFIG.interval_s + 0.1

    _measure(cluster.sources(), scenario)


def test_a_dead_broker_is_asked_more_and_more_seldom() -> None:
    cluster = _cluster()
    cluster.killed.add(3)
    cluster.snapshot = make_snapshot([1, 2, 3], topics={"t": [(3, 1)]})  # a replica still refers to it
    asked_at_s: list[float] = []

    class Noting(FakeSource):
        async def answer(self, question: Question) -> Observation:
            if question.broker_id == 3:
                asked_at_s.append(asyncio.get_running_loop().time())
            return await super().answer(question)

    layout, _ = cluster.sources()
    _measure([layout, Noting(cluster, is_per_broker=True)], lambda _: _for(300.0))
    waits_s = [b - a for a, b in itertools.pairwise(asked_at_s)]
    assert waits_s[0] <= 0.5
    assert all(7.5 <= wait_s <= 15.0 for wait_s in waits_s[6:])
    assert len(waits_s) > 20


def test_all_partitions_are_asked_for_seldom_and_totals_often() -> None:
    cluster = _cluster()
    layout, log_dirs = cluster.sources()
    _measure([layout, log_dirs], lambda _: _for(61.0))
    for questions in (layout.questions, [q for q in log_dirs.questions if q.broker_id == 1]):
        assert [q.is_full for q in questions] == [True, *[False] * 5, True, *[False] * 5, True]


def test_sizes_stay_known_between_two_measurements_of_all() -> None:
    cluster = _cluster()
    watched = _measure(cluster.sources(), lambda _: _for(12.0))
    assert watched.latest.leader_bytes("t") == {1: 10, 2: 20, 3: 0}


def test_a_refresh_asks_the_cluster_first_and_then_everything_of_every_broker() -> None:
    cluster = _cluster()
    order: list[tuple[int | None, bool, bool]] = []

    class Noting(FakeSource):
        async def answer(self, question: Question) -> Observation:
            topics = question.layout.topics if question.layout is not None else None
            order.append((question.broker_id, question.is_full, "new" in (topics or {})))
            await asyncio.sleep(0.01)
            return await super().answer(question)

    async def scenario(watched: _Watched) -> None:
        await _for(1.0)
        order.clear()
        cluster.snapshot = make_snapshot([1, 2, 3], topics={"new": [(1,)]})
        watched.measuring.refresh()
        await _for(1.0)

    _measure([Noting(cluster, is_per_broker=False), Noting(cluster, is_per_broker=True)], scenario)
    assert order[0] == (None, True, False)
    assert sorted(order[1:]) == [(1, True, True), (2, True, True), (3, True, True)]


def test_watching_another_topic_measures_it_at_once() -> None:
    cluster = _cluster()

    async def scenario(watched: _Watched) -> None:
        await _for(1.0)
        assert set(watched.latest.topics) == {"t"}
        assert watched.latest.leader_bytes("u") == {1: 0, 2: 0, 3: 0}
        watched.measuring.watch(["u"])
        await _for(1.0)
        assert set(watched.latest.topics) == {"t", "u"}
        assert watched.latest.leader_bytes("u") == {1: 0, 2: 0, 3: 40}

    _measure(cluster.sources(), scenario, topics=["t"])


def test_a_broker_that_joins_is_asked_and_one_that_is_forgotten_is_not() -> None:
    cluster = FakeCluster(make_snapshot([1, 2]))
    layout, log_dirs = cluster.sources()

    async def scenario(watched: _Watched) -> None:
        await _for(2.0)
        cluster.snapshot = make_snapshot([1, 2, 3])
        await _for(10.0)
        assert watched.reachable() == {1, 2, 3}
        cluster.snapshot = make_snapshot([1, 2])  # taken out for good; nothing refers to it
        await _for(CONFIG.forget_broker_after_s / 2)
        assert watched.latest.brokers[3].unreachable_since_s is not None
        await _for(CONFIG.forget_broker_after_s)
        assert set(watched.latest.brokers) == {1, 2}
        log_dirs.questions.clear()
        await _for(60.0)
        assert {q.broker_id for q in log_dirs.questions} == {1, 2}
        assert watched.counter.read().failures == {}

    _measure([layout, log_dirs], scenario)


def test_the_answer_of_another_cluster_is_refused() -> None:
    cluster = _cluster()

    async def scenario(watched: _Watched) -> None:
        await _for(1.0)
        cluster.snapshot = make_snapshot([9, 9, 9], cluster_id="another")
        await _for(20.0)
        assert watched.latest.cluster_id == "test-cluster"
        assert watched.published[-1][1].measured_at_s < 5.0
        reason = watched.counter.read().failures["cluster_metadata"]
        assert reason == "it belongs to cluster 'another', not to 'test-cluster'"

    _measure(cluster.sources(), scenario)


def test_without_any_broker_the_last_snapshot_grows_old_and_says_who_is_gone() -> None:
    cluster = _cluster()

    async def scenario(_: _Watched) -> None:
        await _for(6.0)
        cluster.paused |= {1, 2, 3}
        await _for(60.0)

    watched = _measure(cluster.sources(), scenario)
    assert watched.reachable() == set()
    assert watched.latest.taken_at_s == WALL_BEGIN_S + 5.0
    assert [b.used_bytes for b in watched.latest.brokers.values()] == [100, 200, 300]


def test_nothing_is_published_before_every_known_broker_was_asked_once() -> None:
    cluster = _cluster()
    cluster.paused.add(1)
    watched = _measure(cluster.sources(), lambda _: _for(2.9))
    assert watched.published == []


def test_stopping_in_the_middle_of_everything_leaves_no_task() -> None:
    cluster = _cluster()
    cluster.paused |= {1, 2}
    for stop_after_s in (0.0, 0.001, 1.0, 3.0, 3.1, 17.3):
        _measure(cluster.sources(), lambda _, wait_s=stop_after_s: _for(wait_s))  # type: ignore[misc]


def test_an_error_in_what_publishes_is_raised_to_whoever_runs_it() -> None:
    cluster = _cluster()

    async def run() -> None:
        watched = _Watched(cluster.sources(), CONFIG)

        def broken(_: Assembled) -> None:
            raise ZeroDivisionError("a bug")

        watched.measuring._publish = broken
        await watched.measuring.run()

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner, pytest.raises(ExceptionGroup) as raised:
        runner.run(run())
    assert raised.group_contains(ZeroDivisionError, match="a bug")


def test_a_layout_names_no_topics_when_none_was_asked_for() -> None:
    cluster = _cluster()
    source, _ = cluster.sources()
    question = Question(broker_id=None, topics=None, is_full=False, layout=None, timeout_s=1.0)
    layout = asyncio.run(source.answer(question))
    assert isinstance(layout, ClusterLayout)
    assert layout.topics is None


# What isn't essential: metrics.


def _with_metrics(cluster: FakeCluster, *names: str) -> tuple[list[Source], list[FakeMetricsSource]]:
    added = [FakeMetricsSource(cluster, name) for name in names or ("metrics",)]
    return [*cluster.sources(), *added], added


def _told(latency_s: float) -> BrokerMetrics:
    return BrokerMetrics(request_latency_s=latency_s)


def test_metrics_are_in_the_next_snapshot_beside_what_brokers_say_themselves() -> None:
    cluster = _cluster()
    cluster.metrics = {1: _told(0.01), 3: _told(0.03)}
    sources, _ = _with_metrics(cluster)
    watched = _measure(sources, lambda _: _for(11.0))
    latencies = {broker_id: broker.request_latency_s for broker_id, broker in watched.latest.brokers.items()}
    assert latencies == {1: 0.01, 2: None, 3: 0.03}
    assert watched.reachable() == {1, 2, 3}


def test_metrics_that_fail_or_stay_out_change_neither_who_is_reachable_nor_when_snapshots_come() -> None:
    def published(source: str) -> list[tuple[float, set[int], float]]:
        cluster = _cluster()
        cluster.delay_s = {1: 0.1, 2: 0.2}
        sources, (metrics,) = _with_metrics(cluster)
        if source == "silent":
            metrics.is_silent = True
        elif source == "failing":
            metrics.fault = ZeroDivisionError("a bug")
        elif source == "absent":
            sources.remove(metrics)
        watched = _measure(sources, lambda _: _for(120.0))
        if source == "failing":
            assert watched.counter.read().num_faults["metrics"] > 0
            assert watched.counter.read().failures["metrics of broker 1"] == "ZeroDivisionError('a bug')"
        return [
            (round(at_s, 3), {b for b, x in a.snapshot.brokers.items() if x.is_reachable}, a.measured_at_s)
            for at_s, a in watched.published
        ]

    absent = published("absent")
    assert absent[-1][1] == {1, 2, 3}
    assert published("silent") == published("failing") == published("telling") == absent


def test_a_latency_is_forgotten_when_its_source_falls_silent() -> None:
    cluster = _cluster()
    cluster.metrics = {1: _told(0.01)}
    sources, (metrics,) = _with_metrics(cluster)
    config = CONFIG.model_copy(update={"metrics_interval_s": 10.0})

    async def scenario(watched: _Watched) -> None:
        await _for(11.0)
        metrics.is_silent = True
        await _for(15.0)
        assert watched.latest.brokers[1].request_latency_s == 0.01
        await _for(30.0)
        assert watched.latest.brokers[1].request_latency_s is None

    _measure(sources, scenario, config=config)


def test_metrics_have_a_deadline_of_their_own() -> None:
    cluster = _cluster()
    sources, (metrics,) = _with_metrics(cluster)
    metrics.is_silent = True
    config = CONFIG.model_copy(update={"metrics_deadline_s": 7.0})
    watched = _measure(sources, lambda _: _for(7.1), config=config)
    assert watched.counter.read().failures["metrics of broker 1"] == "no answer within 7 s"
    assert watched.reachable() == {1, 2, 3}


def test_a_refresh_asks_no_exporter() -> None:
    cluster = _cluster()
    asked: list[int | None] = []

    class Noting(FakeMetricsSource):
        async def answer(self, question: Question) -> BrokerMetrics:
            asked.append(question.broker_id)
            return await super().answer(question)

    async def scenario(watched: _Watched) -> None:
        for _ in range(20):
            await _for(0.4)
            watched.measuring.refresh()

    _measure([*cluster.sources(), Noting(cluster)], scenario)
    assert sorted(asked) == [1, 2, 3]  # type: ignore[type-var]


def test_what_comes_in_follows_from_what_is_held_and_better_from_a_counter() -> None:
    cluster = _cluster()
    sources, _ = _with_metrics(cluster)

    async def scenario(watched: _Watched) -> None:
        start = cluster.snapshot
        for second in range(100):
            # Broker 1 grows by 100 a second; broker 2 by 100, and retention takes 1,000 each tenth second;
            # broker 3 by as much as is deleted, so that only its metrics know.
            used = {1: 100 * second, 2: 1000 + 100 * second - 1000 * (second // 10), 3: 300}
            brokers = {b: replace(x, used_bytes=used[b]) for b, x in start.brokers.items()}
            cluster.snapshot = replace(start, brokers=brokers)
            cluster.metrics = {3: BrokerMetrics(received_bytes=5000.0 * second)}
            await _for(1.0)
        rates = {b: broker.ingest_bytes_per_s for b, broker in watched.latest.brokers.items()}
        assert rates == {
            1: pytest.approx(100, rel=0.1),
            2: pytest.approx(100, rel=0.1),
            3: pytest.approx(5000, rel=0.1),
        }

    _measure(sources, scenario)


def test_a_broker_that_was_away_and_comes_back_fuller_brings_no_spike() -> None:
    cluster = _cluster()

    async def scenario(watched: _Watched) -> None:
        await _for(12.0)
        cluster.paused.add(2)
        await _for(30.0)
        brokers = {**cluster.snapshot.brokers, 2: replace(cluster.snapshot.brokers[2], used_bytes=10**12)}
        cluster.snapshot = replace(cluster.snapshot, brokers=brokers)
        cluster.paused.clear()
        for _ in range(60):
            await _for(1.0)
            assert not watched.latest.brokers[2].ingest_bytes_per_s
        assert 2 in watched.reachable()

    _measure(cluster.sources(), scenario)


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_ages_and_rates_stay_right_when_the_wall_clock_is_set(jump_s: float) -> None:
    cluster = _cluster()

    async def scenario(watched: _Watched) -> None:
        cluster.paused.add(3)
        for second in range(120):
            if second == 60:
                watched.wall_jump_s = jump_s
            brokers = {**cluster.snapshot.brokers}
            brokers[1] = replace(brokers[1], used_bytes=1000 * second)
            cluster.snapshot = replace(cluster.snapshot, brokers=brokers)
            await _for(1.0)
            if second < 20 or 60 <= second < 66:  # what was published before is as old as it was
                continue
            assert watched.latest.age_s(watched.wall_now_s()) <= CONFIG.interval_s + 0.3
            assert watched.latest.brokers[1].ingest_bytes_per_s == pytest.approx(1000)
            since_s = watched.latest.brokers[3].unreachable_since_s
            assert since_s is not None
            assert watched.wall_now_s() - since_s == pytest.approx(second + 1, abs=0.01)

    _measure(cluster.sources(), scenario)


def test_an_odd_answer_is_used_and_what_is_odd_is_said_until_it_is_not() -> None:
    cluster = _cluster()
    odd = {1: ("it holds too much",)}

    class Odd(FakeSource):
        async def answer(self, question: Question) -> Observation:
            assert question.broker_id is not None
            return replace(await super().answer(question), warnings=odd.get(question.broker_id, ()))

    class Partial(FakeSource):
        async def answer(self, question: Question) -> Observation:
            return replace(await super().answer(question), warnings=tuple(unknown))

    unknown = ["a topic is secret"]

    async def scenario(watched: _Watched) -> None:
        await _for(1.0)
        assert watched.counter.read().warnings == {
            "cluster_metadata": "a topic is secret",
            "log_dirs of broker 1": "it holds too much",
        }
        assert watched.reachable() == {1, 2, 3}
        odd.clear()
        unknown.clear()
        await _for(6.0)
        assert watched.counter.read().warnings == {}

    _measure([Partial(cluster, is_per_broker=False), Odd(cluster, is_per_broker=True)], scenario)
