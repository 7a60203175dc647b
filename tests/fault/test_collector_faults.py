"""Brokers die and freeze under a collector: it says so in time, and the others are not held up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kafka.net.selector import NetworkSelector

from evenload.local_cluster import LocalCluster, temporary_cluster
from telemetry_collector import CachedSnapshot, CollectorConfig, NoFreshSnapshotError
from telemetry_collector.collector import Collector, sample_once

CONFIG = CollectorConfig(
    interval_s=0.3,
    full_interval_s=1.0,
    deadline_s=1.0,
    hedge_delay_s=0.2,
    age_max_s=4.0,
    backoff_initial_s=0.1,
    backoff_max_s=1.0,
)
# A question may be asked an interval after a broker fell silent, and is given up at the deadline.
NOTICED_WITHIN_S = CONFIG.interval_s * 1.1 + CONFIG.deadline_s
SLACK_S = 1.0  # two cores, shared with the brokers
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster to break; each test leaves it whole."""
    with temporary_cluster(num_brokers=3) as cluster:
        yield cluster


def _latest(collector: Collector) -> CachedSnapshot:
    cached = collector.cache.latest()
    assert cached is not None
    return cached


def _reachable(cached: CachedSnapshot) -> set[int]:
    return {b for b, broker in cached.snapshot.brokers.items() if broker.is_reachable}


def _wait_until(condition: Callable[[], bool]) -> float:
    """Seconds until the condition holds; fails after a while."""
    began_at_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        assert time.monotonic() - began_at_s < PATIENCE_S, "it never came true"
        pause.wait(0.01)
    return time.monotonic() - began_at_s


def _wait_until_reachable_are(collector: Collector, expected: set[int]) -> float:
    """Seconds until exactly these brokers are reachable in the cache."""
    return _wait_until(lambda: _reachable(_latest(collector)) == expected)


