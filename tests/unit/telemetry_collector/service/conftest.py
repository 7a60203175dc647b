"""A collector service before brokers that are made up, and a client of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.http.server import make_app
from evenload.telemetry_collector.service.wire import SnapshotAnswer, decode_answer
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot
from evenload.telemetry_collector.weights_file import WeightsFile

CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
# It measures once, and then when it is told to. No answer is given up because the machine is busy.
SELDOM = CollectorConfig(
    interval_s=3600.0,
    full_interval_s=3600.0,
    age_max_s=10_000.0,
    deadline_s=60.0,
    full_deadline_s=60.0,
    straggler_wait_s=60.0,
)
CONFIG = ServiceConfig(operate_token=SecretStr("secret"), measure_wait_s=60.0, weights_poll_s=0.05)

Client = TestClient[web.Request, web.Application]


@pytest.fixture
def serving() -> Callable[..., AbstractAsyncContextManager[Served]]:
    """Serves while it is entered: `async with serving(config, clock=...) as served`."""
    return _serving


@pytest.fixture
def run() -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Runs a test's coroutine, for two minutes at most."""
    return _run


@pytest.fixture
def new_cluster() -> Callable[[], FakeCluster]:
    """Makes clusters of three brokers and two topics, clicks and views."""
    return _cluster


@pytest.fixture
def clock() -> Clock:
    """One that stands still until a test sets it."""
    return Clock()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Served:
    """A service before brokers that are made up, and a client of it."""

    def __init__(self, cluster: FakeCluster, service: CollectorService, client: Client) -> None:
        self.cluster = cluster
        self.service = service
        self.client = client

    async def snapshot(self, query: str = "", **headers: str) -> SnapshotAnswer:
        response = await self.client.get(f"/v1/snapshot{query}", headers=headers)
        assert response.status == 200, await response.text()
        return decode_answer(await response.read())

    async def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """What `/metrics` shows, by name and labels."""
        page = await (await self.client.get("/metrics")).text()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    @staticmethod
    async def error(response: ClientResponse, status: int) -> str:
        """The sentence of a refusal, which has to have that status."""
        document = json.loads(await response.read())
        assert response.status == status
        assert list(document) == ["error"]
        return str(document["error"])


def _cluster() -> FakeCluster:
    topics = {"clicks": [(1, 2), (2, 3)], "views": [(3, 1)]}
    return FakeCluster(make_snapshot([100, 200, 300], topics=topics, stored_bytes={("clicks", 0): 7}))


@asynccontextmanager
async def _serving(
    config: ServiceConfig = CONFIG,
    *,
    cluster: FakeCluster | None = None,
    weights_path: Path | None = None,
    clock: Callable[[], float] | None = None,
    is_measured: bool = True,
    more_routes: tuple[web.RouteDef, ...] = (),
) -> AsyncIterator[Served]:
    cluster = cluster or _cluster()
    collector = Collector(CONNECTION, SELDOM, [], sources=cluster.sources())
    more: dict[str, Any] = {} if clock is None else {"clock": clock}
    weights_file = WeightsFile(weights_path) if weights_path is not None else None
    with collector:
        if is_measured:
            # Asking for a snapshot would have it measured a second time, at some moment of the test.
            while collector.cache.latest() is None:
                await asyncio.sleep(0.01)
        service = CollectorService(collector, config, weights_file=weights_file, **more)
        server = TestServer(make_app(service, more_routes))
        await server.start_server(auto_decompress=False)
        async with TestClient(server) as client:
            house = asyncio.create_task(service.keep_house())
            yield Served(cluster, service, client)
            house.cancel()


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # type: ignore[arg-type]
