"""`evenload ingest` and `evenload datasets`: put datasets into Kafka, look at them, check them, drop them.

What reads and writes datasets loads Arrow, so it is imported by the commands.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.cluster import brokers_document, show_brokers
from evenload.cli.edge import cluster_options
from evenload.cli.output import Output
from evenload.dataset_catalog.errors import CorruptManifestError
from evenload.kafka_connection import Connection, KafkaConnectionError
from evenload.sizes import bytes_text
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.errors import CollectorError

if TYPE_CHECKING:
    from evenload.dataset_catalog.catalog import Catalog, DamagedRecords
    from evenload.dataset_catalog.manifest import DatasetManifest


@click.command()
@click.argument("name")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--encoding",
    type=click.Choice(["packed", "record"]),
    default="packed",
    show_default=True,
    help="Many samples a record (Arrow), or one sample a record.",
)
@click.option("--partitions", type=click.IntRange(1), help="Partitions of the new topic.  [default: by size]")
@click.option(
    "--replication", type=click.IntRange(1), help="Copies of each partition.  [default: the cluster's]"
)
@click.option(
    "--strategy",
    type=click.Choice(["balanced", "default", "round-robin"]),
    default="balanced",
    show_default=True,
    help="Who chooses partitions: evenload, librdkafka's default partitioner, or turn by turn.",
)
@click.option(
    "--goal",
    metavar="NAME",
    help="What --strategy balanced brings out even, unless an operator has set it: dataset_spread, what each "
    "broker has of the dataset, as readers wait for the one with most; disk_usage, how full brokers get; or "
    "a goal of your own.  [default: dataset_spread]",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME",
    help="Name of a column, repeated in order, for files without a header.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the shuffle while writing.")
@click.option("--keep-order", is_flag=True, help="Write samples in the source's order instead.")
@click.option("--new-version", is_flag=True, help="Write version n + 1 of a name that exists.")
@click.option("--take-over", is_flag=True, help="Go on with a load whose loader still seems to be alive.")
@cluster_options
def ingest(
    *,
    name: str,
    sources: tuple[str, ...],
    columns: tuple[str, ...],
    goal: str | None,
    seed: int,
    keep_order: bool,
    connection: Connection,
    output: Output,
    **options: Any,
) -> None:
    """Load a dataset NAME into Kafka from files, balanced over brokers, exactly once.

    SOURCE is one or more Parquet, CSV, TSV, JSON lines, Arrow or text files, or a folder with one folder of
    images a class. Killed at any moment, the same command goes on where the load stood.
    """
    from evenload.kafka_plugin.loading.loader import load_dataset
    from evenload.router.config import RouterConfig

    if goal is not None and options["strategy"] != "balanced":
        raise click.UsageError(
            f"--goal is what evenload levels by, which doesn't choose with --strategy {options['strategy']}"
        )
    with output.progress(f"loading {name}", "samples") as bar:
        task = bar.add_task(name, total=None, detail="")

        def show_progress(samples_done: int, samples_total: int, bytes_done: int) -> None:
            bar.update(task, completed=samples_done, total=samples_total, detail=bytes_text(bytes_done))

        manifest = load_dataset(
            list(sources),
            name,
            connection=connection,
            columns=list(columns) or None,
            seed=None if keep_order else seed,
            progress=show_progress,
            router_config=None if goal is None else RouterConfig(goals={goal: 1.0}),
            **options,
        )
    document = manifest_document(manifest) | _brokers_after(connection, output)
    output.document(document)
    output.line(
        f"{manifest.id}: {manifest.num_samples:,} samples, {bytes_text(manifest.num_bytes)} in "
        f"{manifest.num_records:,} records over {len(manifest.partitions)} partitions of {manifest.topic}"
    )
    if document["brokers"]:
        show_brokers(document, output)


def _brokers_after(connection: Connection, output: Output) -> dict[str, Any]:
    """How full the brokers are; the dataset is published, so not to know it is no failure."""
    try:
        return brokers_document(sample_once(connection))
    except (CollectorError, KafkaConnectionError) as error:
        output.note(f"the dataset is loaded, but the brokers can't be measured: {error}")
        return {"brokers": [], "utilisation_spread": None}


@click.group(invoke_without_command=True)
@click.pass_context
@cluster_options
def datasets(context: click.Context, *, connection: Connection | None, output: Output) -> None:
    """List the datasets, unfinished loads and damaged records among them; show, verify or drop one."""
    if connection is None or context.invoked_subcommand is not None:
        return
    listing = _catalog(connection).listing()
    # Mapped, so that no manifest, which can have a million runs, is held while the next one is decoded.
    complete = list(filter(None, map(_document_if_whole, listing.each())))
    unfinished, damaged = listing.unfinished(), listing.damaged()
    output.document(
        {
            "datasets": complete,
            "unfinished": [
                {
                    "name": load.last.name,
                    "version": load.last.version,
                    "samples_written": load.last.num_samples,
                    "problem": load.problem,
                }
                for load in unfinished
            ],
            "damaged": [_damaged_document(each) for each in damaged],
        }
    )
    rows = [
        [
            f"{each['name']}@{each['version']}",
            f"{each['num_samples']:,}",
            bytes_text(each["num_bytes"]),
            each["encoding"],
            "complete",
        ]
        for each in complete
    ]
    rows += [
        [load.id, f"{load.last.num_samples:,}", "", "", load.problem or "unfinished"] for load in unfinished
    ]
    if rows:
        output.table(["dataset", "samples", "size", "encoding", ""], rows)
    # Not in the table: a long reason would leave no room for names.
    for each in damaged:
        output.line(f"damaged: {each.name} in topic {each.topic}: {each.reason}")
    if damaged:
        output.line("`evenload datasets drop --damaged` clears what is damaged; all else can be used")
    if not rows and not damaged:
        output.line("no datasets yet; `evenload ingest NAME FILE...` loads one")


@datasets.command()
@click.argument("name")
@cluster_options
def show(*, name: str, connection: Connection, output: Output) -> None:
    """Show the manifest of NAME, or of NAME@VERSION."""
    manifest = _catalog(connection).get(name)
    document = manifest_document(manifest)
    output.document(document)
    output.table(
        [manifest.id, ""],
        [
            [key, str(value)]
            for key, value in document.items()
            if key not in ("name", "version", "features", "partitions")
        ],
    )
    output.line()
    output.table(["column", "type"], [[column, kind] for column, kind in manifest.features.items()])
    output.line()
    output.table(
        ["partition", "samples", "records", "first offset"],
        [[str(cell) for cell in part.values()] for part in document["partitions"]],
    )


@datasets.command()
@click.argument("name")
@cluster_options
def verify(*, name: str, connection: Connection, output: Output) -> None:
    """Read all of NAME and count missing, repeated, corrupt and extra samples; exit 1 if there are any."""
    from evenload.dataset_catalog.verify import verify as verify_dataset

    manifest = _catalog(connection).get(name)
    with output.progress(f"verifying {manifest.id}", "samples") as bar:
        task = bar.add_task(name, total=manifest.num_samples, detail="")
        report = verify_dataset(
            connection, manifest, lambda done, total: bar.update(task, completed=done, total=total)
        )
    output.document(
        {
            "dataset": manifest.id,
            "samples": report.num_samples,
            "missing": report.missing,
            "repeated": report.repeated,
            "corrupt": report.corrupt,
            "extra": report.extra,
            "checksum_matches": report.checksum_matches,
            "clean": report.is_clean,
        }
    )
    findings = ", ".join(
        f"{getattr(report, kind)} {kind}" for kind in ("missing", "repeated", "corrupt", "extra")
    )
    checksum = f"checksum {'matches' if report.checksum_matches else 'DIFFERS FROM'} the source"
    output.line(f"{manifest.id}: {report.num_samples:,} samples read: {findings}; {checksum}")
    if not report.is_clean:
        raise click.ClickException(f"dataset {manifest.id} is damaged: {findings}; {checksum}")


@datasets.command()
@click.argument("name", required=False)
@click.option("--damaged", is_flag=True, help="Instead of NAME: all records that can't be read; topics stay.")
@click.option("--yes", is_flag=True, help="Don't ask before damaged records are cleared.")
@cluster_options
def drop(*, name: str | None, damaged: bool, yes: bool, connection: Connection, output: Output) -> None:
    """Delete NAME (all versions) or NAME@VERSION with its topic; unfinished loads too."""
    if damaged == (name is not None):
        raise click.UsageError("give either NAME or --damaged")
    if name is None:
        _drop_damaged(_catalog(connection), output, yes=yes)
        return
    dropped = list(_catalog(connection).drop(name))
    output.document({"dropped": dropped})
    output.line(f"dropped {', '.join(dropped)}")


def _drop_damaged(catalog: Catalog, output: Output, *, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        for each in catalog.damaged():
            output.note(f"{each.name} in topic {each.topic}: {each.kept_because or each.reason}")
        click.confirm(
            "Clear these records? Loads and datasets that they are of are lost", abort=True, err=True
        )
    damaged = catalog.drop_damaged()
    cleared = [each for each in damaged if not each.kept_because]
    kept = [each for each in damaged if each.kept_because]
    output.document(
        {
            "dropped": [each.name for each in cleared],
            "kept": [_damaged_document(each) for each in kept],
        }
    )
    for each in cleared:
        output.line(f"cleared {each.name} in topic {each.topic}: {each.reason}")
    for each in kept:
        output.line(f"kept {each.name} in topic {each.topic}: {each.kept_because}")
    if not damaged:
        output.line("nothing is damaged")


def _catalog(connection: Connection) -> Catalog:
    from evenload.dataset_catalog.catalog import Catalog

    return Catalog(connection)


def _document_if_whole(found: DatasetManifest | CorruptManifestError) -> dict[str, Any] | None:
    return None if isinstance(found, CorruptManifestError) else manifest_document(found)


def _damaged_document(damaged: DamagedRecords) -> dict[str, Any]:
    return {
        "name": damaged.name,
        "topic": damaged.topic,
        "reason": damaged.reason,
        "kept_because": damaged.kept_because,
    }


def manifest_document(manifest: DatasetManifest) -> dict[str, Any]:
    """A manifest as the command line's JSON shows it: what it holds, without every run."""
    return {
        "name": manifest.name,
        "version": manifest.version,
        "topic": manifest.topic,
        "num_samples": manifest.num_samples,
        "num_records": manifest.num_records,
        "num_bytes": manifest.num_bytes,
        "encoding": manifest.encoding,
        "shuffle_seed": manifest.shuffle_seed,
        "checksum": manifest.checksum,
        "features": dict(manifest.features),
        "partitions": [
            {
                "partition": part.partition,
                "num_samples": part.num_samples,
                "num_records": part.num_records,
                "first_offset": int(part.first_offset[0]) if part.num_extents else None,
            }
            for part in manifest.partitions
        ],
    }
