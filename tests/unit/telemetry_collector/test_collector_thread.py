"""The thread of one's own collector: sources and failures. What holds for any is in test_any_collector.py."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import (
    ClusterSnapshot,
    CollectorClosedError,
    CollectorConfig,
    NoFreshSnapshotError,
)
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.errors import ClusterChangedError
from evenload.telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot

WaitUntil = Callable[[Callable[[], bool]], None]

CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
CONFIG = CollectorConfig(
    interval_s=0.05, full_interval_s=0.05, deadline_s=0.1, age_max_s=120.0, backoff_initial_s=0.05
)


def _cluster() -> FakeCluster:
    return FakeCluster(make_snapshot([100, 200, 300], topics={"t": [(1, 2)]}))


def _collector(cluster: FakeCluster) -> Collector:
    return Collector(CONNECTION, CONFIG, sources=cluster.sources())


def test_without_an_answer_in_time_the_error_says_what_each_question_failed_of(
    wait_until: WaitUntil,
) -> None:
    cluster = _cluster()
    cluster.killed |= {1, 2, 3}
    with _collector(cluster) as collector:
        wait_until(lambda: "cluster_metadata" in collector.statistics.failures)
        with pytest.raises(NoFreshSnapshotError) as raised:
            collector.snapshot(timeout_s=0.05)
    assert raised.value.bootstrap_servers == "127.0.0.1:1"
    assert raised.value.reasons["cluster_metadata"] == "connection refused"


def test_an_unreachable_broker_does_not_keep_a_snapshot_from_being_fresh(wait_until: WaitUntil) -> None:
    cluster = _cluster()
    with _collector(cluster) as collector:
        collector.snapshot()
        cluster.paused.add(2)
        collector.snapshot(max_age_s=0.0)
        wait_until(lambda: not collector.snapshot().brokers[2].is_reachable)
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


def _used_bytes(snapshot: ClusterSnapshot) -> int | None:
    broker = snapshot.brokers.get(1)
    return None if broker is None else broker.used_bytes


def test_faults_of_a_source_are_counted_and_the_collector_goes_on(wait_until: WaitUntil) -> None:
    cluster = _cluster()
    layout, log_dirs = cluster.sources()
    assert isinstance(log_dirs, FakeSource)
    log_dirs.fault = ZeroDivisionError("a bug")
    with Collector(CONNECTION, CONFIG, sources=[layout, log_dirs]) as collector:
        wait_until(lambda: "ZeroDivisionError" in str(collector.statistics.failures))
        with pytest.raises(NoFreshSnapshotError, match="ZeroDivisionError"):
            collector.snapshot(timeout_s=0.05)
        assert collector.statistics.num_faults["log_dirs"] > 0
        log_dirs.fault = None
        # The first measurement may have asked some brokers before: those are asked again.
        wait_until(
            lambda: (
                _used_bytes(collector.snapshot(max_age_s=0.0)) == 100 and collector.statistics.failures == {}
            )
        )


def test_a_collector_for_its_own_process_follows_when_another_cluster_answers(
    wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = _cluster()
    with _collector(cluster) as collector:
        collector.snapshot()
        assert collector.statistics.num_cluster_changes == 0
        cluster.snapshot = make_snapshot([7], cluster_id="another", topics={"t": [(1,)]})
        wait_until(
            lambda: (
                (cached := collector.cache.latest()) is not None and cached.snapshot.cluster_id == "another"
            )
        )
        assert set(collector.snapshot().brokers) == {1}
        assert collector.statistics.num_cluster_changes == 1
        wait_until(lambda: not collector.statistics.failures)  # of brokers that only the last one had
    assert (
        "the brokers at 127.0.0.1:1 belong to cluster 'another' now, not to 'test-cluster'; "
        "shares are even until it is measured"
    ) in caplog.text


def test_what_is_known_of_a_cluster_is_forgotten_when_another_one_answers(wait_until: WaitUntil) -> None:
    cluster = _cluster()
    with _collector(cluster) as collector:
        collector.snapshot()
        cluster.snapshot = make_snapshot([7, 8], cluster_id="another")
        cluster.paused |= {1}  # nothing is published until it has been given up
        wait_until(lambda: collector.statistics.num_cluster_changes == 1)
        cached = collector.cache.latest()
        assert cached is None or cached.snapshot.cluster_id == "another"


def test_a_collector_for_many_ends_with_a_sentence_when_another_cluster_answers(
    wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = _cluster()
    collector = Collector(CONNECTION, CONFIG, sources=cluster.sources(), is_for_many=True)
    with collector:
        collector.snapshot()
        cluster.snapshot = make_snapshot([7], cluster_id="another")

        wait_until(lambda: collector._failure is not None)
        with pytest.raises(ClusterChangedError) as raised:
            collector.check_runs()
        with pytest.raises(ClusterChangedError):
            collector.snapshot(max_age_s=0.0)
    assert str(raised.value) == (
        "the brokers at 127.0.0.1:1 belong to cluster 'another' now, not to 'test-cluster', which was "
        "measured so far; start the collector again to measure that one"
    )
    assert "Traceback" not in caplog.text
