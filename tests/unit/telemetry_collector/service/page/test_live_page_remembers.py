"""Whoever looks at the live page holds up nobody who measures, and is told when an answer takes too long."""

from __future__ import annotations

import asyncio
import threading

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import ClusterSnapshot
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.http.page_routes import page_routes
from evenload.telemetry_collector.service.http.server import make_app
from evenload.telemetry_collector.service.page import live_page
from evenload.telemetry_collector.service.page.live_page import LivePage
from evenload.telemetry_collector.service.page.overview import Explanation
from evenload.telemetry_collector.sources.observation import Assembled
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot
from evenload.telemetry_collector.weights import Weights

NOWHERE = Connection(bootstrap_servers="127.0.0.1:1")


def test_a_snapshot_is_remembered_at_once_while_a_score_function_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def explain(snapshot: ClusterSnapshot, weights: Weights) -> Explanation:  # noqa: ARG001 - as it is asked
        is_asked.set()
        assert may_answer.wait(60)
        return Explanation()

    page = LivePage(explain)
    snapshot = make_snapshot([100])

    async def test() -> None:
        cluster = FakeCluster(snapshot)
        with Collector(NOWHERE, sources=cluster.sources(), publish=page.remember) as collector:
            await asyncio.to_thread(collector.snapshot)
            app = make_app(CollectorService(collector), page_routes(page))
            async with TestClient[web.Request, web.Application](TestServer(app)) as client:
                looking = asyncio.create_task(client.get("/v1/overview"))
                await asyncio.to_thread(is_asked.wait, 60)
                remembering = threading.Thread(target=page.remember, args=(Assembled(snapshot, 0.0, 0.0),))
                remembering.start()
                await asyncio.to_thread(remembering.join, 30)
                is_held_up = remembering.is_alive()
                monkeypatch.setattr(live_page, "_PATIENCE_S", 0.05)
                impatient = await client.get("/v1/overview")
                assert impatient.status == 503
                assert "a score function takes too long" in await impatient.text()
                may_answer.set()
                assert (await looking).status == 200
        assert not is_held_up

    asyncio.run(asyncio.wait_for(test(), 120))
