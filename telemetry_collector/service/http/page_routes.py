"""The live page's routes: `GET /` sends it, `GET /v1/overview` is what it asks for each two seconds.

Read next: page/live_page.py, which has both.
"""

from __future__ import annotations

from aiohttp import web

from evenload.telemetry_collector.service.http.server import SERVICE
from evenload.telemetry_collector.service.page.live_page import LivePage

__all__ = ["page_routes"]


def page_routes(page: LivePage) -> list[web.RouteDef]:
    """For the application of the service that the page shows."""

    async def get_page(_: web.Request) -> web.Response:
        return web.Response(text=page.sent.html, headers=page.sent.headers)

    async def get_overview(request: web.Request) -> web.Response:
        try:
            body = await page.overview(request.app[SERVICE])
        except TimeoutError as error:
            raise web.HTTPServiceUnavailable(reason="a score function takes too long to answer") from error
        response = web.Response(
            body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
        )
        response.enable_compression()
        return response

    return [web.get("/", get_page), web.get("/v1/overview", get_overview)]
