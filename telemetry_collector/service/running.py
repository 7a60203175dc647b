"""Run a collector service until somebody stops it.

    asyncio.run(serve(connection, config, host="127.0.0.1", port=9405, explain=explain, on_ready=print))

It opens its port first and measures then, so that `/readyz` can say what keeps it from being ready. When it
is stopped, everything ends at once and for less than a second, whoever doesn't answer then: clients, brokers,
or where metrics are pushed to (tests/unit/telemetry_collector/service/test_stops.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from aiohttp import web
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from evenload.http_edge.listening import listening, url_of
from evenload.kafka_connection import Connection
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.config import CollectorConfig
from evenload.telemetry_collector.export.otlp import OtlpExport
from evenload.telemetry_collector.pushed.client_figures import KINDS
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.daemon_thread import in_daemon_thread
from evenload.telemetry_collector.service.http.page_routes import page_routes
from evenload.telemetry_collector.service.http.pushed_routes import pushed_routes
from evenload.telemetry_collector.service.http.server import LINE_MAX_BYTES, make_app
from evenload.telemetry_collector.service.instruments import service_instruments
from evenload.telemetry_collector.service.page.live_page import ExplainWith, LivePage
from evenload.telemetry_collector.sources.pushed_metrics import PushedMetricsSource
from evenload.telemetry_collector.weights_file import WeightsFile

__all__ = ["serve"]

_log = logging.getLogger(__name__)

# What isn't done by then is left to the end of the process.
_REQUESTS_END_S = 0.3
_REST_ENDS_S = 0.5
_KEEPALIVE_S = 75.0  # longer than clients wait from one question to the next

_End = Callable[[], Coroutine[Any, Any, None]]


async def serve(
    connection: Connection,
    config: ServiceConfig,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    topics: Collection[str] | None = (),
    collector_config: CollectorConfig | None = None,
    otlp_endpoint: str | None = None,
    explain: ExplainWith,
    also_serving: Callable[[CollectorService], AbstractContextManager[Iterable[web.RouteDef]]] = lambda _: (
        contextlib.nullcontext(())
    ),
    on_ready: Callable[[str], None],
) -> signal.Signals:
    """Serve until SIGINT or SIGTERM. For the main thread's loop.

    Args:
        connection: the cluster; weights are kept in its `weights_path`, if it has one.
        config: bounds, and who may ask.
        host: where to listen.
        port: likewise; 0: any that is free.
        tls: with the service's certificate; None: plain http.
        topics: what is measured though nobody asks for it; None: all topics, each `full_interval_s`.
        collector_config: how often to measure.
        otlp_endpoint: where metrics are pushed to (OTLP over HTTP), as http://host:4318/v1/metrics.
        explain: says on the live page how willing one should be to send to each broker.
        also_serving: what else it serves, from when it is entered.
        on_ready: told the service's URL when it can be asked.

    Returns:
        What stopped it.

    Raises:
        OSError: it can't listen there.
        ClusterChangedError: another cluster answers at the addresses by now: what was announced, reported and
            weighted is of the one before, and a supervisor starts another service.
        ModuleNotFoundError: pushing needs a package that is not installed.
    """
    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, _stop, stopped, each)
    page = LivePage(explain)
    pushed = PushedClients()
    collector = Collector(
        connection,
        collector_config,
        topics,
        more_sources=[PushedMetricsSource(kind, pushed) for kind in KINDS],
        publish=page.remember,
        is_for_many=True,
    )
    weights_file = WeightsFile(connection.weights_path) if connection.weights_path else None
    service = CollectorService(collector, config, weights_file=weights_file, pushed=pushed)
    ends: list[_End] = [partial(_within, _REST_ENDS_S, collector.close)]
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(_all_at_once, ends)
        if otlp_endpoint is not None:
            export = OtlpExport(collector, _otlp_reader(otlp_endpoint), service_instruments(service))
            ends.append(partial(_within, _REST_ENDS_S, export.close))
        runner = web.AppRunner(
            make_app(
                service,
                (
                    *page_routes(page),
                    *pushed_routes(pushed),
                    *stack.enter_context(also_serving(service)),
                ),
            ),
            access_log=None,
            auto_decompress=False,  # http_edge/bodies.py
            shutdown_timeout=_REQUESTS_END_S,
            keepalive_timeout=_KEEPALIVE_S,
            max_line_size=LINE_MAX_BYTES,
        )
        port = await stack.enter_async_context(listening(runner, host, port, tls=tls))
        collector.start()
        house = asyncio.create_task(service.keep_house())
        house.add_done_callback(partial(_end_with, stopped))
        stack.callback(house.cancel)
        on_ready(url_of(host, port, is_tls=tls is not None))
        return await stopped


def _stop(stopped: asyncio.Future[signal.Signals], by: signal.Signals) -> None:
    if not stopped.done():
        stopped.set_result(by)


def _end_with(stopped: asyncio.Future[signal.Signals], task: asyncio.Task[None]) -> None:
    """A service that can't keep house any more doesn't go on half."""
    if not task.cancelled() and (error := task.exception()) is not None and not stopped.done():
        stopped.set_exception(error)


async def _all_at_once(ends: Sequence[_End]) -> None:
    await asyncio.gather(*(end() for end in ends))


def _otlp_reader(endpoint: str) -> PeriodicExportingMetricReader:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint))


async def _within(timeout_s: float, close: Callable[[], None]) -> None:
    """Call what may wait for somebody who doesn't answer; not for longer than so many seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await in_daemon_thread(close, name="evenload-closing")
    except TimeoutError:
        _log.warning("closing takes longer than %g s; the process ends without it", timeout_s)
    except Exception:  # noqa: BLE001 - it is given up anyway
        _log.exception("closing failed; the process ends without it")
