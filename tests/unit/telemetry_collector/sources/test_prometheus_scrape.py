"""Exporters that misbehave: each does so over real HTTP, and none does harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evenload.telemetry_collector import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    CollectorConfig,
    SourceError,
)
from evenload.telemetry_collector.sources import prometheus_scrape
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.prometheus_scrape import PrometheusScrapeSource
from evenload.telemetry_collector.sources.source import Question

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

GOOD = """
kafka_server_brokertopicmetrics_bytesin_total 100
kafka_server_brokertopicmetrics_replicationbytesin_total 20
kafka_network_requestmetrics_totaltimems_count{request="Produce"} %d
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.50"} 7
"""


async def _good(_: web.Request) -> web.StreamResponse:
    return web.Response(text=GOOD % 3)


def _answer_of(handler: _Handler, *, timeout_s: float = 60.0) -> BrokerMetrics:
    """What a source makes of an exporter that answers so."""

    async def ask() -> BrokerMetrics:
        app = web.Application()
        app.router.add_get("/metrics", handler)
        app.router.add_get("/elsewhere", _good)
        async with TestServer(app) as server:
            source = PrometheusScrapeSource({1: str(server.make_url("/metrics"))})
            try:
                return await source.answer(_question(timeout_s))
            finally:
                await source.close()

    return asyncio.run(ask())


def _question(timeout_s: float = 60.0) -> Question:
    return Question(broker_id=1, topics=None, is_full=False, layout=None, timeout_s=timeout_s)


def test_a_good_exporter_tells_bytes_and_latency() -> None:
    assert _answer_of(_good) == BrokerMetrics(received_bytes=120, request_latency_s=0.007)


async def _refuses(_: web.Request) -> web.StreamResponse:
    raise web.HTTPUnauthorized


async def _fails(_: web.Request) -> web.StreamResponse:
    raise web.HTTPServiceUnavailable


async def _sends_elsewhere(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def _serves_a_page(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>welcome to my broker</html>")


async def _serves_something_broken(_: web.Request) -> web.StreamResponse:
    return web.Response(text='kafka_server_brokertopicmetrics_bytesin_total{a="b" 12 what')


async def _never_ends(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 60_000 + b"\n")


async def _breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(GOOD.encode())
    assert request.transport is not None
    request.transport.abort()
    return response


async def _dawdles(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"# nothing yet\n")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("handler", "error", "reason"),
    [
        (_refuses, AccessRefusedError, "answers 401 Unauthorized; let the collector read it"),
        (_fails, BadAnswerError, "answers 503 Service Unavailable"),
        (_sends_elsewhere, BadAnswerError, "answers 302 Found"),
        (_serves_a_page, BadAnswerError, "serves no figure of a Kafka broker under a known name"),
        (_serves_something_broken, BadAnswerError, "doesn't serve a broker's metrics"),
        (_never_ends, BadAnswerError, "it has more than 1000000 bytes"),
        (_breaks_off, BrokerUnreachableError, "payload is not completed"),
        (_dawdles, BrokerUnreachableError, "didn't answer within 0.3 s"),
    ],
)
def test_whatever_an_exporter_does_is_an_error_that_says_so(
    handler: _Handler, error: type[SourceError], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_scrape, "_ANSWER_MAX_BYTES", 1_000_000)
    with pytest.raises(error, match=reason):
        _answer_of(handler, timeout_s=0.3 if handler is _dawdles else 60.0)


def test_a_latency_counts_while_requests_come_and_not_for_ever_after() -> None:
    now_s = 0.0
    num_requests = 0

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text=GOOD % num_requests)

    async def ask() -> list[float | None]:
        nonlocal now_s, num_requests
        app = web.Application()
        app.router.add_get("/metrics", handler)
        seen = []
        async with TestServer(app) as server:
            url = str(server.make_url("/metrics"))
            source = PrometheusScrapeSource({1: url}, clock=lambda: now_s)
            for now_s, num_requests in ((0, 0), (10, 5), (60, 5), (80, 5), (90, 6)):  # noqa: B007
                seen.append((await source.answer(_question())).request_latency_s)
            await source.close()
        return seen

    assert asyncio.run(ask()) == [None, 0.007, 0.007, None, 0.007]


@pytest.mark.parametrize(
    "url", ["ftp://a/metrics", "broker:7071", "", "http:///metrics", "http://u:secret@a/"]
)
def test_an_address_that_cannot_be_scraped_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="broker 1"):
        CollectorConfig(metrics_url_by_broker={1: url})
