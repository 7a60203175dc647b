"""`python -m benchmarks imbalance`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import click
from rich.console import Console

from benchmarks.imbalance.moving import CAPACITY_MIB, THROTTLED, UNTHROTTLED, measure_moves
from benchmarks.imbalance.report import document, draw, least_sentence, misses, tables
from benchmarks.imbalance.writing import CONTENDERS, LAYOUT, RECORDS_PER_S, UNBOUNDED, write_all
from benchmarks.results import keep, results_option, tell_misses
from benchmarks.stage import BROKER_PROPERTIES, FULL_COMPILER
from benchmarks.strategies import EVENLOAD
from evenload.local_cluster import temporary_cluster

MOVES = (THROTTLED, UNTHROTTLED, UNTHROTTLED, THROTTLED, THROTTLED, UNTHROTTLED)
QUICK_CONTENDERS = (EVENLOAD, UNBOUNDED, "round robin")


@click.command()
@click.option(
    "--quick",
    is_flag=True,
    help="Three ways of writing, a balance of each kind; writes no result unless --results is given.",
)
@results_option
def imbalance(quick: bool, folder: Path | None) -> None:
    """What it takes to level brokers that are 70/20/10 % full; exit status 1 if evenload misses its goals."""
    console = Console(highlight=False)
    console.width = max(console.width, 110)
    contenders = [each for each in CONTENDERS if not quick or each.name in QUICK_CONTENDERS]
    with (
        console.status("starting brokers") as status,
        patch.dict(os.environ, FULL_COMPILER),
        temporary_cluster(num_brokers=4, broker_properties=BROKER_PROPERTIES) as cluster,
    ):
        written = write_all(
            cluster,
            LAYOUT,
            contenders,
            records_per_s=RECORDS_PER_S,
            started=lambda name: status.update(f"writing: {name}"),
        )
        moved = measure_moves(
            cluster,
            MOVES[:2] if quick else MOVES,
            capacity_mib=CAPACITY_MIB,
            started=lambda kind: status.update(f"moving, {kind}"),
        )
    result = document(written, moved)
    console.print(least_sentence(result))
    for table in tables(result):
        console.print()
        console.print(table)
    keep(result, lambda: draw(result), folder, is_whole=not quick)
    tell_misses(console, misses(result))
