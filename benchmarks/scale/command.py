"""`python -m benchmarks scale`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console

from benchmarks.results import keep, results_option
from benchmarks.scale.clusters import STATES, Size
from benchmarks.scale.decisions import compare_random, compare_with_optimum, time_decision
from benchmarks.scale.memory import measure_memory
from benchmarks.scale.report import Result, document, draw, passes, tables
from benchmarks.scale.simulation import Load, simulate

SEED = 1
# What is still to come, as a part of the brokers' capacity, all copies counted; None: nobody knows.
REMAINING = (None, 0.3)
NUM_RANDOM = 40
# A twentieth of all capacity in 30 s: some hundred times what brokers take, so delay shows the more.
MANY = Load(num_producers=1_000, num_periods=3, period_fraction=0.05)
# A decision takes a tenth of a second: in all states, fewer producers that each write more.
FEWER = Load(num_producers=50, num_periods=10, period_fraction=0.05)
KNOWN = Load(num_producers=50, num_periods=10, period_fraction=0.02, is_rest_known=True)
QUICK = Load(num_producers=20, num_periods=10, period_fraction=0.05)
QUICK_KNOWN = Load(num_producers=20, num_periods=10, period_fraction=0.02, is_rest_known=True)
MANY_STATE = "20 joined empty"
TABLE_WIDTH = 120


@click.command()
@click.option(
    "--quick", is_flag=True, help="A tenth of everything; writes no result unless --results is given."
)
@results_option
def scale(quick: bool, folder: Path | None) -> None:
    """A thousand brokers, a thousand producers, simulated; exit status 1 if a goal is missed."""
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    begun_s = time.monotonic()
    part = 10 if quick else 1
    result = measure(
        Size(num_brokers=1_000 // part, num_partitions=3_000 // part, num_all_partitions=100_000 // part),
        loads=[(state, load) for load in (QUICK, QUICK_KNOWN) for state in STATES]
        if quick
        else [(MANY_STATE, MANY), *((state, load) for load in (FEWER, KNOWN) for state in STATES)],
        num_random=NUM_RANDOM // part,
    )
    console.print(tables(result))
    console.print(f"{time.monotonic() - begun_s:.0f} s")
    keep(document(result), lambda: draw(result), folder, is_whole=not quick)
    if not passes(result):
        raise click.exceptions.Exit(1)


def measure(size: Size, *, loads: Sequence[tuple[str, Load]], num_random: int) -> Result:
    """All of it. What is timed runs alone, the rest on all cores.

    Args:
        size: Of the clusters.
        loads: What is written, each in a state; the longest first.
        num_random: How many smaller random clusters are compared with the optimum.
    """
    timings = [time_decision(state, size, SEED) for state in STATES]
    memory = measure_memory(size, SEED)
    # Spawned: a fork would lose the threads that linear algebra and the programs' solver may have by now.
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        simulated = [pool.submit(simulate, state, size, each, SEED) for state, each in loads]
        compared = [
            pool.submit(compare_with_optimum, state, size, SEED, remaining)
            for state in STATES
            for remaining in REMAINING
        ]
        random = [pool.submit(compare_random, seed) for seed in range(num_random)]
        return Result(
            size=size,
            timings=timings,
            memory=memory,
            compared=[each.result() for each in compared],
            random=[each.result() for each in random],
            simulated=[each.result() for each in simulated],
        )
