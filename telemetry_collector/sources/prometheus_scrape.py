"""A broker's own metrics, from the Prometheus exporter beside it: bytes received, and how long requests take.

An exporter is neither Kafka nor ours: it may be slow (the JMX exporter takes a second or two for a large
broker), absent, or serve anything at all. So it gets the question's time and no more, its answer is read as
it comes and only up to `_ANSWER_MAX_BYTES`, it may not send us elsewhere, and whatever it does says nothing
about whether the broker is there (`is_essential`).

A latency is only passed on while requests come: Kafka's histogram keeps its last values for ever, so a broker
that was avoided for its latency would never be forgiven.

Brokers without a configured address are not asked; that is an answer without figures. Read next:
broker_figures.py, which knows how exporters spell what we look for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import aiohttp

from evenload.telemetry_collector.errors import (
    AccessRefusedError,
    BadAnswerError,
    BrokerUnreachableError,
    CollectorClosedError,
)
from evenload.telemetry_collector.sources.broker_figures import BrokerFigures, FigureLines
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.source import Question

__all__ = ["PrometheusScrapeSource"]

_ANSWER_MAX_BYTES = 64 << 20
_PIECE_BYTES = 1 << 18
# The newer OpenMetrics differs in what follows a value, and the parser is for this one.
_HEADERS = {"Accept": "text/plain;version=0.0.4"}
_QUIET_S = 60.0


class _Requests(NamedTuple):
    """How many Produce requests a broker had served, and when that number was first seen."""

    num: float
    since_s: float


class PrometheusScrapeSource:
    """Asks exporters over HTTP. Keeps the contract of source.py.

    Args:
        url_by_broker: where each broker's metrics are.
        clock: monotonic seconds.
    """

    name = "prometheus_scrape"
    is_per_broker = True
    is_essential = False

    def __init__(
        self, url_by_broker: Mapping[int, str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url_by_broker = dict(url_by_broker)
        self._clock = clock
        self._requests: dict[int, _Requests] = {}
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def answer(self, question: Question) -> BrokerMetrics:
        """What the broker's exporter says; without figures for a broker that has none."""
        if self._is_closed:
            raise CollectorClosedError("its connections have been closed")
        broker_id = question.broker_id
        assert broker_id is not None
        url = self._url_by_broker.get(broker_id)
        if url is None:
            return BrokerMetrics()
        try:
            async with asyncio.timeout(question.timeout_s):
                figures = await self._scrape(broker_id, url)
        except TimeoutError as error:
            reason = f"{url} didn't answer within {question.timeout_s:g} s"
            raise BrokerUnreachableError(broker_id, reason) from error
        except (aiohttp.ClientError, OSError) as error:
            if self._is_closed:
                raise CollectorClosedError("its connections have been closed") from error
            raise BrokerUnreachableError(broker_id, f"{url}: {error or type(error).__name__}") from error
        if figures.received_bytes is None and figures.produce_latency_s is None:
            raise BadAnswerError(broker_id, f"{url} serves no figure of a Kafka broker under a known name")
        return BrokerMetrics(
            received_bytes=figures.received_bytes,
            request_latency_s=figures.produce_latency_s if self._is_busy(broker_id, figures) else None,
        )

    async def close(self) -> None:
        """Close all connections; what is being asked fails. May be called twice."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _scrape(self, broker_id: int, url: str) -> BrokerFigures:
        if self._session is None:
            # The question's time is the only limit; and each broker has an exporter, so no limit on those.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=_HEADERS,
            )
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status in (401, 403):
                reason = f"{url} answers {response.status} {response.reason}"
                raise AccessRefusedError(broker_id, reason, "let the collector read it without a password")
            if response.status != 200:
                raise BadAnswerError(broker_id, f"{url} answers {response.status} {response.reason}")
            try:
                return await _figures(response.content)
            except ValueError as error:
                raise BadAnswerError(broker_id, f"{url} doesn't serve a broker's metrics: {error}") from error

    def _is_busy(self, broker_id: int, figures: BrokerFigures) -> bool:
        """Whether a Produce request came within `_QUIET_S`; yes, where their number isn't told."""
        num = figures.num_produce_requests
        if num is None:
            return True
        now_s = self._clock()
        seen = self._requests.get(broker_id)
        if seen is None or seen.num != num:
            seen = self._requests[broker_id] = _Requests(num, now_s)
        return num > 0 and now_s - seen.since_s <= _QUIET_S


async def _figures(content: aiohttp.StreamReader) -> BrokerFigures:
    lines = FigureLines()
    num_bytes = 0
    async for piece in content.iter_chunked(_PIECE_BYTES):
        num_bytes += len(piece)
        if num_bytes > _ANSWER_MAX_BYTES:
            raise ValueError(f"it has more than {_ANSWER_MAX_BYTES} bytes")
        lines.add(piece)
    return lines.figures()
