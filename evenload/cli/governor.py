"""`evenload governor`: one process that sizes many runs on one Ray cluster."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.edge import SizeType, StoppedError, cluster_options, is_loopback
from evenload.cli.output import Output
from evenload.cli.tls import tls_options
from evenload.kafka_connection import Connection

if TYPE_CHECKING:
    from evenload.governor.service.dataset_reads import ReadBudgets

DEFAULT_PORT = 9406


class BudgetType(click.ParamType[tuple[int | None, int]]):
    """Bytes a second: 200MiB of each broker, 3=80MiB of broker 3."""

    name = "budget"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int]:
        """What was written, as a broker's id and a number; None: each broker."""
        broker, equals, size = str(value).rpartition("=")
        if equals and not broker.isdecimal():
            self.fail(f"{value!r} isn't [BROKER=]SIZE, as 200MiB or 3=80MiB", param, ctx)
        num_bytes = SizeType().convert(size, param, ctx)
        if num_bytes <= 0:
            self.fail("a budget is above 0", param, ctx)
        return int(broker) if equals else None, num_bytes


def _budgets(given: tuple[tuple[int | None, int], ...]) -> ReadBudgets:
    from evenload.governor.service.dataset_reads import ReadBudgets

    by_broker = dict(given)
    if len(by_broker) < len(given):
        raise click.UsageError("--read-budget: a broker is named twice, or two are for each")
    every = by_broker.pop(None, None)
    return ReadBudgets(every, {broker: size for broker, size in by_broker.items() if broker is not None})


@click.command()
@click.option(
    "--ray",
    "ray_address",
    metavar="URL",
    help="Of the Ray cluster's dashboard.  [default: RAY_API_SERVER_ADDRESS or http://127.0.0.1:8265]",
)
@click.option(
    "--slots-from",
    "slot",
    type=click.Choice(("GPU", "CPU")),
    default="GPU",
    show_default=True,
    help="Of what each worker takes one.",
)
@click.option(
    "--policy",
    metavar="NAME",
    help="What decides who has how many.  [default: as it was set last, at first smartfill]",
)
@click.option(
    "--wait-max",
    "wait_max_s",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Who has waited so long gets a turn.",
)
@click.option(
    "--token-file",
    "token_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Who may do what: a line for each token, `SHA256 RIGHT [TEAM]`; rights are read, submit, "
    "submit-plain, operate. Without it, whoever uses this machine may do all.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; elsewhere than on this machine only with --token-file.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="A name by which clients call it, beside addresses, localhost and --host.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0: any that is free.",
)
@click.option(
    "--report-url",
    metavar="URL",
    help="Where the cluster's machines reach it, if not at --host and --port: runs say there how far they "
    "are, and aren't resized while they can't.",
)
@click.option(
    "--read-budget",
    "read_budgets",
    type=BudgetType(),
    multiple=True,
    metavar="[BROKER=]SIZE",
    help="Bytes a second that each broker, or this one, can give to runs: where they would read more, some "
    "get fewer workers. As 200MiB, or 3=80MiB; without it, as much as they ask for.",
)
@click.option(
    "--gpu-metrics",
    "gpu_metrics",
    metavar="URL",
    multiple=True,
    help="Where an exporter says how busy GPUs are, as http://node-1:9400/metrics: NVIDIA's dcgm-exporter, "
    "or Ray's own metrics. Its page then says who holds GPUs for nothing, and which of them fail.",
)
@tls_options
@click.option("--take-over", is_flag=True, help="Also from a governor that is at work; that one stops.")
@cluster_options
def governor(
    *,
    ray_address: str | None,
    slot: str,
    policy: str | None,
    wait_max_s: float,
    token_path: Path | None,
    host: str,
    allowed_hosts: tuple[str, ...],
    port: int,
    report_url: str | None,
    take_over: bool,
    read_budgets: tuple[tuple[int | None, int], ...],
    gpu_metrics: tuple[str, ...],
    tls: ssl.SSLContext | None,
    connection: Connection,
    output: Output,
) -> None:
    """Size many runs on one Ray cluster, until stopped.

    Runs join its queue by `evenload jobs submit`. It decides how many workers each has now, and resizes them
    by a stop after a checkpoint, so that no sample is lost or repeated. What it knows is in the Kafka topic
    evenload-governor.jobs: killed at any moment, the next one goes on from there, and runs don't notice.
    """
    from evenload.governor.service.running import serve
    from evenload.governor.service.tokens import Tokens

    if host in ("0.0.0.0", "::") and report_url is None:
        raise click.UsageError(
            f"--host is {host!r}: say with --report-url where the cluster's machines reach it"
        )
    if not is_loopback(host):
        if token_path is None:
            raise click.UsageError(
                f"--host is {host!r}: without --token-file it is asked on this machine only, as 127.0.0.1"
            )
        if tls is None:
            output.note(
                "WARNING: tokens come here unencrypted: set --tls-certificate, or let TLS end on this machine"
            )

    def on_ready(url: str) -> None:
        output.document({"governor_url": url, "bootstrap_servers": connection.bootstrap_servers})
        output.line(f"serving {url}")

    stopped_by = asyncio.run(
        serve(
            connection,
            host=host,
            port=port,
            ray_address=ray_address,
            slot="GPU" if slot == "GPU" else "CPU",
            policy=policy,
            wait_max_s=wait_max_s,
            take_over=take_over,
            tls=tls,
            read_budgets=_budgets(read_budgets),
            gpu_metrics=gpu_metrics,
            report_url=report_url,
            tokens=Tokens(token_path),
            allowed_hosts={name.lower() for name in (host, *allowed_hosts)},
            on_ready=on_ready,
        )
    )
    if stopped_by == signal.SIGINT:
        raise StoppedError()
