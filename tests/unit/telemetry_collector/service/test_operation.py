"""What operators see of the collector service: health, metrics, and a sentence for whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.http.server import SERVICE
from evenload.telemetry_collector.service.wire import CLIENT_HEADER
from evenload.telemetry_collector.snapshot import ReplicationThrottles
from evenload.telemetry_collector.testing import FakeCluster

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]
NewCluster = Callable[[], FakeCluster]


def test_it_is_ready_when_there_is_a_fresh_snapshot_and_says_why_it_is_not(
    serving: Serving, run: Run, new_cluster: NewCluster
) -> None:
    async def test() -> None:
        cluster = new_cluster()
        cluster.killed |= {1, 2, 3}
        nobody_waits = ServiceConfig(measure_wait_s=0.05)
        async with serving(nobody_waits, cluster=cluster, is_measured=False) as served:
            assert (await served.client.get("/healthz")).status == 200
            while not served.service.collector.statistics.failures:
                await asyncio.sleep(0.01)
            sentence = "nothing has been measured yet; cluster_metadata: connection refused"
            assert await served.error(await served.client.get("/readyz"), 503) == sentence
            assert await served.error(await served.client.get("/v1/snapshot"), 503) == sentence
            cluster.killed.clear()
            served.service.collector.refresh()
            while (await served.client.get("/readyz")).status != 200:
                await asyncio.sleep(0.01)

    run(test)


def test_a_large_request_is_refused(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(ServiceConfig(body_max_bytes=1024)) as served:
            refused = await served.client.put("/v1/intents", data=b"x" * 2000)
            assert await served.error(refused, 413) == "the request is larger than 1024 bytes"

    run(test)


def test_metrics_show_the_brokers_and_the_service(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            for client in ("a", "b", "a"):
                await served.snapshot(**{CLIENT_HEADER: client})
            await served.client.get("/no/such/page", headers={CLIENT_HEADER: "a"})
            intent = Intent(load="l", topic="t", bytes_by_broker={1: 10})
            await served.client.put("/v1/intents", data=intent.model_dump_json())
            metrics = await served.metrics()
            assert metrics["evenload_broker_used_bytes", (("broker_id", "2"),)] == 200
            requests = "evenload_service_requests_total"
            assert metrics[requests, (("route", "/v1/snapshot"), ("status", "200"))] == 3
            assert metrics[requests, (("route", "other"), ("status", "404"))] == 1
            assert metrics["evenload_service_clients", ()] == 3  # with whoever asks for metrics
            assert metrics["evenload_service_loads", ()] == 1
            assert metrics["evenload_broker_announced_bytes", (("broker_id", "1"),)] == 10

    run(test)


def test_metrics_show_which_throttles_are_set_and_only_those(
    serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = "evenload_broker_replication_throttle_bytes_per_second"

    async def test() -> None:
        async with serving() as served:
            await served.snapshot()
            assert not {name for name, _ in await served.metrics()} & {
                rate,
                "evenload_reassigning_partitions",
            }
            throttles = ReplicationThrottles(bytes_per_s={2: 500}, num_replicas={"t": 3}, num_moving=0)
            throttled = replace(served.cluster.snapshot, throttles=throttles)
            cached = CachedSnapshot(throttled, 1.0, False)
            monkeypatch.setattr(CollectorService, "latest", property(lambda _: cached))
            metrics = await served.metrics()
            assert {labels for name, labels in metrics if name == rate} == {(("broker_id", "2"),)}
            assert metrics[rate, (("broker_id", "2"),)] == 500
            assert metrics["evenload_topic_throttled_replicas", (("topic", "t"),)] == 3
            assert metrics["evenload_reassigning_partitions", ()] == 0

    run(test)


def test_no_load_and_no_producer_makes_labels_of_its_own(serving: Serving, run: Run) -> None:
    intent = Intent(load="l", topic="t", bytes_by_broker={1: 10, 77: 10})
    report = RouteReport(producer="p", topic="t", shares={0: 1.0}, put_aside={10_000 * "x": "it raised"})

    async def test() -> None:
        async with serving() as served:
            assert served.service.announce(intent, 1)
            assert served.service.report([report], 1)
            labels = [
                labels
                for name, labels in await served.metrics()
                if name in ("evenload_broker_announced_bytes", "evenload_function_put_aside_routes")
            ]
            assert labels == [(("broker_id", "1"),), (("function", 100 * "x"),)]

    run(test)


def test_whatever_is_asked_wrongly_is_a_sentence_in_json(serving: Serving, run: Run) -> None:
    async def fails(_: web.Request) -> web.Response:
        raise ZeroDivisionError("a bug")

    async def test() -> None:
        async with serving(more_routes=(web.get("/fails", fails),)) as served:
            assert "Not Found" in await served.error(await served.client.get("/no/such/page"), 404)
            wrong = await served.client.post("/v1/weights")
            assert "POST /v1/weights: Method Not Allowed" in await served.error(wrong, 405)
            assert wrong.headers["Allow"] == "GET,HEAD,PUT"
            assert "a fault of the collector service" in await served.error(
                await served.client.get("/fails"), 500
            )
            assert "load: say whose" in await served.error(await served.client.delete("/v1/intents"), 400)

    run(test)


def test_further_pages_find_the_service(serving: Serving, run: Run) -> None:
    async def page(request: web.Request) -> web.Response:
        latest = request.app[SERVICE].latest
        assert latest is not None
        return web.Response(text=latest.snapshot.cluster_id)

    async def test() -> None:
        async with serving(more_routes=(web.get("/", page),)) as served:
            assert await (await served.client.get("/")).text() == "test-cluster"

    run(test)
