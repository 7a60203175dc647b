"""The conversations with a cluster that falls silent, lies or goes away: what is said of whom, how soon."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.errors import BrokerUnreachableError, ClusterChangedError
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.sources.source import Observation, Question
from evenload.telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot

WALL_BEGIN_S = 1e9
CONFIG = CollectorConfig(interval_s=5.0, full_interval_s=30.0, deadline_s=3.0, jitter=0.0)

# What conftest.py makes.
Watched = Any
Measure = Callable[..., Watched]
NewCluster = Callable[[], FakeCluster]


# From when a broker is asked in vain: three deadlines, and the backoffs between them.
LEFT_WITHIN_S = 3 * CONFIG.deadline_s + CONFIG.backoff_initial_s * (1 + 2)


def _left_at_s(watched: Watched, broker_id: int) -> float:
    return next(at for at, a in watched.published if not a.snapshot.brokers[broker_id].is_reachable)


@pytest.mark.parametrize("is_silent", [True, False])
def test_one_or_two_missed_answers_in_a_row_veto_nobody(
    measure: Measure, cluster: FakeCluster, is_silent: bool
) -> None:
    class Losing(FakeSource):
        """Broker 2 misses some of its questions, never three in a row."""

        outcomes = itertools.cycle(["answers", "misses", "answers", "misses", "misses"])

        async def answer(self, question: Question) -> Observation:
            if question.broker_id == 2 and next(self.outcomes) == "misses":
                await asyncio.sleep(question.timeout_s if is_silent else 0.0)
                raise BrokerUnreachableError(2, "lost")
            return await super().answer(question)

    layout, _ = cluster.sources()
    watched = measure([layout, Losing(cluster, is_per_broker=True)], lambda _: asyncio.sleep(600.0))
    assert watched.counter.read().num_failures["log_dirs"] > 60
    assert all(broker.is_reachable for _, a in watched.published for broker in a.snapshot.brokers.values())
    # While it was late, the others' figures stayed fresh.
    assert max(watched.ages_s()) <= CONFIG.interval_s + CONFIG.deadline_s


def test_a_missed_answer_and_the_clusters_word_are_enough(measure: Measure, cluster: FakeCluster) -> None:
    layout, log_dirs = cluster.sources()

    async def dies(_: Watched) -> None:
        await asyncio.sleep(6.0)
        cluster.killed.add(2)
        await asyncio.sleep(20.0)

    watched = measure([layout, log_dirs], dies)
    assert _left_at_s(watched, 2) == pytest.approx(10.0, abs=0.01)  # as soon as it is asked
    assert watched.latest.brokers[2].unreachable_since_s == WALL_BEGIN_S + 10.0


def test_a_missed_answer_of_a_broker_that_was_deposed_is_enough(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def hangs(_: Watched) -> None:
        await asyncio.sleep(6.0)
        cluster.paused.add(2)
        after = make_snapshot([100, 200, 300], topics={"t": [(1, 2), (3, 2)], "u": [(3, 1)]})
        cluster.snapshot = replace(
            after,
            topics={
                topic: {
                    number: replace(at, isr_ids=tuple(each for each in at.isr_ids if each != 2))
                    for number, at in partitions.items()
                }
                for topic, partitions in after.topics.items()
            },
        )
        await asyncio.sleep(20.0)

    watched = measure(cluster.sources(), hangs, topics=["t", "u"])
    assert _left_at_s(watched, 2) == pytest.approx(10.0 + CONFIG.deadline_s, abs=0.01)


def test_the_cluster_is_asked_at_once_when_a_broker_misses_and_not_for_ever(
    measure: Measure, cluster: FakeCluster
) -> None:
    layout, log_dirs = cluster.sources()

    async def scenario(_: Watched) -> None:
        await asyncio.sleep(6.0)
        cluster.paused.add(2)
        await asyncio.sleep(7.1)  # asked at 10 s, missed at 13 s
        layout.questions.clear()
        await asyncio.sleep(600.0)

    measure([layout, log_dirs], scenario)
    # The ticks', and one for each missed answer that wasn't enough.
    assert len(layout.questions) <= 600.0 / CONFIG.interval_s + 2


def test_a_paused_broker_is_unreachable_in_time_and_delays_nobody(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(6.0)
        cluster.paused.add(2)
        await asyncio.sleep(3600.0)
        assert watched.reachable() == {1, 3}
        assert watched.latest.brokers[2].used_bytes == 200
        assert watched.latest.brokers[2].unreachable_since_s == WALL_BEGIN_S + 10.0
        cluster.paused.clear()
        await asyncio.sleep(20.0)
        assert watched.reachable() == {1, 2, 3}

    watched = measure(cluster.sources(), scenario)
    unreachable_at_s = _left_at_s(watched, 2)
    assert 10.0 + 3 * CONFIG.deadline_s < unreachable_at_s < 10.0 + LEFT_WITHIN_S
    assert max(watched.ages_s()) <= CONFIG.interval_s + CONFIG.deadline_s
    after_s = [assembled.measured_at_s for at, assembled in watched.published if at > unreachable_at_s]
    assert after_s[-1] > 3600.0
    steps_s = [b - a for a, b in itertools.pairwise(after_s)]
    assert max(steps_s) <= CONFIG.interval_s + 0.01
    # Nor are the others' figures held back while the paused one is tried again.
    first_at_s = {measured: at for at, (_, measured, _) in reversed(watched.published) if at > 3600.0 / 2}
    assert max(at - measured for measured, at in first_at_s.items() if 1900.0 < measured < 3600.0) < 0.01


def test_a_source_that_never_gives_up_is_given_up_after_the_deadline(
    measure: Measure, cluster: FakeCluster
) -> None:
    class Hanging(FakeSource):
        async def answer(self, question: Question) -> Observation:
            if question.broker_id == 3:
                await asyncio.Event().wait()
            return await super().answer(question)

    layout, _ = cluster.sources()
    watched = measure([layout, Hanging(cluster, is_per_broker=True)], lambda _: asyncio.sleep(60.0))
    assert watched.published[0][0] == pytest.approx(CONFIG.deadline_s, abs=0.5)
    assert watched.reachable() == {1, 2}
    assert watched.counter.read().failures == {"log_dirs of broker 3": "no answer within 3 s"}


def test_slow_brokers_are_waited_for_a_moment_and_then_the_others_are_published(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(_: Watched) -> None:
        await asyncio.sleep(4.0)
        cluster.delay_s = {2: 2.0}
        cluster.snapshot = make_snapshot([111, 222, 333])
        await asyncio.sleep(4.0)

    watched = measure(cluster.sources(), scenario)
    seen = [
        (round(at, 2), [b.used_bytes for b in a.snapshot.brokers.values()]) for at, a in watched.published
    ]
    assert seen[-2:] == [(5.25, [111, 200, 333]), (7.0, [111, 222, 333])]
    # Until the slow one has answered, the snapshot is as old as what is known of that one.
    assert watched.published[-2][1].measured_at_s == 0.0
    assert watched.published[-1][1].measured_at_s == 5.0


@pytest.mark.parametrize("is_per_broker", [False, True])
def test_an_unexpected_error_ends_a_question_and_is_counted_with_its_reason(
    is_per_broker: bool, measure: Measure, cluster: FakeCluster
) -> None:
    sources = cluster.sources()
    faulty = sources[is_per_broker]

    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(7.0)
        num_before = len(watched.published)
        faulty.fault = ZeroDivisionError("a bug")
        await asyncio.sleep(60.0)
        statistics = watched.counter.read()
        assert statistics.num_faults[faulty.name] == statistics.num_failures[faulty.name] > 0
        assert "ZeroDivisionError('a bug')" in set(statistics.failures.values())
        # Nothing was measured, so nothing may look fresh.
        assert {a.measured_at_s for _, a in watched.published[num_before:]} <= {5.0}
        faulty.fault = None
        await asyncio.sleep(60.0)

    watched = measure(sources, scenario)
    assert watched.reachable() == {1, 2, 3}
    assert watched.counter.read().failures == {}
    assert watched.published[-1][1].measured_at_s > 120.0


def test_an_impossible_answer_is_a_fault_and_never_reaches_a_snapshot(
    measure: Measure, cluster: FakeCluster
) -> None:
    class Lying(FakeSource):
        async def answer(self, question: Question) -> Observation:
            observation = await super().answer(question)
            return replace(observation, used_bytes=-1) if question.broker_id == 1 else observation

    layout, _ = cluster.sources()
    watched = measure([layout, Lying(cluster, is_per_broker=True)], lambda _: asyncio.sleep(20.0))
    assert watched.reachable() == {2, 3}
    assert watched.counter.read().num_faults["log_dirs"] > 0


def test_a_broker_that_the_cluster_lists_again_is_asked_at_once(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(2.0)
        cluster.killed.add(3)
        await asyncio.sleep(600.0)  # the backoff is at its longest by now
        cluster.killed.clear()
        came_back_at_s = watched.loop.time()
        while 3 not in watched.reachable():
            await asyncio.sleep(0.1)
        assert watched.loop.time() - came_back_at_s <= CONFIG.interval_s + 0.1

    measure(cluster.sources(), scenario)


def test_a_dead_broker_is_asked_more_and_more_seldom(measure: Measure, cluster: FakeCluster) -> None:
    cluster.killed.add(3)
    cluster.snapshot = make_snapshot([1, 2, 3], topics={"t": [(3, 1)]})  # a replica still refers to it
    asked_at_s: list[float] = []

    class Noting(FakeSource):
        async def answer(self, question: Question) -> Observation:
            if question.broker_id == 3:
                asked_at_s.append(asyncio.get_running_loop().time())
            return await super().answer(question)

    layout, _ = cluster.sources()
    measure([layout, Noting(cluster, is_per_broker=True)], lambda _: asyncio.sleep(300.0))
    waits_s = [b - a for a, b in itertools.pairwise(asked_at_s)]
    assert waits_s[0] <= 0.5
    assert all(7.5 <= wait_s <= 15.0 for wait_s in waits_s[6:])
    assert len(waits_s) > 20


def test_a_stray_answer_of_another_cluster_is_refused(measure: Measure, cluster: FakeCluster) -> None:
    ours, others = cluster.snapshot, make_snapshot([9, 9, 9], cluster_id="another")

    class Stray(FakeSource):
        """Two clusters are behind the addresses; the other one answers now and then."""

        async def answer(self, question: Question) -> Observation:
            cluster.snapshot = others if len(self.questions) % 2 else ours
            observation = await super().answer(question)
            cluster.snapshot = ours
            return observation

    _, log_dirs = cluster.sources()

    async def scenario(watched: Watched) -> None:
        reasons = set()
        for _ in range(240):
            await asyncio.sleep(0.25)
            reasons.add(watched.counter.read().failures.get("cluster_metadata"))
        assert reasons == {None, "it belongs to cluster 'another', not to 'test-cluster'"}

    watched = measure([Stray(cluster, is_per_broker=False), log_dirs], scenario)
    assert {a.snapshot.cluster_id for _, a in watched.published} == {"test-cluster"}


def test_measuring_ends_when_another_cluster_answers_and_nothing_of_it_was_published(
    measure: Measure, cluster: FakeCluster
) -> None:
    watched: list[Watched] = []

    async def scenario(measured: Watched) -> None:
        watched.append(measured)
        await asyncio.sleep(1.0)
        cluster.snapshot = make_snapshot([9, 9, 9], cluster_id="another")
        await asyncio.sleep(20.0)

    with pytest.raises(ClusterChangedError) as raised:
        measure(cluster.sources(), scenario)
    assert (raised.value.known_id, raised.value.found_id) == ("test-cluster", "another")
    assert {a.snapshot.cluster_id for _, a in watched[0].published} == {"test-cluster"}
    assert watched[0].published[-1][0] < 1.0 + CONFIG.interval_s + CONFIG.backoff_initial_s + 0.5


def test_without_any_broker_the_last_snapshot_grows_old_and_says_who_is_gone(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(_: Watched) -> None:
        await asyncio.sleep(6.0)
        cluster.paused |= {1, 2, 3}
        await asyncio.sleep(60.0)

    watched = measure(cluster.sources(), scenario)
    assert watched.reachable() == set()
    assert watched.latest.taken_at_s == WALL_BEGIN_S + 5.0
    assert [b.used_bytes for b in watched.latest.brokers.values()] == [100, 200, 300]


def test_nothing_is_published_before_every_known_broker_was_asked_once(
    measure: Measure, cluster: FakeCluster
) -> None:
    cluster.paused.add(1)
    watched = measure(cluster.sources(), lambda _: asyncio.sleep(2.9))
    assert watched.published == []


def test_stopping_in_the_middle_of_everything_leaves_no_task(measure: Measure, cluster: FakeCluster) -> None:
    cluster.paused |= {1, 2}
    for stop_after_s in (0.0, 0.001, 1.0, 3.0, 3.1, 17.3):
        measure(cluster.sources(), lambda _, wait_s=stop_after_s: asyncio.sleep(wait_s))  # type: ignore[misc]


def test_an_error_in_what_publishes_is_raised_to_whoever_runs_it(
    measure: Measure, new_cluster: NewCluster
) -> None:
    async def scenario(watched: Watched) -> None:
        def broken(_: Assembled) -> None:
            raise ZeroDivisionError("a bug")

        watched.measuring._publish = broken
        await asyncio.sleep(1.0)

    with pytest.raises(ExceptionGroup) as raised:
        measure(new_cluster().sources(), scenario)
    assert raised.group_contains(ZeroDivisionError, match="a bug")
