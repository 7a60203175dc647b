"""`python -m benchmarks govern`: simulates workloads under every policy, prints tables, judges the default.

The workloads are Pollux's (OSDI 2021): 160 jobs in eight hours at load 1, on 16 nodes of 4 GPUs, with step
times that were measured on real GPUs; a resize costs 15 s. Each mean completion is compared with a bound that
no policy can be below.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from benchmarks.govern.report import Row, conditions_table, document, draw, misses, table_of
from benchmarks.govern.workloads import (
    LOADS,
    NUM_WORKLOADS,
    philly_workload,
    pollux_workload,
    with_a_shared_broker,
)
from benchmarks.records import data_folder
from benchmarks.results import keep, results_option, tell_misses
from evenload.governor.deciding.plugins import DEFAULT, FALLBACK, GuardedPolicy, known_policies, load_policy
from evenload.governor.simulating.bound import mean_completion_bound
from evenload.governor.simulating.metrics import figures_of
from evenload.governor.simulating.simulation import Costs, simulate

NUM_SLOTS = 64
SHARED = "cifar10"
LOST_AT_S = 4 * 3600.0
RESIZE_COST_S = 15.0


class Condition(NamedTuple):
    """Something other than what is judged."""

    name: str
    costs: Costs = Costs(start_s=RESIZE_COST_S)
    is_learning: bool = False
    is_of_days: bool = False  # jobs come as they did on single days, in Philly's trace
    has_shared_broker: bool = False  # the runs of SHARED read from one that can't give what they want
    knows_brokers: bool = True


# What else may be: at load 1, under the default and the simplest elastic rule.
CONDITIONS = (
    Condition("resizes are free", Costs(start_s=0.0)),
    Condition("resizes take 60 s", Costs(start_s=60.0)),
    Condition("speeds are learned", is_learning=True),
    Condition("jobs come as on single days (Philly)", is_of_days=True),
    Condition("a broker is too slow, unknown", has_shared_broker=True, knows_brokers=False),
    Condition("a broker is too slow, with a budget", has_shared_broker=True),
    Condition(
        "1 % of starts fail, a node of 4 is lost", Costs(failed_starts=0.01, slots_from=((LOST_AT_S, 60),))
    ),
)
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
            for number in range(1, 2 if quick else NUM_WORKLOADS + 1):
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
        under = [row for condition in CONDITIONS for row in _under(condition, data / "traces", quick=quick)]
    console.print(conditions_table(under))
    keep(document(rows, under), lambda: draw(rows), folder, is_whole=not quick)
    tell_misses(console, misses(rows), is_judged=not quick)


def _under(condition: Condition, traces: Path, *, quick: bool) -> list[Row]:
    """All workloads of load 1, or as many days, under another condition."""
    rows = []
    for number in range(1, 2 if quick else NUM_WORKLOADS + 1):
        days = condition.is_of_days
        workload = philly_workload(traces, number) if days else pollux_workload(traces, 1.0, number)
        costs = condition.costs
        if condition.has_shared_broker:
            workload, limit = with_a_shared_broker(workload, SHARED)
            costs = replace(costs, broker_bytes_per_s={1: limit})
        for name in (DEFAULT, FALLBACK):
            ended = simulate(
                workload,
                load_policy(name),
                num_slots=NUM_SLOTS,
                costs=costs,
                wait_max_s=WAIT_MAX_S if name == DEFAULT else math.inf,
                is_learning=condition.is_learning,
                knows_brokers=condition.knows_brokers,
            )
            figures = figures_of(ended, NUM_SLOTS)
            rows.append(Row(1.0, number, name, math.nan, figures, condition.name))
    return rows
