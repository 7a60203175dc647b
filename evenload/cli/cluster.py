"""`evenload up`, `down`, `status`: the embedded cluster, and how full the brokers of any cluster are.

The embedded cluster is imported where it is needed: an install without `[local]` has the other commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.edge import cluster_options, json_option
from evenload.cli.output import Output, percent_text
from evenload.home import evenload_home
from evenload.kafka_connection.connection import Connection
from evenload.sizes import bytes_text, parse_bytes
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.snapshot import ClusterSnapshot

if TYPE_CHECKING:
    from evenload.local_cluster import LocalCluster


_COLLECTOR_URL = "http://127.0.0.1:9405"


class CapacityList(click.ParamType[list[int]]):
    """One size for every broker ('2GiB'), or one a broker ('2GiB,2GiB,1GiB')."""

    name = "capacity"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            return [parse_bytes(size) for size in value.split(",")]
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option("--brokers", type=click.IntRange(1, 9), help="How many brokers.  [default: 3]")
@click.option(
    "--capacity",
    type=CapacityList(),
    metavar="SIZE[,SIZE...]",
    help="What each broker may hold: one size for all, or one a broker.  [default: 2GiB]",
)
@click.option(
    "--kafka-version",
    metavar="VERSION",
    help="Which Apache Kafka, 3.3.0 or later; only the jars of 3.3.2, 3.7.2, 3.9.1 and 4.3.1 are checked.  "
    "[default: 4.3.1]",
)
@click.option(
    "--telemetry",
    "telemetry_url",
    metavar="[URL]",
    is_flag=False,
    flag_value=_COLLECTOR_URL,
    help="Have brokers (Kafka 3.7.0 or later) hand on what Kafka's clients push about themselves, to "
    f"the collector service at this URL, or at {_COLLECTOR_URL}. Its token to ingest: "
    "EVENLOAD_COLLECTOR_TOKEN_FILE.",
)
@click.option("--no-telemetry", is_flag=True, help="Have them hand on nothing any more.")
@json_option
def up(
    *,
    brokers: int | None,
    capacity: list[int] | None,
    kafka_version: str | None,
    telemetry_url: str | None,
    no_telemetry: bool,
    output: Output,
) -> None:
    """Start the embedded Kafka cluster of EVENLOAD_HOME (default .evenload), or find it running.

    Real Apache Kafka with its own Java; the first start downloads about 44 MB. Brokers, capacities, version
    and telemetry are kept: a later `up` needs no option.
    """
    from evenload.local_cluster import DEFAULT_NUM_BROKERS, LocalCluster
    from evenload.local_cluster.jars import is_usable

    if kafka_version is not None and not is_usable(kafka_version):
        raise click.BadParameter(
            f"{kafka_version!r} is not a version from 3.3.0 on", param_hint="--kafka-version"
        )
    if telemetry_url is not None and no_telemetry:
        raise click.UsageError("--telemetry and --no-telemetry: say one of them")
    kept = _existing_cluster()
    if capacity and len(capacity) == 1:
        capacity *= brokers or (len(kept.broker_ids) if kept else DEFAULT_NUM_BROKERS)
    cluster = LocalCluster(
        evenload_home(),
        num_brokers=brokers,
        capacity_bytes=capacity,
        kafka_version=kafka_version,
        progress=output.note,
        **_with_plugin(kept, "" if no_telemetry else telemetry_url, kafka_version, output),
    ).start()
    _show_cluster(cluster.connection, output)


def _with_plugin(
    kept: LocalCluster | None, url: str | None, kafka_version: str | None, output: Output
) -> Mapping[str, Any]:
    """What a cluster is given so that its brokers have the telemetry plugin, or not any more.

    Args:
        url: of the service; "": no plugin; None: as it was.
    """
    from evenload.jvm.broker_plugin import (
        OLDEST_KAFKA,
        TOKEN_FILE,
        URL,
        is_in,
        plugin_properties,
        without_plugin,
    )
    from evenload.jvm.jar import evenload_jar
    from evenload.local_cluster.jars import KAFKA_VERSION, is_older

    told = kept.broker_properties if kept is not None else {}
    version = kept.kafka_version if kept is not None else kafka_version or KAFKA_VERSION
    if (url is None and not is_in(told)) or kafka_version not in (None, version):  # which is refused
        return {}
    wanted, jars = without_plugin(told), []
    if url != "":
        if url and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", url):
            raise click.BadParameter(f"{url!r} is not http://HOST:PORT, nor https", param_hint="--telemetry")
        if is_older(version, OLDEST_KAFKA):
            raise click.BadParameter(
                f"clients push their metrics from Kafka {OLDEST_KAFKA} on, and this is {version}",
                param_hint="--telemetry",
            )
        token = os.environ.get("EVENLOAD_COLLECTOR_TOKEN_FILE") or (
            told.get(TOKEN_FILE) if url is None else None
        )
        url = url or told[URL]
        wanted = plugin_properties(version, url, Path(token).absolute() if token else None, among=told)
        jars = [evenload_jar(output.note)]
    if wanted != told and kept is not None and kept.is_running:
        output.note("brokers that run are told when they start next: `evenload down`, then `evenload up`")
    return {"broker_properties": wanted, "extra_jars": jars}


@click.command()
@json_option
def down(*, output: Output) -> None:
    """Stop the embedded cluster of EVENLOAD_HOME; its data stay for the next `up`."""
    cluster = _existing_cluster()
    was_running = cluster is not None and cluster.stop()
    output.document({"stopped": was_running})
    output.line("stopped" if was_running else "nothing was running")


@click.command()
@cluster_options
def status(*, connection: Connection, output: Output) -> None:
    """How full the brokers are."""
    _show_cluster(connection, output)


def _existing_cluster() -> LocalCluster | None:
    from evenload.local_cluster import LocalCluster
    from evenload.local_cluster.errors import NoLocalClusterError

    try:
        return LocalCluster.load(evenload_home())
    except NoLocalClusterError:
        return None


def _show_cluster(connection: Connection, output: Output) -> None:
    document = {
        "bootstrap_servers": connection.bootstrap_servers,
        "collector_url": connection.collector_url,
        **brokers_document(sample_once(connection)),
    }
    output.document(document)
    output.line(f"bootstrap servers  {connection.bootstrap_servers}")
    if connection.collector_url is not None:
        output.line(f"collector          {connection.collector_url}")
    show_brokers(document, output)


def brokers_document(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """`brokers` and `utilisation_spread` as every command's JSON shows them."""
    return {
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "capacity_bytes": broker.capacity_bytes,
                "used_bytes": broker.used_bytes,
                "utilisation": broker.utilisation,
                "reachable": broker.is_reachable,
            }
            for _, broker in sorted(snapshot.brokers.items())
        ],
        "utilisation_spread": snapshot.utilisation_spread,
    }


def show_brokers(document: Mapping[str, Any], output: Output) -> None:
    """The same as a table, with the spread below."""
    output.table(
        ["broker", "capacity", "used", "utilisation", ""],
        [
            [
                str(broker["broker_id"]),
                bytes_text(broker["capacity_bytes"]),
                bytes_text(broker["used_bytes"]),
                percent_text(broker["utilisation"]),
                "" if broker["reachable"] else "unreachable",
            ]
            for broker in document["brokers"]
        ],
    )
    spread = document["utilisation_spread"]
    if spread is not None:
        output.line(f"spread  {100 * spread:.1f} points between the fullest and the emptiest")
