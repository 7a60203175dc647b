"""What producers rely on holds whoever measures: a collector of one's own, or a service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal

import pytest

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import CollectorClosedError, CollectorConfig, NoFreshSnapshotError
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.opening import AnyCollector, open_collector
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.client import RemoteCollector
from evenload.telemetry_collector.service.testing import FakeService
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot

CONFIG = CollectorConfig(
    interval_s=0.05, full_interval_s=0.05, deadline_s=0.5, age_max_s=120.0, backoff_initial_s=0.05
)
# It measures once, and then when it is told to; no answer is given up because the machine is busy.
SLOW = CollectorConfig(
    interval_s=3600.0,
    full_interval_s=3600.0,
    age_max_s=10_000.0,
    deadline_s=60.0,
    full_deadline_s=60.0,
    straggler_wait_s=60.0,
)
NOWHERE = Connection(bootstrap_servers="127.0.0.1:1")

MakeCollector = Callable[..., AnyCollector]
WaitUntil = Callable[[Callable[[], bool]], None]


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(make_snapshot([100, 200, 300], topics={"t": [(1, 2)], "u": [(3,)], "v": [(2,)]}))


@pytest.fixture(params=["own", "service"])
def make(request: pytest.FixtureRequest, cluster: FakeCluster) -> Iterator[MakeCollector]:
    """Makes collectors that measure `cluster`."""
    kind: Literal["own", "service"] = request.param
    with ExitStack() as stack:

        def make_one(config: CollectorConfig = CONFIG, topics: tuple[str, ...] | None = ()) -> AnyCollector:
            if kind == "own":
                return Collector(NOWHERE, config, topics, sources=cluster.sources())
            service = stack.enter_context(FakeService(cluster))
            connection = NOWHERE.model_copy(update={"collector_url": service.url})
            return RemoteCollector(connection, config, topics, make_sources=cluster.sources)

        yield make_one


def test_a_snapshot_is_measured_after_the_call_when_nothing_older_will_do(
    make: MakeCollector, cluster: FakeCluster, wait_until: WaitUntil
) -> None:
    with make(SLOW) as collector:
        # Who asks before there is a snapshot has everything measured again.
        wait_until(lambda: collector._assembled is not None)
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


def test_the_cache_is_filled_in_the_background(
    make: MakeCollector, cluster: FakeCluster, wait_until: WaitUntil
) -> None:
    with make() as collector:
        collector.snapshot()
        cluster.snapshot = make_snapshot([7])

        def is_there() -> bool:
            cached = collector.cache.latest()
            return cached is not None and cached.snapshot.brokers[1].used_bytes == 7

        wait_until(is_there)


def test_topics_watched_before_and_after_the_start_are_measured(make: MakeCollector) -> None:
    collector = make(SLOW, ("t",))
    collector.watch(["u"])
    with collector:
        assert set(collector.snapshot().topics) == {"t", "u"}
        collector.watch(["v"])
        assert set(collector.snapshot(max_age_s=0.0).topics) == {"t", "u", "v"}


def test_a_topic_that_is_watched_is_measured_at_once(make: MakeCollector, wait_until: WaitUntil) -> None:
    with make(SLOW, ("t",)) as collector:
        collector.snapshot()
        collector.watch(["u"])
        wait_until(lambda: (cached := collector.cache.latest()) is not None and "u" in cached.snapshot.topics)


def test_a_broker_that_went_silent_has_been_so_for_as_long_by_our_own_clock(
    make: MakeCollector, cluster: FakeCluster, wait_until: WaitUntil
) -> None:
    with make() as collector:
        collector.snapshot()
        before_s = time.time()
        cluster.paused.add(2)
        wait_until(lambda: not collector.snapshot().brokers[2].is_reachable)
        since_s = collector.snapshot().brokers[2].unreachable_since_s
        assert since_s is not None
        # A question that was on its way then may have been asked before; other clocks are years away.
        assert before_s - 60 <= since_s <= time.time()


def test_without_an_answer_in_time_the_error_says_why(
    make: MakeCollector, cluster: FakeCluster, wait_until: WaitUntil
) -> None:
    cluster.killed |= {1, 2, 3}
    with make() as collector:
        wait_until(lambda: "connection refused" in str(collector.statistics.failures))
        with pytest.raises(NoFreshSnapshotError, match="connection refused") as raised:
            collector.snapshot(timeout_s=0.05)
    assert raised.value.bootstrap_servers == "127.0.0.1:1"


def test_nobody_waits_for_what_is_told(make: MakeCollector, wait_until: WaitUntil) -> None:
    may_go_on, is_held, has_gone_on = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        may_go_on.wait(60)
        has_gone_on.set()

    def tell() -> None:
        collector.announce(Intent(load="l", topic="t", bytes_by_broker={1: 10}))
        collector.withdraw("l")
        collector.report([RouteReport(producer="p", topic="t", shares={0: 1.0})])
        assert collector.weights is None

    collector = make()
    tell()  # before the start
    with collector:
        wait_until(lambda: collector._loop is not None)
        collector._in_loop(hold)
        assert is_held.wait(60)
        tell()
        assert not has_gone_on.is_set()
        may_go_on.set()
    tell()


def test_closing_leaves_no_thread_and_the_last_snapshot(make: MakeCollector) -> None:
    collector = make()
    before = set(threading.enumerate())
    collector.start()
    collector.start()  # does nothing more
    snapshot = collector.snapshot()
    collector.close()
    collector.close()
    assert {thread for thread in threading.enumerate() if "evenload" in thread.name} <= before
    cached = collector.cache.latest()
    assert cached is not None
    assert cached.snapshot.brokers == snapshot.brokers
    for ask in (collector.snapshot, collector.start):
        with pytest.raises(CollectorClosedError, match="has been closed"):
            ask()


def test_closing_at_once_after_starting_is_fine(make: MakeCollector) -> None:
    for _ in range(5):
        with make():
            pass


def test_closing_wakes_whoever_waits_for_a_snapshot(make: MakeCollector, cluster: FakeCluster) -> None:
    cluster.paused |= {1, 2, 3}
    collector = make().start()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            collector.snapshot(timeout_s=60.0)
        except CollectorClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    collector.close()
    waiting.join(60.0)
    assert not waiting.is_alive()
    assert len(raised) == 1


def test_one_that_was_not_started_says_so(make: MakeCollector) -> None:
    with pytest.raises(CollectorClosedError, match=r"call start\(\)"):
        make().snapshot()


def test_the_connection_says_which_it_is() -> None:
    assert type(open_collector(NOWHERE)) is Collector
    remote = NOWHERE.model_copy(update={"collector_url": "http://127.0.0.1:2"})
    assert type(open_collector(remote)) is RemoteCollector
