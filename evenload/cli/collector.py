"""`evenload collector`: one process that measures a cluster for any number of producers."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from pydantic import ValidationError

from evenload.cli.edge import StoppedError, cluster_options, is_loopback
from evenload.cli.output import Output
from evenload.cli.tls import tls_options
from evenload.extras import naming_extra
from evenload.kafka_connection import Connection
from evenload.kafka_connection.connection import COLLECTOR_FIELDS, first_reason
from evenload.kafka_connection.environment import service_token
from evenload.kafka_connection.secrets import read_secret
from evenload.telemetry_collector.config import CollectorConfig

if TYPE_CHECKING:
    from aiohttp.web import RouteDef

    from evenload.telemetry_collector.service.collector_service import CollectorService
    from evenload.telemetry_collector.service.config import ServiceConfig

DEFAULT_PORT = 9405

F = TypeVar("F", bound=Callable[..., Any])


def _token_option(right: str, what_for: str) -> Callable[[F], F]:
    return click.option(
        f"--{right}-token-file",
        f"{right}_token_path",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        envvar=f"EVENLOAD_COLLECTOR_{right.upper()}_TOKEN_FILE",
        show_envvar=True,
        help=f"Holds the token {what_for}  [default: EVENLOAD_COLLECTOR_{right.upper()}_TOKEN]",
    )


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0: everywhere.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0: any that is free.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 3600),
    default=5.0,
    show_default=True,
    help="Seconds from one measurement to the next.",
)
@click.option(
    "--all-topics", is_flag=True, help="Measure all topics (seldom), not only those asked for (often)."
)
@click.option(
    "--weights",
    "weights_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    envvar="EVENLOAD_WEIGHTS",
    show_envvar=True,
    help="JSON file of weights: read when it changes, written when they are changed over HTTP.",
)
@click.option(
    "--share",
    is_flag=True,
    help="Share weights and announcements with the cluster's other services that do so, by the topic "
    "evenload-service.told; weights are kept there, and not in a file. Takes the extra [load] as well.",
)
@_token_option("operate", "to change weights, and to do all else; without one, nobody may change them.")
@_token_option("ingest", "to announce bytes and report routes, as loads and producers do, and to read.")
@_token_option("read", "to read snapshots, the page and metrics.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A name by which clients call it, beside addresses, localhost, this machine's name and --host; "
    "others are refused, as a web page could have its own name point here.",
)
@tls_options
@click.option(
    "--metrics-url",
    "metrics_urls",
    type=(int, str),
    multiple=True,
    metavar="BROKER URL",
    help="Where a broker's metrics are served for Prometheus (JMX exporter); once for each broker.",
)
@click.option(
    "--otlp-endpoint",
    metavar="URL",
    help="Push metrics there by OTLP over HTTP, as http://host:4318/v1/metrics.",
)
@cluster_options
def collector(
    *,
    host: str,
    port: int,
    interval_s: float,
    all_topics: bool,
    weights_path: Path | None,
    share: bool,
    operate_token_path: Path | None,
    ingest_token_path: Path | None,
    read_token_path: Path | None,
    allowed_hosts: tuple[str, ...],
    tls: ssl.SSLContext | None,
    metrics_urls: tuple[tuple[int, str], ...],
    otlp_endpoint: str | None,
    connection: Connection,
    output: Output,
) -> None:
    """Measure the brokers once for any number of producers, until stopped.

    Producers use it when their connection names it: set EVENLOAD_COLLECTOR_URL to the URL that this prints,
    or collector_url in a connection file. The URL itself is a page that shows the brokers, what is coming,
    and why; metrics for Prometheus are at /metrics.

    Whoever uses it shows a token where one is set: producers and loads the one to ingest, in
    EVENLOAD_COLLECTOR_TOKEN (or a file, EVENLOAD_COLLECTOR_TOKEN_FILE) or collector_token in a connection
    file. Each token also opens what those below it open; while the one to ingest isn't set, the one to read
    counts for it.
    """
    from evenload.explaining import Explainer
    from evenload.telemetry_collector.service.running import serve

    def on_ready(url: str) -> None:
        output.document({"collector_url": url, "bootstrap_servers": connection.bootstrap_servers})
        output.line(f"serving {url}")

    # It measures by itself, whatever services there are.
    measured = connection.model_copy(
        update={
            **dict.fromkeys(COLLECTOR_FIELDS),
            "weights_path": weights_path or connection.weights_path,
        }
    )
    if share and measured.weights_path is not None:
        raise click.UsageError(
            f"--share keeps weights in a topic, so those of {measured.weights_path} would be ignored; leave "
            "out one of both"
        )
    config = _admitting(
        {"operate": operate_token_path, "ingest": ingest_token_path, "read": read_token_path},
        (*allowed_hosts, *_own_names(host)),
    )
    for warning in _dangers(host, config, is_tls=tls is not None):
        output.note(f"WARNING: {warning}")
    stopped_by = asyncio.run(
        serve(
            measured,
            config,
            host=host,
            port=port,
            tls=tls,
            topics=None if all_topics else (),
            collector_config=_collecting(interval_s, metrics_urls),
            otlp_endpoint=otlp_endpoint,
            explain=Explainer(),
            also_serving=partial(_serving, measured if share else None),
            on_ready=on_ready,
        )
    )
    if stopped_by == signal.SIGINT:
        raise StoppedError()


@contextmanager
def _serving(shared: Connection | None, service: CollectorService) -> Iterator[Iterable[RouteDef]]:
    """Routes, and what services of one cluster share by a topic of it, if they do."""
    from evenload.route_service.http_routes import serving_routes

    with ExitStack() as stack:
        if shared is not None:
            with naming_extra("load", "--share"):  # which reads a topic, as loads do
                from evenload.route_service.sharing import Sharing
            service.beside = stack.enter_context(Sharing(shared, service))
        yield stack.enter_context(serving_routes(service))


def _admitting(path_by_right: Mapping[str, Path | None], allowed_hosts: Sequence[str]) -> ServiceConfig:
    """Who may ask for what."""
    from evenload.telemetry_collector.service.config import ServiceConfig

    tokens = {
        f"{right}_token": service_token(right) if path is None else read_secret(path)
        for right, path in path_by_right.items()
    }
    try:
        return ServiceConfig.model_validate({**tokens, "allowed_hosts": frozenset(allowed_hosts)})
    except ValidationError as error:
        raise click.UsageError(first_reason(error)) from error


def _own_names(host: str) -> list[str]:
    """By which names it may be called without being told; addresses go without saying."""
    from evenload.http_edge.browsers import HOST_NAME

    # A machine may be called what no `Host` header could say, and nobody asks for it by that.
    names = [socket.gethostname(), host]
    return [name for name in names if re.fullmatch(HOST_NAME, name)]


def _dangers(host: str, config: ServiceConfig, *, is_tls: bool) -> Iterator[str]:
    """What an operator should know who lets others reach the service."""
    from evenload.telemetry_collector.service.admission import Right

    if is_loopback(host):
        return
    admission = config.admission()
    if admission.is_open(Right.INGEST):
        yield (
            f"whoever reaches {host} may change everything that producers and loads go by (announce bytes, "
            "report routes): set --ingest-token-file, or listen on 127.0.0.1 alone"
        )
    if admission.is_open(Right.READ):
        yield f"whoever reaches {host} may read all that is measured: set --read-token-file"
    has_token = not admission.is_open(Right.INGEST) or config.operate_token is not None
    if has_token and not is_tls:
        yield "tokens come here unencrypted: set --tls-certificate, or let TLS end on this machine"


def _collecting(interval_s: float, metrics_urls: Sequence[tuple[int, str]]) -> CollectorConfig:
    """Everything else in proportion, where the defaults don't fit so long an interval."""
    broker_ids = Counter(broker_id for broker_id, _ in metrics_urls)
    if twice := [broker_id for broker_id, num in broker_ids.items() if num > 1]:
        raise click.UsageError(f"--metrics-url: broker {twice[0]} is named twice")
    defaults = CollectorConfig()
    try:
        return CollectorConfig(
            interval_s=interval_s,
            metrics_url_by_broker=dict(metrics_urls),
            full_interval_s=max(defaults.full_interval_s, interval_s),
            age_max_s=max(defaults.age_max_s, 2 * interval_s + defaults.deadline_s),
        )
    except ValidationError as error:  # an address, whose password its own text would quote
        raise click.UsageError(first_reason(error)) from error
