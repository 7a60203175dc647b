"""The collector's thread: who asks it from outside waits only when they choose to, and close ends it."""

from __future__ import annotations

import threading
import time

import pytest

from kafka_connection import Connection
from telemetry_collector import CollectorClosedError, CollectorConfig, NoFreshSnapshotError
from telemetry_collector.collector import Collector
from telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot

CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
CONFIG = CollectorConfig(
    interval_s=0.05, full_interval_s=0.05, deadline_s=0.1, age_max_s=0.5, backoff_initial_s=0.05
)
SLOW = CollectorConfig(interval_s=600.0, full_interval_s=600.0, age_max_s=1000.0)


def _cluster() -> FakeCluster:
    return FakeCluster(make_snapshot([100, 200, 300], topics={"t": [(1, 2)]}))


def _collector(cluster: FakeCluster, config: CollectorConfig = CONFIG, **kwargs: object) -> Collector:
    return Collector(CONNECTION, config, sources=cluster.sources(), **kwargs)  # type: ignore[arg-type]


def test_a_snapshot_is_measured_after_the_call_when_nothing_older_will_do() -> None:
    cluster = _cluster()
    with _collector(cluster, SLOW) as collector:
        first = collector.snapshot()
        cluster.snapshot = make_snapshot([101, 200, 300])
        assert collector.snapshot(max_age_s=60.0) is first
        before_s = time.time()
        fresh = collector.snapshot(max_age_s=0.0)
        assert fresh.brokers[1].used_bytes == 101
        assert fresh.taken_at_s >= before_s - 0.001
        cached = collector.cache.latest()
        assert cached is not None
        assert cached.snapshot is fresh


def test_the_cache_is_filled_in_the_background() -> None:
    cluster = _cluster()
    with _collector(cluster) as collector:
        collector.snapshot()
        cluster.snapshot = make_snapshot([7])
        has_come = threading.Event()
        for _ in range(500):
            cached = collector.cache.latest()
            assert cached is not None
            if cached.snapshot.brokers[1].used_bytes == 7:
                break
            has_come.wait(0.01)
        else:
            pytest.fail("the cache kept the old snapshot for 5 s")


def test_without_an_answer_in_time_the_error_says_what_each_question_failed_of() -> None:
    cluster = _cluster()
    cluster.killed |= {1, 2, 3}
    with _collector(cluster) as collector, pytest.raises(NoFreshSnapshotError) as raised:
        collector.snapshot(timeout_s=0.5)
    assert raised.value.bootstrap_servers == "127.0.0.1:1"
    assert raised.value.reasons["cluster_metadata"] == "connection refused"


def test_an_unreachable_broker_does_not_keep_a_snapshot_from_being_fresh() -> None:
    cluster = _cluster()
    with _collector(cluster) as collector:
        collector.snapshot()
        cluster.paused.add(2)
        snapshot = collector.snapshot(max_age_s=0.0)
        assert not snapshot.brokers[2].is_reachable
        assert snapshot.brokers[1].is_reachable


def test_closing_leaves_no_thread_and_closes_the_sources() -> None:
    cluster = _cluster()
    cluster.paused |= {1, 2}
    threads_before = threading.active_count()
    sources = cluster.sources()
    collector = Collector(CONNECTION, CONFIG, sources=sources).start()
    collector.start()  # does nothing more
    assert threading.active_count() == threads_before + 1
    collector.close()
    collector.close()
    assert threading.active_count() == threads_before
    assert all(source._is_closed for source in sources)


def test_closing_at_once_after_starting_is_fine() -> None:
    for _ in range(20):
        with _collector(_cluster()):
            pass


def test_closing_wakes_whoever_waits_for_a_snapshot() -> None:
    cluster = _cluster()
    cluster.paused |= {1, 2, 3}
    collector = _collector(cluster).start()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            collector.snapshot(timeout_s=60.0)
        except CollectorClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    collector.close()
    waiting.join(5.0)
    assert not waiting.is_alive()
    assert [str(error) for error in raised] == [
        "the collector doesn't run: it has been closed; make another one"
    ]


def test_a_closed_collector_keeps_its_last_snapshot_and_measures_no_more() -> None:
    with _collector(_cluster()) as collector:
        snapshot = collector.snapshot()
    collector.refresh()
    collector.watch(["x"])
    cached = collector.cache.latest()
    assert cached is not None
    assert cached.snapshot.brokers == snapshot.brokers
    with pytest.raises(CollectorClosedError, match="has been closed"):
        collector.snapshot()
    with pytest.raises(CollectorClosedError, match="has been closed"):
        collector.start()


def test_a_collector_that_was_not_started_says_so() -> None:
    with pytest.raises(CollectorClosedError, match=r"call start\(\)"):
        _collector(_cluster()).snapshot()


def test_topics_watched_before_and_after_the_start_are_measured() -> None:
    cluster = _cluster()
    cluster.snapshot = make_snapshot([1], topics={name: [(1,)] for name in "abcd"})
    collector = _collector(cluster, SLOW, topics=["a"])
    collector.watch(["b"])
    with collector:
        assert set(collector.snapshot().topics) == {"a", "b"}
        collector.watch(["c"])
        assert set(collector.snapshot(max_age_s=0.0).topics) == {"a", "b", "c"}


def test_a_failure_of_the_loop_itself_reaches_the_caller_and_the_cache_grows_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _collector(_cluster()) as collector:
        collector.snapshot()

        def broken(_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(collector.cache, "put", broken)
        with pytest.raises(CollectorClosedError, match="it failed") as raised:
            collector.snapshot(max_age_s=0.0)
        assert isinstance(raised.value.__cause__, ExceptionGroup)
        collector.refresh()  # the produce path never raises because telemetry is bad


def test_faults_of_a_source_are_counted_and_the_collector_goes_on() -> None:
    cluster = _cluster()
    layout, log_dirs = cluster.sources()
    assert isinstance(log_dirs, FakeSource)
    log_dirs.fault = ZeroDivisionError("a bug")
    with Collector(CONNECTION, CONFIG, sources=[layout, log_dirs]) as collector:
        with pytest.raises(NoFreshSnapshotError, match="ZeroDivisionError"):
            collector.snapshot(timeout_s=0.3)
        assert collector.statistics.num_faults["log_dirs"] > 0
        log_dirs.fault = None
        assert collector.snapshot().brokers[1].used_bytes == 100
        assert collector.statistics.failures == {}
