"""`evenload forecast`: how full brokers would be after a load, for each way of choosing partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.edge import SizeType, cluster_options
from evenload.cli.output import Output, percent_text
from evenload.kafka_connection import Connection
from evenload.sizes import bytes_text

if TYPE_CHECKING:
    from evenload.kafka_plugin.loading.forecast import LoadForecast

_DAY_S = 86_400.0
_STRATEGIES = ("balanced", "round-robin", "default", "keyed")


@click.command()
@click.argument("name")
@click.option("--size", type=SizeType(), required=True, metavar="BYTES", help="Payload to come, as 40GiB.")
@click.option(
    "--days",
    type=click.FloatRange(0, min_open=True),
    help="In how many days it comes: what retention by age deletes of a topic meanwhile is then left out.",
)
@click.option("--partitions", type=click.IntRange(1), help="Partitions of a new topic.  [default: by size]")
@click.option(
    "--replication", type=click.IntRange(1), help="Copies in a new topic.  [default: the cluster's]"
)
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(_STRATEGIES),
    multiple=True,
    help="Show only this one; may be repeated.  [default: all]",
)
@click.option(
    "--goal",
    metavar="NAME",
    help="What evenload brings out even, as with `evenload ingest`.  [default: dataset_spread; for a topic "
    "that exists, as producers do: disk_usage]",
)
@click.option(
    "--keyed",
    "keys_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A sample of records' keys, one a line, each as often as it comes.",
)
@cluster_options
def forecast(
    *,
    name: str,
    size: int,
    days: float | None,
    partitions: int | None,
    replication: int | None,
    strategies: tuple[str, ...],
    goal: str | None,
    keys_file: Path | None,
    connection: Connection,
    output: Output,
) -> None:
    """Say how full brokers would be after more payload for NAME, before a byte is written.

    NAME is a topic that exists, or a dataset, new or not: its topic, or that of its next version, is placed
    as `evenload ingest` would. Shown are the strategies of `ingest`, and records that keep the partition of
    their key; the best that any choice could reach with this placement; and what no placement could beat.

    Payload is what records' values take: for images about what their files do, for text that `ingest` packs
    about a third more than its file. What is stored beyond that (small records, compression) is reckoned as
    with the newest version of the dataset, so loading a small part first tells it.
    """
    from evenload.kafka_plugin.loading.forecast import forecast_load

    told = forecast_load(
        connection,
        name,
        size_bytes=size,
        num_partitions=partitions,
        replication=replication,
        over_s=None if days is None else days * _DAY_S,
        keys=None if keys_file is None else list(_lines(keys_file)),
        goal=goal,
    )
    shown = strategies or _STRATEGIES
    document = forecast_document(name, told, shown)
    output.document(document)
    _show(document, told, shown, output)


def _lines(path: Path) -> Iterator[bytes]:
    return (line for line in path.read_bytes().splitlines() if line.strip())


def forecast_document(name: str, told: LoadForecast, shown: tuple[str, ...]) -> dict[str, Any]:
    """The forecast as the command line's JSON shows it."""
    return {
        "name": name,
        "topic": told.topic,
        "num_partitions": told.num_partitions,
        "replication": told.replication,
        "size_bytes": told.size_bytes,
        "stored_bytes": told.stored_bytes,
        "now": _levels(told.possible.now),
        "strategies": {
            name: {
                "brokers": [
                    {
                        "broker_id": broker_id,
                        "utilisation": expected,
                        "low": strategy.low[broker_id],
                        "high": strategy.high[broker_id],
                    }
                    for broker_id, expected in sorted(strategy.expected.items())
                ],
                "utilisation_spread": strategy.spread,
                "note": strategy.note,
            }
            for name, strategy in told.strategies.items()
            if name in shown
        },
        "best": _levels(told.possible.best),
        "anywhere": _levels(told.possible.anywhere),
        "advice": list(told.advice),
    }


def _levels(levels: Mapping[int, float]) -> dict[str, Any]:
    return {
        "brokers": [
            {"broker_id": broker_id, "utilisation": level} for broker_id, level in sorted(levels.items())
        ],
        "utilisation_spread": max(levels.values()) - min(levels.values()),
    }


def _show(document: dict[str, Any], told: LoadForecast, shown: tuple[str, ...], output: Output) -> None:
    where = f"topic {told.topic}" if told.topic else "a new topic"
    output.line(
        f"{bytes_text(told.size_bytes)} of payload, {bytes_text(told.stored_bytes)} stored, into {where} of "
        f"{told.num_partitions} partitions, {told.replication} copies"
    )
    broker_ids = [str(broker["broker_id"]) for broker in document["now"]["brokers"]]
    rows = [_row("now", document["now"])]
    rows += [_row(name, document["strategies"][name]) for name in shown]
    rows += [_row("best possible", document["best"]), _row("with copies anywhere", document["anywhere"])]
    output.table(["", *(f"broker {broker_id}" for broker_id in broker_ids), "spread"], rows)
    for name in shown:
        output.line(f"{name}: {document['strategies'][name]['note']}")
    for sentence in document["advice"]:
        output.line(f"note: {sentence}")


def _row(name: str, levels: Mapping[str, Any]) -> list[str]:
    return [
        name,
        *(_level_text(broker) for broker in levels["brokers"]),
        f"{100 * levels['utilisation_spread']:.1f}",
    ]


def _level_text(broker: Mapping[str, Any]) -> str:
    expected = broker["utilisation"]
    text = percent_text(expected)
    off = max(broker.get("high", expected) - expected, expected - broker.get("low", expected))
    return f"{text} \N{PLUS-MINUS SIGN} {100 * off:.0f}" if off >= 0.005 else text
