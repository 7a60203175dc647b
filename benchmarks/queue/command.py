"""`python -m benchmarks queue`: ten runs share four slots for real, under three policies, and with faults.

Brokers, Ray, checkpoints, stops and starts are real; only a step's time is made, as this machine has few
cores. About ten minutes a policy. Each policy begins with new brokers and a new Ray cluster.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from benchmarks.queue.passes import Alone, measure_alone, run_faults, run_pass, simulated
from benchmarks.queue.report import document, draw, misses, table_of
from benchmarks.queue.workload import RUNS
from benchmarks.results import keep, results_option, tell_misses
from evenload.governor.deciding.plugins import DEFAULT

POLICIES = ("fifo", "elastic_fifo", DEFAULT)


@click.command()
@click.option("--quick", is_flag=True, help="Four runs, without faults; judges nothing.")
@results_option
def queue(quick: bool, folder: Path | None) -> None:
    """Many runs on four slots, for real; exit status 1 if a goal is missed."""
    console = Console(highlight=False)
    runs = RUNS[1:5] if quick else RUNS
    alone = measure_alone(console.print, repetitions=1 if quick else 3)
    usual = Alone(
        start_s=sorted(each.start_s for each in alone)[len(alone) // 2],
        stop_s=sorted(each.stop_s for each in alone)[len(alone) // 2],
    )
    resize_cost_s = usual.start_s + usual.stop_s
    passes = []
    for policy in POLICIES:
        console.print(f"[bold]{policy}[/bold]")
        passes.append(run_pass(policy, resize_cost_s, console.print, runs=runs))
    expected = {policy: simulated(policy, usual, runs=runs) for policy in POLICIES}
    faults = None
    if not quick:
        console.print("[bold]faults[/bold]")
        faults = run_faults(resize_cost_s, console.print)
    console.print(table_of(passes, expected))
    if not quick or folder is not None:
        keep(
            document(passes, expected, alone, faults),
            lambda: draw(passes, expected),
            folder,
            is_whole=not quick,
        )
    tell_misses(console, misses(passes, expected, alone, faults), is_judged=not quick)
