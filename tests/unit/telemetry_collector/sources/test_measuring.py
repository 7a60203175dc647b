"""The conversations with a cluster while all is well: who is asked what, when, and what is published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.sources.observation import ClusterLayout
from evenload.telemetry_collector.sources.source import Observation, Question
from evenload.telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot

WALL_BEGIN_S = 1e9
CONFIG = CollectorConfig(interval_s=5.0, full_interval_s=30.0, deadline_s=3.0, jitter=0.0)

# What conftest.py makes.
Watched = Any
Measure = Callable[..., Watched]
NewCluster = Callable[[], FakeCluster]


def test_a_snapshot_says_what_the_cluster_says(measure: Measure, new_cluster: NewCluster) -> None:
    cluster = new_cluster()

    async def scenario(_: Watched) -> None:
        await asyncio.sleep(1.0)
        cluster.snapshot = make_snapshot([101, 200, 300])
        await asyncio.sleep(5.0)

    watched = measure(cluster.sources(), scenario)
    first = watched.published[0][1].snapshot
    expected = new_cluster().snapshot
    assert first.topics == expected.topics
    assert first.taken_at_s == WALL_BEGIN_S
    for broker_id, broker in first.brokers.items():
        assert replace(broker, latency_s=None) == expected.brokers[broker_id]
    assert watched.latest.brokers[1].used_bytes == 101


def test_all_figures_of_a_snapshot_are_of_one_instant(measure: Measure, cluster: FakeCluster) -> None:
    cluster.delay_s = {1: 0.1, 2: 0.2, 3: 0.05}
    watched = measure(
        cluster.sources(), lambda _: asyncio.sleep(60.0), config=CONFIG.model_copy(update={"jitter": 0.3})
    )
    for published_at_s, assembled in watched.published[1:]:
        assert published_at_s - assembled.measured_at_s == pytest.approx(0.2)


def test_the_layout_of_all_partitions_may_take_longer_than_anything_else(
    measure: Measure, cluster: FakeCluster
) -> None:
    layout, log_dirs = cluster.sources()
    measure([layout, log_dirs], lambda _: asyncio.sleep(31.0))
    timeouts = {(q.broker_id is None, q.is_full): q.timeout_s for q in layout.questions + log_dirs.questions}
    assert timeouts.pop((True, True)) == CONFIG.full_deadline_s > CONFIG.deadline_s
    assert set(timeouts.values()) == {CONFIG.deadline_s}


def test_no_broker_is_ever_asked_twice_at_once(measure: Measure, cluster: FakeCluster) -> None:
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

    async def scenario(watched: Watched) -> None:
        for _ in range(200):
            await asyncio.sleep(0.3)
            watched.measuring.refresh()

    sources = [Counting(cluster, is_per_broker=False), Counting(cluster, is_per_broker=True)]
    watched = measure(sources, scenario)
    assert watched.counter.read().num_faults == {"cluster_metadata": 0, "log_dirs": 0}


def test_all_partitions_are_asked_for_seldom_and_totals_often(measure: Measure, cluster: FakeCluster) -> None:
    layout, log_dirs = cluster.sources()
    measure([layout, log_dirs], lambda _: asyncio.sleep(61.0))
    for questions in (layout.questions, [q for q in log_dirs.questions if q.broker_id == 1]):
        assert [q.is_full for q in questions] == [True, *[False] * 5, True, *[False] * 5, True]


def test_sizes_stay_known_between_two_measurements_of_all(measure: Measure, cluster: FakeCluster) -> None:
    watched = measure(cluster.sources(), lambda _: asyncio.sleep(12.0))
    assert watched.latest.leader_bytes("t") == {1: 10, 2: 20, 3: 0}


def test_a_refresh_asks_the_cluster_first_and_then_everything_of_every_broker(
    measure: Measure, cluster: FakeCluster
) -> None:
    order: list[tuple[int | None, bool, bool]] = []

    class Noting(FakeSource):
        async def answer(self, question: Question) -> Observation:
            topics = question.layout.topics if question.layout is not None else None
            order.append((question.broker_id, question.is_full, "new" in (topics or {})))
            await asyncio.sleep(0.01)
            return await super().answer(question)

    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(1.0)
        order.clear()
        cluster.snapshot = make_snapshot([1, 2, 3], topics={"new": [(1,)]})
        watched.measuring.refresh()
        await asyncio.sleep(1.0)

    measure([Noting(cluster, is_per_broker=False), Noting(cluster, is_per_broker=True)], scenario)
    assert order[0] == (None, True, False)
    assert sorted(order[1:]) == [(1, True, True), (2, True, True), (3, True, True)]


def test_a_topic_that_matters_from_now_on_is_in_what_is_asked_next(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(1.0)
        assert set(watched.latest.topics) == {"t"}
        assert watched.latest.leader_bytes("u") == {1: 0, 2: 0, 3: 0}
        watched.topics = frozenset(["t", "u"])
        watched.measuring.refresh()
        await asyncio.sleep(1.0)
        assert set(watched.latest.topics) == {"t", "u"}
        assert watched.latest.leader_bytes("u") == {1: 0, 2: 0, 3: 40}

    measure(cluster.sources(), scenario, topics=["t"])


def test_a_broker_that_joins_is_asked_and_one_that_is_forgotten_is_not(measure: Measure) -> None:
    cluster = FakeCluster(make_snapshot([1, 2]))
    layout, log_dirs = cluster.sources()

    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(2.0)
        cluster.snapshot = make_snapshot([1, 2, 3])
        await asyncio.sleep(10.0)
        assert watched.reachable() == {1, 2, 3}
        cluster.snapshot = make_snapshot([1, 2])  # taken out for good; nothing refers to it
        await asyncio.sleep(CONFIG.forget_broker_after_s / 2)
        assert watched.latest.brokers[3].unreachable_since_s is not None
        await asyncio.sleep(CONFIG.forget_broker_after_s)
        assert set(watched.latest.brokers) == {1, 2}
        log_dirs.questions.clear()
        await asyncio.sleep(60.0)
        assert {q.broker_id for q in log_dirs.questions} == {1, 2}
        assert watched.counter.read().failures == {}

    measure([layout, log_dirs], scenario)


def test_a_layout_names_no_topics_when_none_was_asked_for(cluster: FakeCluster) -> None:
    source, _ = cluster.sources()
    question = Question(broker_id=None, topics=None, is_full=False, layout=None, timeout_s=1.0)
    layout = asyncio.run(source.answer(question))
    assert isinstance(layout, ClusterLayout)
    assert layout.topics is None


def test_an_odd_answer_is_used_and_what_is_odd_is_said_until_it_is_not(
    measure: Measure, cluster: FakeCluster
) -> None:
    odd = {1: ("it holds too much",)}

    class Odd(FakeSource):
        async def answer(self, question: Question) -> Observation:
            assert question.broker_id is not None
            return replace(await super().answer(question), warnings=odd.get(question.broker_id, ()))

    class Partial(FakeSource):
        async def answer(self, question: Question) -> Observation:
            return replace(await super().answer(question), warnings=tuple(unknown))

    unknown = ["a topic is secret"]

    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(1.0)
        assert watched.counter.read().warnings == {
            "cluster_metadata": "a topic is secret",
            "log_dirs of broker 1": "it holds too much",
        }
        assert watched.reachable() == {1, 2, 3}
        odd.clear()
        unknown.clear()
        await asyncio.sleep(6.0)
        assert watched.counter.read().warnings == {}

    measure([Partial(cluster, is_per_broker=False), Odd(cluster, is_per_broker=True)], scenario)
