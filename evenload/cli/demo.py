"""`evenload demo`: the whole path on this machine, with a worker killed on the way."""

from __future__ import annotations

from pathlib import Path

import click

from evenload.cli.edge import json_option
from evenload.cli.output import Output


@click.command()
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-report"),
    show_default=True,
    help="Where the page with the pictures goes.",
)
@json_option
def demo(*, report: Path, output: Output) -> None:
    """Real brokers, a real dataset, two Ray workers, one of them killed: see what happens.

    Starts three embedded brokers in a temporary folder, loads about 48,000 pictures of digits, trains on
    them, audits the run, has two runs share a cluster of four slots, and leaves nothing running. Three to
    four minutes.
    """
    from evenload.demo.steps import run_demo

    output.document(run_demo(report, tell=output.note if output.as_json else output.line))
