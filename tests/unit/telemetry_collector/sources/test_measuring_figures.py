"""Figures that follow from several answers: rates, latencies and ages, and metrics that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.source import Question, Source
from evenload.telemetry_collector.testing import FakeCluster, FakeMetricsSource

CONFIG = CollectorConfig(interval_s=5.0, full_interval_s=30.0, deadline_s=3.0, jitter=0.0)

# What conftest.py makes.
Watched = Any
Measure = Callable[..., Watched]
NewCluster = Callable[[], FakeCluster]


def _with_metrics(cluster: FakeCluster, *names: str) -> tuple[list[Source], list[FakeMetricsSource]]:
    added = [FakeMetricsSource(cluster, name) for name in names or ("metrics",)]
    return [*cluster.sources(), *added], added


def _told(latency_s: float) -> BrokerMetrics:
    return BrokerMetrics(request_latency_s=latency_s)


def test_metrics_are_in_the_next_snapshot_beside_what_brokers_say_themselves(
    measure: Measure, cluster: FakeCluster
) -> None:
    cluster.metrics = {1: _told(0.01), 3: _told(0.03)}
    sources, _ = _with_metrics(cluster)
    watched = measure(sources, lambda _: asyncio.sleep(11.0))
    latencies = {broker_id: broker.request_latency_s for broker_id, broker in watched.latest.brokers.items()}
    assert latencies == {1: 0.01, 2: None, 3: 0.03}
    assert watched.reachable() == {1, 2, 3}


def test_metrics_that_fail_or_stay_out_change_neither_who_is_reachable_nor_when_snapshots_come(
    measure: Measure, new_cluster: NewCluster
) -> None:
    def published(source: str) -> list[tuple[float, set[int], float]]:
        cluster = new_cluster()
        cluster.delay_s = {1: 0.1, 2: 0.2}
        sources, (metrics,) = _with_metrics(cluster)
        if source == "silent":
            metrics.is_silent = True
        elif source == "failing":
            metrics.fault = ZeroDivisionError("a bug")
        elif source == "absent":
            sources.remove(metrics)
        watched = measure(sources, lambda _: asyncio.sleep(120.0))
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


def test_a_latency_is_forgotten_when_its_source_falls_silent(measure: Measure, cluster: FakeCluster) -> None:
    cluster.metrics = {1: _told(0.01)}
    sources, (metrics,) = _with_metrics(cluster)
    config = CONFIG.model_copy(update={"metrics_interval_s": 10.0})

    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(11.0)
        metrics.is_silent = True
        await asyncio.sleep(15.0)
        assert watched.latest.brokers[1].request_latency_s == 0.01
        await asyncio.sleep(30.0)
        assert watched.latest.brokers[1].request_latency_s is None

    measure(sources, scenario, config=config)


def test_metrics_have_a_deadline_of_their_own(measure: Measure, cluster: FakeCluster) -> None:
    sources, (metrics,) = _with_metrics(cluster)
    metrics.is_silent = True
    config = CONFIG.model_copy(update={"metrics_deadline_s": 7.0})
    watched = measure(sources, lambda _: asyncio.sleep(7.1), config=config)
    assert watched.counter.read().failures["metrics of broker 1"] == "no answer within 7 s"
    assert watched.reachable() == {1, 2, 3}


def test_a_refresh_asks_no_exporter(measure: Measure, cluster: FakeCluster) -> None:
    asked: list[int | None] = []

    class Noting(FakeMetricsSource):
        async def answer(self, question: Question) -> BrokerMetrics:
            asked.append(question.broker_id)
            return await super().answer(question)

    async def scenario(watched: Watched) -> None:
        for _ in range(20):
            await asyncio.sleep(0.4)
            watched.measuring.refresh()

    measure([*cluster.sources(), Noting(cluster)], scenario)
    assert sorted(asked) == [1, 2, 3]  # type: ignore[type-var]


def test_what_comes_in_follows_from_what_is_held_and_better_from_a_counter(
    measure: Measure, cluster: FakeCluster
) -> None:
    sources, _ = _with_metrics(cluster)

    async def scenario(watched: Watched) -> None:
        start = cluster.snapshot
        for second in range(100):
            # Broker 1 grows by 100 a second; broker 2 by 100, and retention takes 1,000 each tenth second;
            # broker 3 by as much as is deleted, so that only its metrics know.
            used = {1: 100 * second, 2: 1000 + 100 * second - 1000 * (second // 10), 3: 300}
            brokers = {b: replace(x, used_bytes=used[b]) for b, x in start.brokers.items()}
            cluster.snapshot = replace(start, brokers=brokers)
            cluster.metrics = {3: BrokerMetrics(received_bytes=5000.0 * second)}
            await asyncio.sleep(1.0)
        rates = {b: broker.ingest_bytes_per_s for b, broker in watched.latest.brokers.items()}
        assert rates == {
            1: pytest.approx(100, rel=0.1),
            2: pytest.approx(100, rel=0.1),
            3: pytest.approx(5000, rel=0.1),
        }

    measure(sources, scenario)


def test_a_broker_that_was_away_and_comes_back_fuller_brings_no_spike(
    measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(watched: Watched) -> None:
        await asyncio.sleep(12.0)
        cluster.paused.add(2)
        await asyncio.sleep(30.0)
        brokers = {**cluster.snapshot.brokers, 2: replace(cluster.snapshot.brokers[2], used_bytes=10**12)}
        cluster.snapshot = replace(cluster.snapshot, brokers=brokers)
        cluster.paused.clear()
        for _ in range(60):
            await asyncio.sleep(1.0)
            assert not watched.latest.brokers[2].ingest_bytes_per_s
        assert 2 in watched.reachable()

    measure(cluster.sources(), scenario)


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_ages_and_rates_stay_right_when_the_wall_clock_is_set(
    jump_s: float, measure: Measure, cluster: FakeCluster
) -> None:
    async def scenario(watched: Watched) -> None:
        cluster.paused.add(3)
        for second in range(120):
            if second == 60:
                watched.wall_jump_s = jump_s
            brokers = {**cluster.snapshot.brokers}
            brokers[1] = replace(brokers[1], used_bytes=1000 * second)
            cluster.snapshot = replace(cluster.snapshot, brokers=brokers)
            await asyncio.sleep(1.0)
            if second < 20 or 60 <= second < 66:  # what was published before is as old as it was
                continue
            assert watched.latest.age_s(watched.wall_now_s()) <= CONFIG.interval_s + 0.3
            assert watched.latest.brokers[1].ingest_bytes_per_s == pytest.approx(1000)
            since_s = watched.latest.brokers[3].unreachable_since_s
            assert since_s is not None
            assert watched.wall_now_s() - since_s == pytest.approx(second + 1, abs=0.01)

    measure(cluster.sources(), scenario)
