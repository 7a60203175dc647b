"""The service's HTTP: what is asked and told, checked at the edge, answered without waiting for a broker.

| route | |
| --- | --- |
| `GET /v1/snapshot?topics=a,b&max_age_s=1&without=L` | brokers, with the layout and sizes of those topics |
| `GET /v1/weights`, `PUT /v1/weights` | read; replace as a whole |
| `PUT /v1/intents`, `DELETE /v1/intents?load=L` | what a load will still write; that it won't |
| `PUT /v1/reports` | how a producer routes: a list of `RouteReport` |
| `POST /v1/metrics` | what Kafka's clients push, as brokers hand it on (pushed_routes.py) |
| `GET /v1/routes/TOPIC` | where a topic's bytes should go (route_service/http_routes.py) |
| `GET /metrics` | for Prometheus |
| `GET /healthz`, `GET /readyz` | the process lives; there is a fresh snapshot |

Without `topics`, a snapshot holds the brokers' totals alone; `topics=*` asks for all that is measured. Topics
that are named are measured from then on, and the first answer waits for that. `max_age_s` asks for figures
no older than so many seconds at the request's arrival, and waits for a measurement where there are none; an
answer may be older all the same, and says its age. Bytes that loads have announced are summed up by broker,
`without` those that are named. With `If-None-Match`, what hasn't changed is a 304.

Where tokens are set, a request carries one as `Authorization: Bearer TOKEN`: all but `/healthz`, `/readyz`
and the page itself need one to read, `PUT`, `POST` and `DELETE` one to ingest, `PUT /v1/weights` one to
operate.

Errors are `{"error": "a sentence"}`. Nothing here waits in the loop: large snapshots are encoded and metrics
are written in threads. Read next: admission.py (who may ask), collector_service.py (what is known), wire.py
(how it is said).
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Annotated, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import FailFast, TypeAdapter, ValidationError

from evenload.http_edge.bodies import Bodies, objects_bytes
from evenload.http_edge.browsers import RefusedError, check_browser
from evenload.telemetry_collector.cache import CachedSnapshot
from evenload.telemetry_collector.export.prometheus import PrometheusExport
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.admission import Admission, Right
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.compressed import Part, gzip_of
from evenload.telemetry_collector.service.instruments import service_instruments
from evenload.telemetry_collector.service.told.announced import believable
from evenload.telemetry_collector.service.wire import ALL_TOPICS, CLIENT_HEADER, encode_age
from evenload.telemetry_collector.weights_file import parse_weights

__all__ = ["BODIES", "LIFE", "LINE_MAX_BYTES", "SERVICE", "check_topic", "make_app", "want_measured"]

SERVICE: web.AppKey[CollectorService] = web.AppKey("service", CollectorService)
_REGISTRY: web.AppKey[CollectorRegistry] = web.AppKey("registry", CollectorRegistry)
BODIES: web.AppKey[Bodies] = web.AppKey("bodies", Bodies)
LIFE: web.AppKey[str] = web.AppKey("life", str)
_ADMISSION: web.AppKey[Admission] = web.AppKey("admission", Admission)
_RIGHT: web.RequestKey[Right] = web.RequestKey("right", Right)  # of whoever asks

_log = logging.getLogger(__name__)

LINE_MAX_BYTES = 64 << 10  # of a request: it lists topics and loads
_TOPIC_NAME_MAX = 249  # as Kafka has it
_CLIENT_NAME_MAX = 300
# It stops at the first one that is wrong: the reasons of all of them would take fifty times the body's room.
_REPORTS = TypeAdapter(Annotated[list[RouteReport], FailFast()])

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(service: CollectorService, more_routes: Iterable[web.RouteDef] = ()) -> web.Application:
    """The application that serves one service.

    Args:
        service: what it serves; handlers find it as `request.app[SERVICE]`.
        more_routes: further pages.
    """
    app = web.Application(middlewares=[_answer_for_all])
    app[SERVICE] = service
    app[BODIES] = Bodies(service.config.body_max_bytes, service.config.body_wait_s)
    app[LIFE] = secrets.token_hex(4)
    app[_ADMISSION] = service.config.admission()
    app[_REGISTRY] = CollectorRegistry(auto_describe=True)
    app[_REGISTRY].register(PrometheusExport(service.collector, service_instruments(service)))
    app.add_routes(
        [
            web.get("/v1/snapshot", _get_snapshot),
            web.get("/v1/weights", _get_weights),
            web.put("/v1/weights", _put_weights),
            web.put("/v1/intents", _put_intent),
            web.delete("/v1/intents", _delete_intent),
            web.put("/v1/reports", _put_reports),
            web.get("/metrics", _get_metrics),
            web.get("/healthz", _get_health),
            web.get("/readyz", _get_readiness),
            *more_routes,
        ]
    )
    return app


@web.middleware
async def _answer_for_all(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count the request, and turn what goes wrong into JSON."""
    service = request.app[SERVICE]
    try:
        _admit(request)
        service.hear_of((request.headers.get(CLIENT_HEADER) or request.remote or "?")[:_CLIENT_NAME_MAX])
        response = await handler(request)
    except RefusedError as refusal:
        response = _refused(refusal.status, str(refusal))
        response.headers.update(refusal.headers)
    except web.HTTPException as error:
        response = _refused(error.status, f"{request.method} {request.path}: {error.reason}")
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
    except Exception:  # noqa: BLE001 - the edge: whoever asked gets an answer
        _log.exception("%s %s failed", request.method, request.path)
        response = _refused(500, "this is a fault of the collector service; its log says more")
    service.requests[_route(request), response.status] += 1
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    return response


