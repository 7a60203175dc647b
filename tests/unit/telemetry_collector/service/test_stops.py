"""A collector service that is stopped ends soon, whoever doesn't answer then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial

import aiohttp
import pytest

from evenload.kafka_connection import Connection
from evenload.local_cluster.settings import free_ports
from evenload.telemetry_collector import ClusterSnapshot, CollectorClosedError
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.service import running
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.page.overview import Explanation
from evenload.telemetry_collector.service.running import serve
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot
from evenload.telemetry_collector.weights import Weights

# What hangs does so for longer than a busy machine takes for anything else.
PATIENCE_S = 60.0


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Where everybody is accepted and nobody gets an answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=["refused", "silent"])
def dead_address(request: pytest.FixtureRequest, silent_address: str) -> str:
    return silent_address if request.param == "silent" else f"127.0.0.1:{free_ports(1)[0]}"


def test_a_service_whose_collector_has_failed_ends_with_the_reason() -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def run() -> None:
        cluster = FakeCluster(make_snapshot([100]))
        connection = Connection(bootstrap_servers="127.0.0.1:1")
        with Collector(connection, sources=cluster.sources(), publish=broken) as collector:
            service = CollectorService(collector, ServiceConfig(weights_poll_s=0.01))
            await asyncio.wait_for(service.keep_house(), PATIENCE_S)

    with pytest.raises(CollectorClosedError, match=r"it failed .*a bug"):
        asyncio.run(run())


def test_a_score_function_that_hangs_while_somebody_looks_does_not_keep_it_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = FakeCluster(make_snapshot([100])).sources()
    monkeypatch.setattr(running, "Collector", partial(Collector, sources=sources))
    is_asked, is_over, has_answered = threading.Event(), threading.Event(), threading.Event()

    def explain(snapshot: ClusterSnapshot, weights: Weights) -> Explanation:  # noqa: ARG001 - as it is asked
        is_asked.set()
        is_over.wait(PATIENCE_S)
        has_answered.set()
        return Explanation()

    async def look(url: str) -> None:
        async with aiohttp.ClientSession() as client:
            while (await client.get(f"{url}/readyz")).status != 200:
                await asyncio.sleep(0.01)
            looking = asyncio.create_task(client.get(f"{url}/v1/overview"))
            await asyncio.to_thread(is_asked.wait, PATIENCE_S)
            os.kill(os.getpid(), signal.SIGTERM)
            with contextlib.suppress(aiohttp.ClientError):
                await looking

    async def run() -> None:
        clients = []
        await serve(
            Connection(bootstrap_servers="127.0.0.1:1"),
            ServiceConfig(),
            host="127.0.0.1",
            port=0,
            explain=explain,
            on_ready=lambda url: clients.append(asyncio.create_task(look(url))),
        )
        await asyncio.gather(*clients)

    asyncio.run(run())
    assert not has_answered.is_set()
    is_over.set()


def test_nobody_who_does_not_answer_keeps_it_from_stopping(
    dead_address: str, silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", str(PATIENCE_S))

    async def stop_while_a_client_waits(url: str) -> None:
        async with aiohttp.ClientSession() as client:
            asking = asyncio.create_task(client.get(f"{url}/v1/snapshot"))
            await asyncio.wait([asking], timeout=0.2)
            assert not asking.done()
            os.kill(os.getpid(), signal.SIGTERM)
            with contextlib.suppress(aiohttp.ClientError):
                await asking

    async def run() -> signal.Signals:
        clients = []
        stopped_by = await serve(
            Connection(bootstrap_servers=silent_address),
            ServiceConfig(),
            host="127.0.0.1",
            port=0,
            otlp_endpoint=f"http://{dead_address}/v1/metrics",
            explain=lambda snapshot, weights: Explanation(),  # noqa: ARG005 - as it is asked
            on_ready=lambda url: clients.append(asyncio.create_task(stop_while_a_client_waits(url))),
        )
        await asyncio.gather(*clients)
        return stopped_by

    assert asyncio.run(run()) == signal.SIGTERM
    pushing = [t for t in threading.enumerate() if t.name == "OtelPeriodicExportingMetricReader"]
    if dead_address == silent_address:  # a push is left to its own deadline, which hasn't come yet
        assert pushing
    else:
        for each in pushing:
            each.join(PATIENCE_S)  # it has been told to give up
            assert not each.is_alive()