class _Reader:
    """Reads a collector's cache again and again in a thread, as a producer does."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.age_max_s = 0.0
        self.read_times_s: list[float] = []

    def _read(self) -> None:
        while not self._has_ended.wait(0.001):
            began_at_s = time.perf_counter()
            cached = self._collector.cache.latest()
            self.read_times_s.append(time.perf_counter() - began_at_s)
            assert cached is not None
            self.age_max_s = max(self.age_max_s, cached.age_s)

    @contextmanager
    def running(self) -> Iterator[_Reader]:
        self._thread.start()
        try:
            yield self
        finally:
            self._has_ended.set()
            self._thread.join()


def _broken(cluster: LocalCluster, kind: str, broker_id: int) -> Callable[[], None]:
    """Break a broker; returns how to repair it."""
    if kind == "killed":
        cluster.kill_broker(broker_id)
        return lambda: cluster.restart_broker(broker_id)
    cluster.pause_broker(broker_id)
    return lambda: cluster.resume_broker(broker_id)


@pytest.mark.parametrize("kind", ["paused", "killed"])
def test_a_broken_broker_is_unreachable_in_time_and_back_after_its_repair(
    cluster: LocalCluster, kind: str
) -> None:
    with Collector(cluster.connection, CONFIG) as collector:
        before = collector.snapshot().brokers[2]
        question = "log_dirs of broker 2"
        broken_at_s = time.time()
        repair = _broken(cluster, kind, 2)
        with _Reader(collector).running() as reader:
            try:
                noticed_after_s = _wait_until_reachable_are(collector, {1, 3})
                assert noticed_after_s < NOTICED_WITHIN_S + SLACK_S
                unreachable = _latest(collector).snapshot.brokers[2]
                assert unreachable.unreachable_since_s is not None
                # A question that was on its way when the broker broke was asked a moment before.
                silent_after_s = unreachable.unreachable_since_s - broken_at_s
                assert -SLACK_S < silent_after_s < CONFIG.interval_s * 1.1 + SLACK_S
                assert unreachable.used_bytes == before.used_bytes
                # The cluster takes about 9 s to notice by itself; watch the others until then.
                _wait_until(lambda: "doesn't list it" in collector.statistics.failures.get(question, ""))
                assert _reachable(_latest(collector)) == {1, 3}
                fresh = collector.snapshot(max_age_s=0.0, timeout_s=CONFIG.deadline_s)
                assert fresh.brokers[2].unreachable_since_s is not None
            finally:
                repair()
            _wait_until_reachable_are(collector, {1, 2, 3})
        # While one was silent, the figures of the others stayed fresh, and reading never waited.
        assert reader.age_max_s < NOTICED_WITHIN_S + SLACK_S
        assert sorted(reader.read_times_s)[len(reader.read_times_s) * 99 // 100] < 0.001


def test_questions_to_a_paused_broker_do_not_pile_up(cluster: LocalCluster) -> None:
    with Collector(cluster.connection, CONFIG) as collector:
        collector.snapshot()
        threads = set(threading.enumerate())
        files = len(os.listdir("/proc/self/fd"))
        cluster.pause_broker(3)
        try:
            _wait_until_reachable_are(collector, {1, 2})
            for _ in range(30):
                collector.refresh()
                threading.Event().wait(0.1)
            assert set(threading.enumerate()) == threads
            assert len(os.listdir("/proc/self/fd")) <= files + 1
        finally:
            cluster.resume_broker(3)
        _wait_until_reachable_are(collector, {1, 2, 3})


def test_a_dead_broker_costs_no_file_however_often_it_is_tried(cluster: LocalCluster) -> None:
    with Collector(cluster.connection, CONFIG) as collector:
        collector.snapshot()
        files = len(os.listdir("/proc/self/fd"))
        cluster.kill_broker(3)
        try:
            for _ in range(40):
                collector.refresh()
                threading.Event().wait(0.05)
            assert collector.statistics.num_failures["log_dirs"] > 10
            assert len(os.listdir("/proc/self/fd")) <= files + 1
        finally:
            cluster.restart_broker(3)
        _wait_until_reachable_are(collector, {1, 2, 3})


def test_a_collector_that_starts_while_a_broker_is_dead_knows_of_it(cluster: LocalCluster) -> None:
    cluster.kill_broker(1)
    try:
        snapshot = sample_once(cluster.connection)
        assert {b for b, broker in snapshot.brokers.items() if broker.is_reachable} == {2, 3}
        assert snapshot.brokers[1].capacity_bytes == cluster.connection.capacity_bytes_by_broker[1]
    finally:
        cluster.restart_broker(1)


def test_without_any_broker_snapshots_grow_stale_and_a_demand_fails_in_time(
    cluster: LocalCluster,
) -> None:
    with Collector(cluster.connection, CONFIG) as collector:
        collector.snapshot()
        for broker_id in cluster.broker_ids:
            cluster.pause_broker(broker_id)
        try:
            began_at_s = time.monotonic()
            with pytest.raises(NoFreshSnapshotError, match="log_dirs of broker 1: ") as raised:
                collector.snapshot(max_age_s=0.0, timeout_s=3.0)
            assert time.monotonic() - began_at_s < 3.0 + SLACK_S
            assert set(raised.value.reasons) >= {f"log_dirs of broker {b}" for b in cluster.broker_ids}
            _wait_until_reachable_are(collector, set())
            _wait_until(lambda: _latest(collector).is_stale)
            began_at_s = time.monotonic()
            collector.close()
            assert time.monotonic() - began_at_s < SLACK_S
        finally:
            for broker_id in cluster.broker_ids:
                cluster.resume_broker(broker_id)
    assert sample_once(cluster.connection, timeout_s=PATIENCE_S).brokers[1].is_reachable


def test_a_collector_may_start_before_its_cluster(
    cluster: LocalCluster,
) -> None:
    threads = set(threading.enumerate())
    for broker_id in cluster.broker_ids:
        cluster.kill_broker(broker_id)
    with Collector(cluster.connection, CONFIG) as collector:
        with pytest.raises(NoFreshSnapshotError, match="ECONNREFUSED"):
            collector.snapshot(timeout_s=0.5)
        cluster.start()
        assert collector.snapshot(timeout_s=PATIENCE_S).brokers.keys() == set(cluster.broker_ids)
        _wait_until_reachable_are(collector, {1, 2, 3})
    assert set(threading.enumerate()) <= threads


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_death_of_the_clients_own_thread_is_counted_and_outlived(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    with Collector(cluster.connection, CONFIG) as collector:
        collector.snapshot()
        # A fault in kafka-python can't be ordered; a loop that raises is what it would come to.
        with monkeypatch.context() as patched:

            def die(_: NetworkSelector) -> None:
                patched.undo()
                raise ZeroDivisionError("a bug")

            patched.setattr(NetworkSelector, "_schedule_tasks", die)
            _wait_until(lambda: sum(collector.statistics.num_faults.values()) > 0)
        collector.snapshot(max_age_s=0.0)
        _wait_until_reachable_are(collector, {1, 2, 3})
    assert set(threading.enumerate()) <= threads