def _admit(request: web.Request) -> None:
    """Let in who may ask for this, and note what else they may do."""
    admission = request.app[_ADMISSION]
    headers = request.headers
    check_browser(
        request.method,
        hosts=headers.getall("Host", []),
        origins=headers.getall("Origin", []),
        names=admission.hosts,
    )
    request[_RIGHT] = admission.right_of(headers.getall("Authorization", []))
    admission.check(request.method, _route(request), right=request[_RIGHT])


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "other"


def _refused(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)


# Snapshots.


async def _get_snapshot(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    topics = _topics(request)
    max_age_s = _max_age_s(request)
    arrived_at_s = service.now_s()
    are_new = want_measured(request, topics or ())
    cached = service.latest
    if cached is None or are_new or cached.age_s > max_age_s:
        await service.measure()
        cached = _latest(service)
    waited_s = service.now_s() - arrived_at_s
    told, told_number = service.told(request.query.getall("without", []))
    tag = f'W/"{request.app[LIFE]}-{service.number_of(cached.snapshot)}-{told_number}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    age = Part.of([encode_age(cached.age_s - waited_s)])
    parts = (age, told, await service.answers.encoded(cached.snapshot, topics))
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = gzip_of(parts)
    else:
        body = b"".join(part.plain for part in parts)
    return web.Response(body=body, headers=headers, content_type="application/json")


def want_measured(request: web.Request, topics: Collection[str]) -> bool:
    """Have topics measured from now on; returns whether some of them were not so far.

    Raises:
        RefusedError: there is no room for them.
    """
    service = request.app[SERVICE]
    are_new, has_room = service.ask_for(
        topics, by=request.remote or "?", may_ingest=request[_RIGHT] >= Right.INGEST
    )
    if not has_room:
        raise RefusedError(
            429,
            f"{service.config.topics_max} topics are measured at most, and others need them; ask for fewer",
        )
    return are_new


def check_topic(topic: str) -> None:
    """Refuse what can't be a topic's name.

    Raises:
        RefusedError: it can't.
    """
    if len(topic) > _TOPIC_NAME_MAX or not topic.isprintable():
        raise RefusedError(400, f"topics: {topic[:50]!r} can't be a topic's name")


def _topics(request: web.Request) -> frozenset[str] | None:
    """The topics that are asked for; None: all."""
    text = request.query.get("topics", "")
    if text == ALL_TOPICS:
        return None
    topics = frozenset(filter(None, text.split(",")))
    for topic in topics:
        check_topic(topic)
    if len(topics) > request.app[SERVICE].config.topics_max:
        raise RefusedError(400, f"topics: {len(topics)} of them are more than are measured for others")
    return topics


def _max_age_s(request: web.Request) -> float:
    text = request.query.get("max_age_s")
    try:
        max_age_s = math.inf if text is None else float(text)
    except ValueError:
        max_age_s = math.nan
    if not max_age_s >= 0:
        raise RefusedError(400, f"max_age_s: {str(text)[:50]!r} is not a number of seconds from 0 on")
    return max_age_s


def _latest(service: CollectorService) -> CachedSnapshot:
    cached = service.latest
    if cached is None:
        raise RefusedError(503, f"nothing has been measured yet{_reasons(service)}")
    return cached


def _reasons(service: CollectorService) -> str:
    failures = service.collector.statistics.failures
    return "".join(f"; {what}: {reason}" for what, reason in list(failures.items())[:10])


# Weights.


async def _get_weights(request: web.Request) -> web.Response:
    weights = request.app[SERVICE].weights
    document = {} if weights is None else weights.model_dump(mode="json", exclude_defaults=True)
    return web.json_response(document, headers={"Cache-Control": "no-cache"})


async def _put_weights(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    try:
        weights = parse_weights(await request.app[BODIES].read(request))
    except ValueError as error:
        raise RefusedError(400, f"{error}; the weights in force are kept") from error
    try:
        await service.set_weights(weights)
    except OSError as error:
        _log.warning("weights can't be kept: %s", error)
        raise RefusedError(
            500, f"they can't be kept ({error.strerror}); the weights in force are kept"
        ) from error
    _log.info(
        "weights are now %s, as %s asked", weights.model_dump_json(exclude_defaults=True), request.remote
    )
    return await _get_weights(request)


# What loads and producers say.


async def _put_intent(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    body = await request.app[BODIES].read(request)
    told = _validated(lambda: Intent.model_validate_json(body))
    try:
        intent = believable(told, _latest(service).snapshot.brokers)
    except ValueError as error:
        raise RefusedError(400, str(error)) from error
    if not service.announce(intent, objects_bytes(body)):
        raise RefusedError(
            429, f"{service.config.intents_max} loads have announced bytes; no more are counted"
        )
    return web.Response(status=204)


async def _delete_intent(request: web.Request) -> web.Response:
    load = request.query.get("load")
    if not load:
        raise RefusedError(400, "load: say whose intent ends, as ?load=NAME")
    request.app[SERVICE].withdraw(load)
    return web.Response(status=204)


async def _put_reports(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    body = await request.app[BODIES].read(request)
    reports = _validated(lambda: _REPORTS.validate_json(body))
    if not service.report(reports, objects_bytes(body) // max(1, len(reports))):
        raise RefusedError(429, f"{service.config.reports_max} routes are shown; no more are")
    return web.Response(status=204)


def _validated(validate: Callable[[], T]) -> T:
    try:
        return validate()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise RefusedError(400, f"{where + ': ' if where else ''}{first['msg']}") from error


# For whoever operates it.


async def _get_metrics(request: web.Request) -> web.Response:
    page = await asyncio.to_thread(generate_latest, request.app[_REGISTRY])
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _get_health(_: web.Request) -> web.Response:
    return web.json_response({"status": "alive"})


async def _get_readiness(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    cached = service.latest
    # Which broker failed of what is for those who may read; probes come without a token.
    reasons = _reasons(service) if request[_RIGHT] >= Right.READ else ""
    if cached is None:
        raise RefusedError(503, f"nothing has been measured yet{reasons}")
    if cached.is_stale:
        raise RefusedError(503, f"the latest snapshot is {cached.age_s:.0f} s old{reasons}")
    return web.json_response({"status": "ready", "age_s": round(cached.age_s, 3)})
