"""`evenload collector`: one process that measures a cluster for any number of producers."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from pydantic import SecretStr, ValidationError

from evenload.cli.edge import StoppedError, cluster_options
from evenload.cli.output import Output
from kafka_connection import Connection
from kafka_connection.connection import first_reason
from kafka_connection.environment import collector_token
from telemetry_collector.config import CollectorConfig

DEFAULT_PORT = 9405


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
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Holds the token with which weights may be changed over HTTP.  [default: EVENLOAD_COLLECTOR_TOKEN]",
)
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
    token_file: Path | None,
    metrics_urls: tuple[tuple[int, str], ...],
    otlp_endpoint: str | None,
    connection: Connection,
    output: Output,
) -> None:
    """Measure the brokers once for any number of producers, until stopped.

    Producers use it when their connection names it: set EVENLOAD_COLLECTOR_URL to the URL that this prints,
    or collector_url in a connection file. The URL itself is a page that shows the brokers, what is coming,
    and why; metrics for Prometheus are at /metrics.
    """
    from evenload.explaining import Explainer
    from telemetry_collector.service.config import ServiceConfig
    from telemetry_collector.service.running import serve

    def on_ready(url: str) -> None:
        output.document({"collector_url": url, "bootstrap_servers": connection.bootstrap_servers})
        output.line(f"serving {url}")

    # It measures by itself, whatever services there are.
    measured = connection.model_copy(
        update={"collector_url": None, "weights_path": weights_path or connection.weights_path}
    )
    token = token_file.read_text(encoding="utf-8").strip() if token_file else collector_token()
    if token_file and not token:
        raise ValueError(f"token file {token_file} is empty")
    stopped_by = asyncio.run(
        serve(
            measured,
            ServiceConfig(token=SecretStr(token) if token else None),
            host=host,
            port=port,
            topics=None if all_topics else (),
            collector_config=_collecting(interval_s, metrics_urls),
            otlp_endpoint=otlp_endpoint,
            explain=Explainer(),
            on_ready=on_ready,
        )
    )
    if stopped_by == signal.SIGINT:
        raise StoppedError()


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
