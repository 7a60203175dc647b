"""What comes of a collector service that misbehaves: nothing worse than even shares."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import pytest

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import CollectorConfig, NoFreshSnapshotError
from evenload.telemetry_collector.errors import ServiceUnusableError
from evenload.telemetry_collector.opening import read_weights
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service import service_requests
from evenload.telemetry_collector.service.client import RemoteCollector
from evenload.telemetry_collector.service.testing import FakeService
from evenload.telemetry_collector.sources.source import Question, Source
from evenload.telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot
from evenload.telemetry_collector.weights import Weights

# What is known gets old when a test sets the clock, and no answer is given up because the machine is busy.
CONFIG = CollectorConfig(
    interval_s=0.05,
    full_interval_s=0.05,
    deadline_s=60.0,
    full_deadline_s=60.0,
    age_max_s=1000.0,
    backoff_initial_s=0.05,
    backoff_max_s=0.1,
)
# From this age on somebody looks for something newer; it isn't stale yet.
OLD_S = 600.0
IMPATIENT = CONFIG.model_copy(update={"deadline_s": 0.3})
# What a service says and what a producer would measure itself can be told apart by broker 1's bytes.
BY_SERVICE, BY_ITSELF = 111, 222

MakeRemote = Callable[..., RemoteCollector]
WaitUntil = Callable[[Callable[[], bool]], None]


@pytest.fixture
def service(wait_until: WaitUntil) -> Iterator[FakeService]:
    """One that has measured its brokers: no collector has a reason to do so itself."""
    with FakeService(FakeCluster(make_snapshot([BY_SERVICE, 0], topics={"t": [(1,)]}))) as service:
        wait_until(lambda: service.service.latest is not None)
        yield service


@pytest.fixture
def own() -> FakeCluster:
    """The cluster as it is measured without the service."""
    return FakeCluster(make_snapshot([BY_ITSELF, 0], topics={"t": [(1,)]}))


class Clock:
    """It goes on by itself, and is set forward by tests."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s

    def forward(self, by_s: float) -> None:
        self._ahead_s += by_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(service: FakeService, own: FakeCluster, clock: Clock) -> MakeRemote:
    def make_one(
        make_sources: Callable[[], Sequence[Source]] = own.sources,
        config: CollectorConfig = CONFIG,
        **fields: Any,
    ) -> RemoteCollector:
        connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url=service.url, **fields)
        return RemoteCollector(connection, config, ["t"], make_sources=make_sources, clock=clock)

    return make_one


def _used_bytes(collector: RemoteCollector) -> int | None:
    cached = collector.cache.latest()
    return cached.snapshot.brokers[1].used_bytes if cached is not None and not cached.is_stale else None


def _failure(collector: RemoteCollector) -> str:
    return collector.statistics.failures.get("collector_service", "")


