"""A real collector service that can be told to misbehave, before brokers that are made up or real ones.

with FakeService(FakeCluster(make_snapshot([100, 200]))) as service:
    RemoteCollector(Connection(bootstrap_servers="...", collector_url=service.url), ...)
    service.misbehave = service.garbage
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import zlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from evenload.http_edge.listening import listening
from evenload.kafka_connection import Connection
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.http.pushed_routes import pushed_routes
from evenload.telemetry_collector.service.http.server import LINE_MAX_BYTES, make_app
from evenload.telemetry_collector.testing import FakeCluster

__all__ = ["FakeService"]

_START_TIMEOUT_S = 10.0
_BOMB_BYTES = 16 << 20
_OFTEN = CollectorConfig(
    interval_s=0.05, full_interval_s=0.05, deadline_s=0.2, age_max_s=60.0, backoff_initial_s=0.05
)
_OFTEN_ENOUGH = CollectorConfig(interval_s=0.3, full_interval_s=1.0)

Misbehaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeService:
    """Serves in a thread of its own while it is entered. May be entered again: on the same port, as after
    a restart. That is a free one unless it is given.

    Attributes:
        cluster: what it measures: one that is made up, to be changed from any thread, or a real one.
        misbehave: answers in place of the service while it is set.
        num_requests: how many have come.
    """

    def __init__(
        self,
        cluster: FakeCluster | Connection,
        config: ServiceConfig | None = None,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.cluster = cluster
        self.misbehave: Misbehaviour | None = None
        self.num_requests = 0
        self._config = config or ServiceConfig()
        self._port = port
        self._tls = tls
        self._is_serving = threading.Event()
        self._service: CollectorService | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it is; known once it has been entered."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def service(self) -> CollectorService:
        """What it knows."""
        assert self._service is not None
        return self._service

    def __enter__(self) -> Self:
        self._is_serving.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fake-service")
        self._thread.start()
        assert self._is_serving.wait(_START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _collector(self) -> Collector:
        if isinstance(self.cluster, Connection):
            return Collector(self.cluster, _OFTEN_ENOUGH, [])
        nowhere = Connection(bootstrap_servers="127.0.0.1:1")
        return Collector(nowhere, _OFTEN, [], sources=self.cluster.sources())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with self._collector() as collector:
            self._service = CollectorService(collector, self._config)
            app = make_app(self._service, pushed_routes(self._service.pushed))
            app.middlewares.insert(0, self._maybe_misbehave)
            runner = web.AppRunner(
                app,
                access_log=None,
                auto_decompress=False,
                shutdown_timeout=0.1,
                max_line_size=LINE_MAX_BYTES,
            )
            async with listening(runner, "127.0.0.1", self._port, tls=self._tls) as self._port:
                self._is_serving.set()
                await self._stop.wait()

    @web.middleware
    async def _maybe_misbehave(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.num_requests += 1
        misbehave = self.misbehave
        return await (handler if misbehave is None else misbehave)(request)

    # Ways to misbehave.

    @staticmethod
    async def garbage(_: web.Request) -> web.StreamResponse:
        """An answer that is none."""
        return web.Response(body=b"\x00\xff{]" * 100, content_type="application/json")

    @staticmethod
    async def fault(_: web.Request) -> web.StreamResponse:
        """A page of some proxy."""
        return web.Response(status=502, text="<html>Bad Gateway</html>")

    @staticmethod
    async def elsewhere(_: web.Request) -> web.StreamResponse:
        """A redirection, which nobody should follow."""
        return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})

    @staticmethod
    async def silence(request: web.Request) -> web.StreamResponse:
        """No answer until whoever asks gives up."""
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)
        return web.Response()

    @staticmethod
    async def hang_up(request: web.Request) -> web.StreamResponse:
        """The connection closed in the middle of an answer."""
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"schema_version": 1,')
        assert request.transport is not None
        request.transport.abort()
        return response

    @staticmethod
    async def bomb(_: web.Request) -> web.StreamResponse:
        """A thousand times larger when it is unpacked."""
        packed = zlib.compress(bytes(_BOMB_BYTES), wbits=31)
        return web.Response(
            body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
        )
