"""`POST /v1/metrics`: what clients push is taken from brokers, and nothing that is sent does harm."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr

from evenload.http_edge.bodies import Bodies
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.fake_pushes import java_push, request_of
from evenload.telemetry_collector.service.http.pushed_routes import pushed_routes
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]

PROTOBUF = {"Content-Type": "application/x-protobuf"}
PACKED = {**PROTOBUF, "Content-Encoding": "gzip"}
THREE = request_of(*(java_push(f"client-{n}", {1: 2.0, 2: 100.0}) for n in range(3)))


def test_pushes_are_taken_packed_and_plain(serving: Serving, run: Run) -> None:
    async def test() -> None:
        pushed = PushedClients()
        async with serving(more_routes=tuple(pushed_routes(pushed))) as served:
            for body, headers in ((THREE, PROTOBUF), (gzip.compress(THREE), PACKED)):
                response = await served.client.post("/v1/metrics", data=body, headers=headers)
                assert response.status == 200
        assert pushed.num_pushes == 6
        assert pushed.felt()["java"].latency_s_by_broker == {1: 0.002, 2: 0.1}

    run(test)


def test_what_cant_be_a_push_is_refused_in_a_sentence(serving: Serving, run: Run) -> None:
    refusals = [
        (THREE, {"Content-Type": "application/json"}, 415, "application/x-protobuf"),
        (THREE, {**PROTOBUF, "Content-Encoding": "lzma"}, 415, "gzip or not at all"),
        (THREE, PACKED, 400, "can't be unpacked"),
        (gzip.compress(THREE)[:-4], PACKED, 400, "cut off"),
        (gzip.compress(THREE) + b"more", PACKED, 400, "goes on after its end"),
        (gzip.compress(bytes(1 << 26)), PACKED, 413, "larger than 1048576 bytes"),
        (gzip.compress(bytes((1 << 20) + 1)), PACKED, 413, "larger than 1048576 bytes"),
        (gzip.compress(b"\xff" * (1 << 20)), PACKED, 400, "no OTLP request"),
        (b"<html>", PROTOBUF, 400, "no OTLP request"),
        (request_of(java_push("", {})), PROTOBUF, 400, "evenload's plugin"),
        (request_of(java_push("a", {1: 1.0}, cluster_id="another")), PROTOBUF, 400, "cluster 'another'"),
    ]

    async def test() -> None:
        pushed = PushedClients()
        async with serving(more_routes=tuple(pushed_routes(pushed))) as served:
            for body, headers, status, said in refusals:
                response = await served.client.post("/v1/metrics", data=body, headers=headers)
                assert said in await served.error(response, status)
        assert pushed.num_pushes == 0

    run(test)


def test_a_client_that_ends_is_forgotten_and_one_that_says_too_much_is_counted(
    serving: Serving, run: Run
) -> None:
    async def test() -> None:
        pushed = PushedClients()
        async with serving(more_routes=tuple(pushed_routes(pushed))) as served:
            for told in (
                java_push("a", {1: 1.0, 2: 1.0}),
                java_push("b", dict.fromkeys(range(3000), 1.0)),
                java_push("a", {1: 1.0, 2: 1.0}, terminating=True),
            ):
                await served.client.post("/v1/metrics", data=request_of(told), headers=PROTOBUF)
        assert (pushed.num_pushes, pushed.num_unreadable) == (3, 1)
        assert pushed.felt()["java"].num_clients == 0

    run(test)


def test_it_takes_the_token_to_ingest(serving: Serving, run: Run) -> None:
    config = ServiceConfig(ingest_token=SecretStr("ingesting"), read_token=SecretStr("reading"))

    async def test() -> None:
        pushed = PushedClients()
        async with serving(config, more_routes=tuple(pushed_routes(pushed))) as served:
            for token, status in (("reading", 401), ("ingesting", 200)):
                headers = {**PROTOBUF, "Authorization": f"Bearer {token}"}
                response = await served.client.post("/v1/metrics", data=THREE, headers=headers)
                assert response.status == status

    run(test)


def test_nothing_is_taken_until_the_cluster_is_measured(serving: Serving, run: Run) -> None:
    async def test() -> None:
        pushed = PushedClients()
        nobody = FakeCluster(make_snapshot([100]), paused={1})
        async with serving(
            cluster=nobody, is_measured=False, more_routes=tuple(pushed_routes(pushed))
        ) as served:
            response = await served.client.post("/v1/metrics", data=THREE, headers=PROTOBUF)
            assert "nothing has been measured yet" in await served.error(response, 503)

    run(test)


def test_when_too_many_wait_more_are_refused(
    serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = threading.Event()

    def hold(_: Any, packed: Any) -> bytes:
        going_on.wait()
        return bytes(packed.body)

    async def test() -> None:
        async with serving(more_routes=tuple(pushed_routes(PushedClients()))) as served:

            async def post() -> int:
                return int((await served.client.post("/v1/metrics", data=THREE, headers=PROTOBUF)).status)

            monkeypatch.setattr(Bodies, "unpacked", hold)
            waiting = [asyncio.create_task(post()) for _ in range(33)]
            done, waiting_still = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            going_on.set()
            assert [task.result() for task in done] == [429]
            assert await asyncio.gather(*waiting_still) == [200] * 32

    run(test)
