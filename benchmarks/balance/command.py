"""`python -m benchmarks balance`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from benchmarks.balance.report import cost_sentence, document, draw, layout_report, summary_table
from benchmarks.balance.route_cost import measure_route_cost
from benchmarks.balance.runs import Case, Run, run_all
from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.outcome import are_all_within_a_point
from benchmarks.results import keep, results_option
from benchmarks.strategies import EVENLOAD, JAVA, STRATEGIES

KIB = 1 << 10
TABLE_WIDTH = 120
# Part of the free capacity, size of records, seed.
LOADS = ((0.27, 64 * KIB, 1), (0.27, 256 * KIB, 2), (0.45, 64 * KIB, 3), (0.45, 256 * KIB, 4))
QUICK_LOADS = ((0.27, 256 * KIB, 2),)
SMALL_RECORDS = (0.27, KIB, 5)
SMALL_RECORDS_LAYOUT = "capacities 2:2:1"


@click.command()
@click.option("--quick", is_flag=True, help="One load a layout; writes no result unless --results is given.")
@click.option(
    "--layout", "layouts", multiple=True, metavar="TEXT", help="Only layouts whose name holds this."
)
@click.option(
    "--strategy", "names", multiple=True, type=click.Choice(list(STRATEGIES)), help="Only these strategies."
)
@results_option
def balance(quick: bool, layouts: Sequence[str], names: Sequence[str], folder: Path | None) -> None:
    """How even brokers end up, by strategy; exit status 1 if evenload is not within 1 point of the best."""
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)  # a narrower one would lose figures
    begun_s = time.monotonic()
    chosen = [layout for layout in LAYOUTS if not layouts or any(text in layout.name for text in layouts)]
    if not chosen:
        raise click.UsageError(f"no layout's name holds {' or '.join(layouts)}")
    strategies = [strategy for name, strategy in STRATEGIES.items() if not names or name in names]
    cost = measure_route_cost()
    console.print(cost_sentence(cost))
    runs: list[Run] = []
    with console.status("starting brokers") as status:
        for of_layout in run_all(make_cases(chosen, quick=quick), strategies, _told(status)):
            console.print(layout_report(of_layout))
            runs += of_layout
    console.print()
    console.print(summary_table(runs))
    console.print(f"{len(runs)} loads in {time.monotonic() - begun_s:.0f} s")
    is_whole = not (quick or layouts or names)
    keep(document(runs, cost), lambda: draw(runs), folder, is_whole=is_whole)
    judged = [run.outcome for run in runs if run.strategy in (EVENLOAD, JAVA)]
    if not cost.is_cheap or (judged and not are_all_within_a_point(judged)):
        raise click.exceptions.Exit(1)


def make_cases(layouts: Sequence[Layout], *, quick: bool) -> list[Case]:
    """The loads of each layout: part of the free capacity, record size, seed."""
    return [
        Case(layout=layout, fraction=fraction, record_bytes=record_bytes, seed=seed)
        for layout in layouts
        for fraction, record_bytes, seed in _loads(layout, quick=quick)
    ]


def _loads(layout: Layout, *, quick: bool) -> Sequence[tuple[float, int, int]]:
    if quick:
        return QUICK_LOADS
    if layout.name == SMALL_RECORDS_LAYOUT:
        return (*LOADS, SMALL_RECORDS)
    if layout.intrusion_mib:  # these last seconds each
        return (LOADS[0], LOADS[3])
    return LOADS


def _told(status: Status) -> Callable[[Case, str], None]:
    def started(case: Case, strategy: str) -> None:
        status.update(f"{case.layout.name}, {case.fraction:.0%}, {case.record_bytes // KIB} KiB: {strategy}")

    return started
