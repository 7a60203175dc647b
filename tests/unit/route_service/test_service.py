"""Routes are decided in a thread, for whoever asks, when there is something new."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from evenload.route_service.deciding import TopicDeciding
from evenload.route_service.service import DecidedRoute, RouteService
from evenload.router.config import RouterConfig
from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.testing import make_snapshot
from evenload.telemetry_collector.weights import Weights

MIB = 1 << 20
LAYOUT = {name: [(1,), (2,), (3,)] for name in ("t", "u")}


@dataclass
class Known:
    """What a collector service knows, set by a test."""

    latest: CachedSnapshot | None = None
    weights: Weights | None = None
    reports: list[RouteReport] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    config: ServiceConfig = field(default_factory=lambda: ServiceConfig(topics_max=3))

    def measure(self, *used_mib: int) -> None:
        used = [each * MIB for each in used_mib]
        self.latest = CachedSnapshot(make_snapshot(used, 1000 * MIB, topics=LAYOUT), 0.5, False)


@pytest.fixture
def known() -> Known:
    found = Known()
    found.measure(600, 600, 200)
    return found


@pytest.fixture
def routes(known: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RouteService]:
    monkeypatch.setattr("evenload.route_service.service._EACH_S", 0.01)
    with RouteService(known, RouterConfig()) as service:
        yield service
    assert not any(thread.name == "evenload-routes" for thread in threading.enumerate())


def decided(routes: RouteService, topic: str) -> DecidedRoute:
    _, first = routes.ask(topic)
    first.result(60)
    found, _ = routes.ask(topic)
    assert found is not None
    return found


def test_a_topic_is_decided_once_somebody_asks(routes: RouteService) -> None:
    found = decided(routes, "t")
    assert found.answer.shares == pytest.approx((1 / 6, 1 / 6, 2 / 3))
    assert b'"topic":"t"' in found.body


def test_whatever_is_new_is_decided_on(
    routes: RouteService, known: Known, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    before = decided(routes, "t").answer
    other = decided(routes, "u").answer

    def is_newer(than: int) -> Callable[[], bool]:
        return lambda: decided(routes, "t").answer.version > than

    known.measure(200, 600, 600)
    wait_until(is_newer(before.version))
    measured = decided(routes, "t").answer
    assert measured.shares[0] > 0.6
    known.weights = Weights(brokers={1: 0.0})
    wait_until(is_newer(measured.version))
    drained = decided(routes, "t").answer
    assert drained.shares[0] == 0
    known.weights = None
    known.reports = [RouteReport(producer="a", topic="t", shares={}, remaining_bytes=100 * MIB)]
    wait_until(lambda: decided(routes, "t").answer.shares[0] == 1)  # a load may go further than a stream
    known.intents = [Intent(load="l", topic="u", bytes_by_broker={1: 350 * MIB})]
    wait_until(lambda: decided(routes, "t").answer.shares[0] < 1)
    assert decided(routes, "u").answer.topic == other.topic


def test_what_fails_once_keeps_the_routes_and_is_tried_again(
    routes: RouteService, known: Known, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    before = decided(routes, "t")
    known.reports = [None]  # type: ignore[list-item]
    known.measure(200, 600, 600)
    kept, _ = routes.ask("t")
    assert kept is not None
    assert kept.answer is before.answer
    known.reports = []
    wait_until(lambda: decided(routes, "t").answer.shares[0] > 0.6)


def test_no_two_answers_have_the_same_version_though_topics_are_forgotten(
    routes: RouteService, known: Known
) -> None:
    before = decided(routes, "t").answer
    for name in ("a", "b", "c"):  # more than are kept
        decided(routes, name)
    assert routes.find("t") is None
    known.measure(200, 600, 600)
    again = decided(routes, "t").answer
    assert again.shares != before.shares
    assert again.version > before.version


def test_a_topic_that_can_not_be_decided_keeps_no_other_from_it(
    routes: RouteService, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = TopicDeciding.decide

    def faulty(self: TopicDeciding, *args: Any, **kwargs: Any) -> Any:
        if self.topic == "t":
            raise ZeroDivisionError("a bug")
        return decide(self, *args, **kwargs)

    monkeypatch.setattr(TopicDeciding, "decide", faulty)
    routes.ask("t")
    assert decided(routes, "u").answer.topic == "u"
    assert routes.find("t") is None
