"""Whatever goes wrong in deciding shares, the load goes on with those that it has, and says so once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evenload.kafka_plugin.loading.load_routing import LoadRouting
from evenload.kafka_plugin.routing.topic_routing import TopicRouting
from evenload.router.router import Router
from evenload.telemetry_collector.cache import SnapshotCache


def test_a_router_that_raises_ends_no_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Router, "route", broken)
    routing = TopicRouting("t", 2, router=Router(), cache=SnapshotCache(30.0), batch_bytes=1000)
    collector: Any = SimpleNamespace(weights=None)
    load_routing = LoadRouting(collector, routing, None, load="l", producer="p")
    load_routing.refresh(1000, expected_ratio=1.0)
    load_routing.refresh(900, expected_ratio=1.0)
    assert routing.route.shares == {0: 0.5, 1: 0.5}
    assert caplog.text.count("ZeroDivisionError: a bug") == 1
