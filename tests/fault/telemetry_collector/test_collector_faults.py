"""Brokers die and freeze under a collector: it says so, and the others are not held up.

How soon, tests/unit/telemetry_collector/sources/test_measuring_outages.py says: there, time is virtual.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kafka.net.selector import NetworkSelector

from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.telemetry_collector import CachedSnapshot, CollectorConfig, NoFreshSnapshotError
from evenload.telemetry_collector.collector import Collector, sample_once

CONFIG = CollectorConfig(
    interval_s=0.3,
    full_interval_s=1.0,
    deadline_s=5.0,
    hedge_delay_s=0.2,
    age_max_s=8.0,
    backoff_initial_s=0.1,
    backoff_max_s=1.0,
)
PATIENCE_S = 120.0


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


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail("it never came true")
        pause.wait(0.01)


def _wait_until_reachable_are(collector: Collector, expected: set[int]) -> None:
    """Wait until exactly these brokers are reachable in the cache."""
    _wait_until(lambda: _reachable(_latest(collector)) == expected)


class _Reader:
    """Reads a collector's cache again and again in a thread, as a producer does."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.times_s: set[float] = set()

    def _read(self) -> None:
        while not self._has_ended.wait(0.001):
            self.times_s.add(_latest(self._collector).snapshot.taken_at_s)

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
def test_a_broken_broker_is_unreachable_and_back_after_its_repair(cluster: LocalCluster, kind: str) -> None:
    with Collector(cluster.connection, CONFIG) as collector:
        before = collector.snapshot().brokers[2]
        question = "log_dirs of broker 2"
        broken_at_s = time.time()
        repair = _broken(cluster, kind, 2)
        with _Reader(collector).running() as reader:
            try:
                _wait_until_reachable_are(collector, {1, 3})
                unreachable = _latest(collector).snapshot.brokers[2]
                assert unreachable.unreachable_since_s is not None
                # A question that was on its way when the broker broke was asked a moment before.
                assert broken_at_s - PATIENCE_S < unreachable.unreachable_since_s < time.time()
                assert unreachable.used_bytes == before.used_bytes
                # The cluster takes about 9 s to notice by itself; watch the others until then.
                _wait_until(lambda: "doesn't list it" in collector.statistics.failures.get(question, ""))
                _wait_until_reachable_are(collector, {1, 3})
                seen = set(reader.times_s)
                _wait_until(lambda: len(reader.times_s - seen) > 5)  # the others' figures are renewed
                fresh = collector.snapshot(max_age_s=0.0, timeout_s=PATIENCE_S)
                assert fresh.brokers[2].unreachable_since_s is not None
            finally:
                repair()
            _wait_until_reachable_are(collector, {1, 2, 3})


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

            def is_tried_often() -> bool:
                collector.refresh()
                return collector.statistics.num_failures["log_dirs"] > 20

            _wait_until(is_tried_often)
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


def test_without_any_broker_snapshots_grow_stale_and_a_demand_fails(
    cluster: LocalCluster,
) -> None:
    with Collector(cluster.connection, CONFIG) as collector:
        collector.snapshot()
        for broker_id in cluster.broker_ids:
            cluster.pause_broker(broker_id)
        try:
            _wait_until_reachable_are(collector, set())
            with pytest.raises(NoFreshSnapshotError, match="log_dirs of broker 1: ") as raised:
                collector.snapshot(max_age_s=0.0, timeout_s=0.5)
            assert set(raised.value.reasons) >= {f"log_dirs of broker {b}" for b in cluster.broker_ids}
            _wait_until(lambda: _latest(collector).is_stale)
            collector.close()
            assert "evenload-collector" not in [thread.name for thread in threading.enumerate()]
        finally:
            for broker_id in cluster.broker_ids:
                cluster.resume_broker(broker_id)
    # A broker that has just woken up can be late for once, or not be listed yet.
    _wait_until(lambda: sample_once(cluster.connection, timeout_s=PATIENCE_S).brokers[1].is_reachable)


def test_a_collector_may_start_before_its_cluster(
    cluster: LocalCluster,
) -> None:
    threads = set(threading.enumerate())
    for broker_id in cluster.broker_ids:
        cluster.kill_broker(broker_id)
    with Collector(cluster.connection, CONFIG) as collector:
        _wait_until(lambda: "ECONNREFUSED" in str(collector.statistics.failures))
        with pytest.raises(NoFreshSnapshotError, match="ECONNREFUSED"):
            collector.snapshot(timeout_s=0.1)
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
