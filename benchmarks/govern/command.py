"""`python -m benchmarks govern`: simulates workloads under every policy, prints tables, judges the default.

The workloads are Pollux's (OSDI 2021): 160 jobs in eight hours at load 1, on 16 nodes of 4 GPUs, with step
times that were measured on real GPUs; a resize costs 15 s. Each mean completion is compared with a bound that
no policy can be below.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
from rich.console import Console

from benchmarks.govern.report import Row, document, draw, misses, table_of
from benchmarks.govern.workloads import LOADS, pollux_workload
from benchmarks.records import data_folder
from benchmarks.results import keep, results_option, tell_misses
from evenload.governor.deciding.plugins import DEFAULT, GuardedPolicy, known_policies, load_policy
from evenload.governor.simulating.bound import mean_completion_bound
from evenload.governor.simulating.metrics import figures_of
from evenload.governor.simulating.simulation import Costs, simulate

NUM_SLOTS = 64
RESIZE_COST_S = 15.0
WAIT_MAX_S = 600.0  # under the default policy; under others nobody is owed a turn


@click.command()
@click.option(
    "--quick", is_flag=True, help="One workload a load; writes no result unless --results is given."
)
@results_option
def govern(quick: bool, folder: Path | None) -> None:
    """How soon runs end under each policy; exit status 1 if the default misses its goals."""
    console = Console(highlight=False)
    console.width = max(console.width, 110)
    data = data_folder()
    if not (data / "traces").is_dir():
        raise click.ClickException(f"no data in {data}: set EVENLOAD_TEST_DATA to a folder with traces/")
    rows: list[Row] = []
    with console.status("") as status:
        for load in LOADS:
            for number in range(1, 2 if quick else 9):
                status.update(f"load {load}, workload {number}")
                workload = pollux_workload(data / "traces", load, number)
                bound_s = mean_completion_bound(workload, NUM_SLOTS)
                for name in known_policies():
                    # In virtual time, only the answers count: a busy machine isn't a policy's fault.
                    policy = GuardedPolicy(load_policy(name), name=name, clock=lambda: 0.0)
                    ended = simulate(
                        workload,
                        policy,
                        num_slots=NUM_SLOTS,
                        costs=Costs(start_s=RESIZE_COST_S),
                        wait_max_s=WAIT_MAX_S if name == DEFAULT else math.inf,
                    )
                    if policy.fault:
                        raise click.ClickException(policy.fault)
                    rows.append(Row(load, number, name, bound_s, figures_of(ended, NUM_SLOTS)))
            console.print(table_of([row for row in rows if row.load == load]))
    keep(document(rows), lambda: draw(rows), folder, is_whole=not quick)
    tell_misses(console, misses(rows), is_judged=not quick)
