"""`POST /v1/metrics`: what Kafka's clients push, as brokers with evenload's plugin hand it on.

A request is OTLP over HTTP: `application/x-protobuf`, gzip or not; 200 says that it was taken, whatever is in
it. A client's push that can't be read is counted, and costs nobody else's. Until the cluster has been
measured nothing is taken, as only figures about its own brokers are. Requests are unpacked and read one after
the other in a thread; when too many wait, they are refused: the plugin drops what it hands on then, and the
next push says it anew.

Read next: otlp.py, beside this folder.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from evenload.http_edge.browsers import RefusedError
from evenload.telemetry_collector.pushed.client_figures import figures_of
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients
from evenload.telemetry_collector.service.http.server import BODIES, SERVICE
from evenload.telemetry_collector.service.otlp import pushes_in
from evenload.telemetry_collector.snapshot import ClusterSnapshot

__all__ = ["pushed_routes"]

_CONTENT_TYPE = "application/x-protobuf"
_WAITING_MAX = 32


def pushed_routes(clients: PushedClients) -> list[web.RouteDef]:
    """For the application of a service; what is pushed goes to `clients`."""
    turn = asyncio.Lock()
    num_waiting = 0

    async def post_metrics(request: web.Request) -> web.Response:
        nonlocal num_waiting
        if request.content_type != _CONTENT_TYPE:
            raise RefusedError(415, f"metrics are sent here as {_CONTENT_TYPE}, by evenload's broker plugin")
        cached = request.app[SERVICE].latest
        if cached is None:
            raise RefusedError(503, "nothing has been measured yet")
        bodies = request.app[BODIES]
        packed = await bodies.read_packed(request)
        if num_waiting >= _WAITING_MAX:
            raise RefusedError(429, "more is pushed than can be read at the moment")
        num_waiting += 1
        try:
            async with turn:
                body = await asyncio.to_thread(bodies.unpacked, packed)
                await asyncio.to_thread(_take, clients, body, cached.snapshot)
        except ValueError as error:
            raise RefusedError(400, str(error)) from error
        finally:
            num_waiting -= 1
        return web.Response(content_type=_CONTENT_TYPE)

    return [web.post("/v1/metrics", post_metrics)]


def _take(clients: PushedClients, body: bytes, snapshot: ClusterSnapshot) -> None:
    """Have all pushes of a request heard.

    Raises:
        ValueError: it is no request of the plugin, or a broker of another cluster sends it; why, as a clause.
    """
    reachable = {broker_id for broker_id, broker in snapshot.brokers.items() if broker.is_reachable}
    for push in pushes_in(body):
        if push is not None and push.cluster_id not in ("", snapshot.cluster_id):
            raise ValueError(
                f"it comes from a broker of cluster {push.cluster_id[:50]!r}, and this service measures "
                f"cluster {snapshot.cluster_id!r}; correct evenload.telemetry.url of the broker"
            )
        clients.count(is_readable=push is not None)
        if push is None:
            continue
        figures = figures_of(push.points, brokers=reachable, topics=snapshot.topics)
        if push.is_last:
            clients.end(push.who.instance_id)
        elif figures is not None:
            clients.hear(push.who, figures)
