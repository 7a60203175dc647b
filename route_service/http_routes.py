"""`GET /v1/routes/TOPIC`, in the collector service.

A topic that nobody has asked for before is measured from then on, and its first answer waits for that and
for a decision, up to a second each. With `If-None-Match`, a route that hasn't changed is a 304, whose
header `Evenload-Age` says that it was measured and decided anew all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from aiohttp import web

from evenload.http_edge.browsers import RefusedError
from evenload.route_service.route_answer import AGE_HEADER
from evenload.route_service.service import RouteService
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.http.server import LIFE, check_topic, want_measured

__all__ = ["serving_routes"]

_FIRST_WAIT_S = 1.0


@contextmanager
def serving_routes(service: CollectorService) -> Iterator[Sequence[web.RouteDef]]:
    """Decides routes by what a service knows, for as long as this is entered."""
    with RouteService(service) as routes:

        async def get_route(request: web.Request) -> web.Response:
            topic = request.match_info["topic"]
            check_topic(topic)
            arrived_at_s = service.now_s()
            want_measured(request, [topic])
            if routes.find(topic) is None:  # it may not be in the latest measurement yet
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FIRST_WAIT_S):
                        await service.measure()
            decided, first = routes.ask(topic)
            if decided is None:
                await asyncio.wait([asyncio.wrap_future(first)], timeout=_FIRST_WAIT_S)
                decided, _ = routes.ask(topic)
            if decided is None:
                raise RefusedError(503, f"nothing has been decided for topic {topic!r} yet")
            tag = f'W/"{request.app[LIFE]}-{decided.answer.version}"'
            headers = {"ETag": tag, "Cache-Control": "no-cache"}
            if decided.answer.reason is None:
                headers[AGE_HEADER] = f"{max(0.0, arrived_at_s - decided.measured_at_s):.3f}"
            if request.headers.get("If-None-Match") == tag:
                return web.Response(status=304, headers=headers)
            return web.Response(body=decided.body, content_type="application/json", headers=headers)

        yield [web.get("/v1/routes/{topic}", get_route)]
