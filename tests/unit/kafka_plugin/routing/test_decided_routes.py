"""Shares are decided behind the backs of those who produce: nobody waits for it, or hears of its faults."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.routing.decided_routes import DecidedRoutes
from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.config import RouterConfig
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.reports import RouteReport
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot
from evenload.telemetry_collector.weights import Weights

MIB = 1 << 20
CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
CONFIG = ProducerConfig(refresh_s=0.02, report_s=0.05, batch_bytes=MIB, first_snapshot_timeout_s=60.0)

UNBOUNDED = RouterConfig(safe_streams=False)

WaitUntil = Callable[[Callable[[], bool]], None]


class Hearing(Collector):
    """A collector that keeps what it is told, and has the weights that it is given."""

    told_weights: Weights | None = None
    reports: list[RouteReport]

    @property
    def weights(self) -> Weights | None:
        return self.told_weights

    def report(self, reports: Iterable[RouteReport]) -> None:
        self.reports = [*getattr(self, "reports", []), *reports]


@pytest.fixture
def collector() -> Iterator[Hearing]:
    layout = {"t": [(1,), (2,)], "u": [(1,), (2,)]}
    cluster = FakeCluster(make_snapshot([600 * MIB, 0], 1000 * MIB, topics=layout))
    often = CollectorConfig(interval_s=0.05, full_interval_s=0.05)
    with Hearing(CONNECTION, often, [], sources=cluster.sources()) as collector:
        yield collector


@pytest.fixture
def make(collector: Hearing) -> Iterator[Callable[..., DecidedRoutes]]:
    made: list[DecidedRoutes] = []

    def make_one(num_known: int = 2, config: ProducerConfig = CONFIG) -> DecidedRoutes:
        made.append(
            DecidedRoutes(CONNECTION, config, UNBOUNDED, collector, count_partitions=lambda *_: num_known)
        )
        return made[-1]

    yield make_one
    for each in made:
        each.close()


def _deciding() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "evenload-routing"]


def test_the_first_record_follows_shares_that_were_decided(make: Callable[..., DecidedRoutes]) -> None:
    routing = make().add("t", 2)
    assert not routing.route.is_fallback
    assert routing.route.shares == {1: 1.0}


def test_a_decision_that_takes_long_keeps_no_record_waiting(
    make: Callable[..., DecidedRoutes], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, has_begun, has_ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> None:
        has_begun.set()
        may_end.wait(60)
        has_ended.set()

    monkeypatch.setattr(TopicRouting, "refresh", slow)
    producing = make(config=CONFIG.model_copy(update={"first_snapshot_timeout_s": 0.1}))
    routing = producing.add("t", 2)  # waits, but not longer than for a first measurement
    assert has_begun.wait(60)
    for _ in range(1000):
        routing.partition_for(1000)
    assert not has_ended.is_set()
    may_end.set()


def test_only_topics_that_get_records_are_decided_anew(
    make: Callable[..., DecidedRoutes], monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    decided: list[str] = []
    refresh = TopicRouting.refresh

    def counted(self: TopicRouting, *args: Any, **kwargs: Any) -> Any:
        decided.append(self.topic)
        return refresh(self, *args, **kwargs)

    monkeypatch.setattr(TopicRouting, "refresh", counted)
    producing = make()
    routing, _ = producing.add("t", 2), producing.add("u", 2)
    decided.clear()
    for _ in range(3):
        routing.partition_for(1000)
        before = len(decided)
        wait_until(lambda before=before: len(decided) > before)
    assert set(decided) == {"t"}
    producing.expect("u", 5 * MIB)
    wait_until(lambda: "u" in decided)


def test_a_fault_in_deciding_is_counted_and_the_next_round_may_do_better(
    make: Callable[..., DecidedRoutes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until: WaitUntil,
) -> None:
    refresh = TopicRouting.refresh
    faults = [ZeroDivisionError("a bug")] * 2

    def faulty(self: TopicRouting, *args: Any, **kwargs: Any) -> Any:
        if faults:
            raise faults.pop()
        return refresh(self, *args, **kwargs)

    monkeypatch.setattr(TopicRouting, "refresh", faulty)
    producing = make()
    routing = producing.add("t", 2)

    def is_decided() -> bool:
        routing.partition_for(1000)
        return routing.route.shares == {1: 1.0}

    wait_until(is_decided)
    assert producing.num_failed_rounds == 2
    said = [r.getMessage() for r in caplog.records if r.name == "evenload.kafka_plugin.routing.routes"]
    assert said == ["shares can't be decided anew and stay as they are"]


def test_a_topic_that_can_not_be_decided_keeps_no_other_from_it(
    make: Callable[..., DecidedRoutes], monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = TopicRouting.refresh

    def faulty(self: TopicRouting, *args: Any, **kwargs: Any) -> Any:
        if self.topic == "t":
            raise ZeroDivisionError("a bug")
        return refresh(self, *args, **kwargs)

    monkeypatch.setattr(TopicRouting, "refresh", faulty)
    producing = make()
    first, second = producing.add("t", 2), producing.add("u", 2)
    assert first.route.shares == {0: 0.5, 1: 0.5}
    assert second.route.shares == {1: 1.0}


def test_what_is_expected_is_counted_from_then_on(make: Callable[..., DecidedRoutes]) -> None:
    producing = make()
    producing.expect("t", 100 * MIB)
    routing = producing.add("t", 2)
    routing.partition_for(30 * MIB)
    assert producing._topics["t"].remaining_bytes == 70 * MIB
    producing.expect("t", 100 * MIB)
    assert producing._topics["t"].remaining_bytes == 100 * MIB


def test_a_partition_that_the_client_refuses_gets_nothing_from_the_next_record_on(
    make: Callable[..., DecidedRoutes],
) -> None:
    producing = make(num_known=1, config=CONFIG.model_copy(update={"refresh_s": 60.0}))
    routing = producing.add("t", 2)
    assert routing.partition_for(1000) == 1
    producing.recount(routing, 1)
    assert routing.partition_for(1000) == 0


def test_weights_reach_the_router_and_come_back_to_what_was_configured(
    make: Callable[..., DecidedRoutes],
    collector: Hearing,
    caplog: pytest.LogCaptureFixture,
    wait_until: WaitUntil,
) -> None:
    producing = make()
    producing.add("t", 2)
    current = producing._router._goals

    def names() -> set[str]:
        return {goal.name for goal in current.current}

    collector.told_weights = Weights(goals={"dataset_spread": 1.0})
    wait_until(lambda: names() == {"dataset_spread"})
    collector.told_weights = Weights(goals={"no_such_goal": 1.0})
    wait_until(lambda: "no_such_goal" in caplog.text)
    assert names() == {"dataset_spread"}
    collector.told_weights = None
    wait_until(lambda: names() == {"disk_usage"})
    (complaint,) = [r for r in caplog.records if r.name == "evenload.route_service.weights_in_force"]
    assert complaint.levelno == logging.WARNING
    assert "no_such_goal" in complaint.getMessage()


def test_routes_are_reported(
    make: Callable[..., DecidedRoutes], collector: Hearing, wait_until: WaitUntil
) -> None:
    routing = make().add("t", 2)
    routing.partition_for(1000)
    wait_until(lambda: bool(getattr(collector, "reports", [])))
    report = collector.reports[-1]
    assert (report.topic, report.shares, report.sent_bytes) == ("t", {1: 1.0}, 1000)
    assert report.willingness == {1: 1.0, 2: 1.0}
    assert report.scores == {"reachability": {1: 1.0, 2: 1.0}}


def test_a_broker_that_an_operator_drains_gets_nothing_any_more(
    make: Callable[..., DecidedRoutes], collector: Hearing, wait_until: WaitUntil
) -> None:
    routing = make().add("t", 2)
    assert routing.route.shares == {1: 1.0}
    collector.told_weights = Weights(brokers={2: 0.0})

    def is_drained() -> bool:
        routing.partition_for(1000)
        return routing.route.shares == {0: 1.0}

    wait_until(is_drained)


def test_closing_ends_the_thread(make: Callable[..., DecidedRoutes]) -> None:
    producing = make()
    producing.add("t", 2)
    assert len(_deciding()) == 1
    producing.close()
    assert _deciding() == []


def test_a_producer_that_is_dropped_without_being_closed_leaves_no_thread(
    collector: Hearing, wait_until: WaitUntil
) -> None:
    producing = DecidedRoutes(CONNECTION, CONFIG, UNBOUNDED, collector, count_partitions=lambda *_: None)
    producing.add("t", 2)
    del producing
    gc.collect()
    wait_until(lambda: _deciding() == [])


def test_a_python_without_the_interpreter_lock_is_warned_of(
    make: Callable[..., DecidedRoutes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: True, raising=False)
    make()
    assert "free-threaded" not in caplog.text
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    make()
    assert "this Python runs without the interpreter lock (free-threaded)" in caplog.text
