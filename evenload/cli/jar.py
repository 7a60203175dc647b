"""`evenload jar`: where the jar for JVM producers is."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from evenload.cli.edge import json_option
from evenload.cli.output import Output


@click.command()
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Copy it into this folder, which is made where it isn't there.",
)
@json_option
def jar(*, folder: Path | None, output: Output) -> None:
    """Say where evenload's jar for Java producers is; build it first where that is needed.

    \b
    A producer loads it with three settings:
      partitioner.class=io.evenload.kafka.partitioner.EvenloadPartitioner
      evenload.url=https://collector:9405
      evenload.token.file=/run/secrets/ingest
    """
    from evenload.jvm.jar import JAR_NAME, evenload_jar

    path = evenload_jar(output.note)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(shutil.copyfile(path, folder / JAR_NAME))
    output.document({"jar": str(path)})
    output.line(str(path))