class _Asked:
    """What a producer asks of its own brokers."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._made: list[tuple[FakeSource, FakeSource]] = []

    def sources(self) -> Sequence[Source]:
        self._made.append(self._cluster.sources())
        return self._made[-1]

    @property
    def layouts(self) -> list[Question]:
        return [question for layout, _ in self._made for question in layout.questions]

    @property
    def log_dirs(self) -> list[Question]:
        return [question for _, log_dirs in self._made for question in log_dirs.questions]


MISBEHAVIOURS = [
    (FakeService.garbage, "its answer can't be read: Invalid JSON"),
    (FakeService.fault, "it answered with status 502"),
    (FakeService.elsewhere, "it answered with status 302"),
    (FakeService.silence, "no answer within 0.3 s"),
    (FakeService.hang_up, "its answer can't be read"),
    (FakeService.bomb, "its answer is larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("misbehaviour", "reason"), MISBEHAVIOURS, ids=lambda v: getattr(v, "__name__", ""))
def test_while_a_service_misbehaves_what_is_known_grows_stale_and_no_broker_is_measured(
    service: FakeService,
    make: MakeRemote,
    own: FakeCluster,
    misbehaviour: Any,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    wait_until: WaitUntil,
) -> None:
    monkeypatch.setattr(service_requests, "_ANSWER_MAX_BYTES", 1 << 20)
    asked = _Asked(own)
    with make(asked.sources, IMPATIENT if misbehaviour is FakeService.silence else CONFIG) as collector:
        # Who is impatient may find a good service too slow, too, as long as nothing of it is known.
        wait_until(lambda: _used_bytes(collector) == BY_SERVICE and not collector.is_without_service)
        num_before = collector.num_without_service
        service.misbehave = misbehaviour
        clock.forward(OLD_S)
        wait_until(lambda: collector.is_without_service)
        clock.forward(OLD_S)
        assert _used_bytes(collector) is None
        assert collector.num_without_service == num_before + 1
        wait_until(lambda: reason in _failure(collector))  # at first, its answer was from before
        assert collector.statistics.num_faults["collector_service"] == 0
        service.misbehave = None
        wait_until(lambda: _used_bytes(collector) == BY_SERVICE)
        assert not collector.is_without_service
        wait_until(lambda: _failure(collector) == "")
        assert collector.num_without_service == num_before + 1
    assert asked.log_dirs == []
    assert len(asked.layouts) == 1  # for the cluster's id


def test_nobody_waits_for_a_service_that_is_not_there(own: FakeCluster) -> None:
    connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url="http://127.0.0.1:9")
    with RemoteCollector(connection, CONFIG, ["t"], make_sources=own.sources) as collector:
        for _ in range(3):  # also the second topic's first record
            with pytest.raises(NoFreshSnapshotError, match="collector_service: connection refused"):
                collector.snapshot(max_age_s=0.0, timeout_s=3600.0)
        assert collector.cache.latest() is None


def test_a_service_whose_name_is_not_known_is_said_to_be_so(
    own: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", unknown)
    connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url="http://nowhere.invalid:1")
    with RemoteCollector(connection, CONFIG, ["t"], make_sources=own.sources) as collector:
        with pytest.raises(NoFreshSnapshotError):
            collector.snapshot()
        assert _failure(collector) == "its host name can't be looked up: Name or service not known"


def test_a_service_that_is_restarted_is_used_again(
    service: FakeService, make: MakeRemote, clock: Clock, wait_until: WaitUntil
) -> None:
    with make() as collector:
        collector.snapshot()
        service.__exit__(None, None, None)
        clock.forward(OLD_S)
        wait_until(lambda: collector.is_without_service)
        service.__enter__()
        wait_until(lambda: _used_bytes(collector) == BY_SERVICE)


def test_going_without_a_service_is_said_once(
    service: FakeService,
    make: MakeRemote,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    wait_until: WaitUntil,
) -> None:
    with make() as collector:
        collector.snapshot()
        service.misbehave = FakeService.fault
        # The second request from now on begins after the last good answer was taken in.
        before = service.num_requests
        wait_until(lambda: service.num_requests > before + 1)
        clock.forward(OLD_S)
        wait_until(lambda: collector.is_without_service)
        assert _used_bytes(collector) == BY_SERVICE
        clock.forward(OLD_S)
        assert _used_bytes(collector) is None
        assert collector.num_without_service == 1
    (said,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert said == (
        f"the collector service at {service.url} can't be used: it answered with status 502; "
        "shares are even from an age of 1000 s on"
    )


def test_the_service_of_another_cluster_is_refused_in_a_sentence_and_told_nothing(
    service: FakeService, make: MakeRemote, own: FakeCluster, wait_until: WaitUntil
) -> None:
    own.snapshot = make_snapshot([BY_ITSELF, 0], topics={"t": [(1,)]}, cluster_id="ours")
    with make() as collector:
        wait_until(lambda: collector.is_without_service)
        assert _failure(collector) == (
            "it measures cluster 'test-cluster', but the brokers at 127.0.0.1:1 belong to cluster 'ours'; "
            "correct collector_url"
        )
        collector.announce(Intent(load="l", topic="t", bytes_by_broker={1: 10}))
        before = service.num_requests
        wait_until(lambda: service.num_requests > before + 2)
        assert collector.is_without_service
    assert service.service.intents == []


def test_a_producer_follows_when_its_brokers_and_the_service_belong_to_another_cluster(
    service: FakeService, make: MakeRemote, own: FakeCluster, wait_until: WaitUntil
) -> None:
    with make() as collector:
        collector.snapshot()
        assert isinstance(service.cluster, FakeCluster)
        new = make_snapshot([7, 0], topics={"t": [(1,)]}, cluster_id="new")
        service.__exit__(None, None, None)  # it ends, and its supervisor starts another
        service.cluster.snapshot = new
        service.__enter__()
        wait_until(lambda: "it measures cluster 'new', but the brokers at" in _failure(collector))
        assert _used_bytes(collector) == BY_SERVICE  # of the cluster that our own brokers still belong to
        own.snapshot = new
        wait_until(lambda: _used_bytes(collector) == 7)
        assert collector.statistics.num_cluster_changes == 1
        assert not collector.is_without_service


def test_nothing_of_a_service_is_used_until_our_own_brokers_have_said_which_cluster_they_are(
    make: MakeRemote, own: FakeCluster, wait_until: WaitUntil
) -> None:
    own.killed |= {1, 2}
    with make() as collector:
        wait_until(lambda: collector.statistics.num_failures["cluster_id"] > 2)
        assert collector.cache.latest() is None
        assert collector.statistics.failures == {"cluster_id": "broker 1: connection refused"}
        own.killed.clear()
        wait_until(lambda: _used_bytes(collector) == BY_SERVICE)


def test_a_service_whose_own_measurements_are_old_is_not_used(
    service: FakeService, make: MakeRemote, wait_until: WaitUntil
) -> None:
    # The service has a clock of its own: there, time goes by as it does.
    with make(config=CONFIG.model_copy(update={"age_max_s": 2.0, "deadline_s": 1.5})) as collector:
        wait_until(lambda: _used_bytes(collector) == BY_SERVICE)
        assert isinstance(service.cluster, FakeCluster)
        service.cluster.paused |= {1, 2}  # for the service; we reach them
        wait_until(lambda: _used_bytes(collector) is None)
        wait_until(lambda: "its latest measurement is" in _failure(collector))


def test_the_age_is_the_measurements_whatever_the_services_clock_says(
    service: FakeService, make: MakeRemote
) -> None:
    with make() as collector:
        before_s = time.time()
        taken_at_s = collector.snapshot(max_age_s=0.0).taken_at_s
        assert before_s - 60.0 < taken_at_s < time.time() + 60.0
        cached = service.service.latest
        assert cached is not None
        assert cached.snapshot.taken_at_s != taken_at_s  # it was said in terms of our clock


def test_bytes_that_others_have_announced_are_counted_and_our_own_are_not(
    make: MakeRemote, wait_until: WaitUntil
) -> None:
    def announced(collector: RemoteCollector) -> dict[int, int]:
        brokers = collector.snapshot().brokers.values()
        return {broker.broker_id: broker.announced_bytes for broker in brokers if broker.announced_bytes}

    with make() as ours, make() as theirs:
        for collector in (ours, theirs):
            collector.snapshot()
            wait_until(lambda c=collector: not _failure(c) and c.statistics.num_answers["collector_service"])
        ours.announce(Intent(load="ours", topic="t", bytes_by_broker={1: 10, 9: 5}))
        theirs.announce(Intent(load="theirs", topic="t", bytes_by_broker={1: 1, 2: 2}))
        wait_until(lambda: announced(ours) == {1: 1, 2: 2})
        wait_until(lambda: announced(theirs) == {1: 10})
        ours.withdraw("ours")
        ours.close()  # at once: what was to be told is told
        wait_until(lambda: announced(theirs) == {})


def test_a_load_that_ends_while_there_is_no_service_is_forgotten(
    service: FakeService, make: MakeRemote, clock: Clock, wait_until: WaitUntil
) -> None:
    with make() as collector:
        wait_until(lambda: collector.statistics.num_answers["collector_service"] > 0)
        collector.announce(Intent(load="ours", topic="t", bytes_by_broker={1: 10}))
        polling = collector._polling
        assert polling is not None
        wait_until(lambda: polling._own_loads == {"ours"})
        service.misbehave = FakeService.fault
        clock.forward(OLD_S)
        wait_until(lambda: collector.is_without_service)
        collector.withdraw("ours")
        wait_until(lambda: not polling._own_loads)


def test_an_answer_that_may_hold_what_we_have_announced_meanwhile_is_not_used(
    make: MakeRemote, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    ask = service_requests.ServiceRequests.snapshot
    collector = make()
    without: list[frozenset[str]] = []

    async def announce_while_asking(requests: Any, topics: Any, **options: Any) -> Any:
        without.append(options["without_loads"])
        if len(without) == 3:  # it is usable already, and this question doesn't know of the load yet
            intent = Intent(load="ours", topic="t", bytes_by_broker={1: 10})
            await requests.announce(intent)
            collector._polling.announce(intent)  # type: ignore[union-attr]
        return await ask(requests, topics, **options)

    monkeypatch.setattr(service_requests.ServiceRequests, "snapshot", announce_while_asking)
    published: list[int] = []
    use = collector.use
    monkeypatch.setattr(
        collector, "use", lambda a, w: (published.append(a.snapshot.brokers[1].announced_bytes), use(a, w))
    )
    with collector:
        wait_until(lambda: len(published) >= 6)
    assert without[2:4] == [frozenset(), frozenset({"ours"})]
    assert set(published) == {0}


def test_an_answer_for_another_cluster_is_refused_also_while_a_load_is_announced(
    make: MakeRemote, own: FakeCluster, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    ask = service_requests.ServiceRequests.snapshot
    own.snapshot = make_snapshot([BY_ITSELF, 0], topics={"t": [(1,)]}, cluster_id="ours")
    collector = make()
    asked: list[None] = []

    async def announce_while_asking(*arguments: Any, **options: Any) -> Any:
        asked.append(None)
        intent = Intent(load=f"load {len(asked)}", topic="t", bytes_by_broker={1: 10})
        collector._polling.announce(intent)  # type: ignore[union-attr]
        return await ask(*arguments, **options)

    monkeypatch.setattr(service_requests.ServiceRequests, "snapshot", announce_while_asking)
    with collector:
        wait_until(lambda: len(asked) >= 4)
    assert collector.num_without_service == 1
    assert collector.statistics.num_answers.get("collector_service", 0) == 0


def test_weights_are_heard_with_the_snapshots_and_kept_without_the_service(
    service: FakeService, make: MakeRemote, clock: Clock, wait_until: WaitUntil
) -> None:
    weights = Weights(goals={"disk_usage": 1.0}, brokers={2: 0.0})
    with make() as collector:
        collector.snapshot()
        assert collector.weights is None
        service.service._weights = weights
        wait_until(lambda: collector.weights == weights)
        service.misbehave = FakeService.fault
        clock.forward(OLD_S)
        wait_until(lambda: collector.is_without_service)
        assert collector.weights == weights


def test_who_asks_once_for_weights_hears_that_the_service_that_keeps_them_does_not_say() -> None:
    connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url="http://127.0.0.1:9")
    with pytest.raises(
        ServiceUnusableError, match=r"The weights in force are kept at http://127\.0\.0\.1:9: start"
    ):
        read_weights(connection, timeout_s=3600.0)


def test_reports_reach_the_service(service: FakeService, make: MakeRemote, wait_until: WaitUntil) -> None:
    report = RouteReport(producer="p", topic="t", shares={0: 1.0}, reason="no_snapshot", num_fallbacks=3)
    with make() as collector:
        collector.snapshot()
        wait_until(lambda: collector.statistics.num_answers["collector_service"] > 0)
        collector.report([report])
        wait_until(lambda: service.service.reports == [report])


def test_a_refusal_of_what_is_told_is_counted_and_shown(make: MakeRemote, wait_until: WaitUntil) -> None:
    huge = Intent(load="l", topic="t", bytes_by_broker={1: 1 << 62})
    with make() as collector:
        collector.snapshot()
        wait_until(lambda: collector.statistics.num_answers["collector_service"] > 0)
        collector.announce(huge)
        question = "collector_service: intents"
        wait_until(lambda: question in collector.statistics.failures)
        assert "broker 1 holds at most" in collector.statistics.failures[question]


def test_a_fault_in_telling_is_counted_and_asking_goes_on(
    service: FakeService, make: MakeRemote, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(service_requests.ServiceRequests, "report", broken)
    with make() as collector:
        collector.snapshot()
        wait_until(lambda: collector.statistics.num_answers["collector_service"] > 0)
        collector.report([RouteReport(producer="p", topic="t", shares={0: 1.0})])
        wait_until(lambda: collector.statistics.num_faults["collector_service"] == 1)
        assert collector.statistics.failures["collector_service: reports"] == "ZeroDivisionError('a bug')"
        service.cluster.snapshot = make_snapshot([7, 0], topics={"t": [(1,)]})  # type: ignore[union-attr]
        wait_until(lambda: _used_bytes(collector) == 7)


def test_telling_waits_for_nobody_while_the_service_is_silent(service: FakeService, make: MakeRemote) -> None:
    with make() as collector:
        collector.snapshot()
        service.misbehave = FakeService.silence
        for number in range(1000):
            collector.announce(Intent(load=f"l{number}", topic="t", bytes_by_broker={1: 10}))
            collector.cache.latest()
    # Also closing it: whoever waits for an answer does so until its deadline, and then counts a failure.
    assert collector.statistics.num_failures["collector_service"] == 0


def test_a_process_with_a_thousand_loads_is_still_answered(
    service: FakeService, make: MakeRemote, wait_until: WaitUntil
) -> None:
    with make() as collector:
        collector.snapshot()
        # Each is named in the request, which may be no longer than the service takes.
        for number in range(1000):
            collector.announce(Intent(load=f"l{number}", topic="t", bytes_by_broker={1: 10}))
        service.cluster.snapshot = make_snapshot([7, 0], topics={"t": [(1,)]})  # type: ignore[union-attr]
        wait_until(lambda: _used_bytes(collector) == 7)
        assert _failure(collector) == ""


def test_a_connection_without_a_service_is_refused() -> None:
    with pytest.raises(ValueError, match="names no collector service"):
        RemoteCollector(Connection(bootstrap_servers="127.0.0.1:1"))
