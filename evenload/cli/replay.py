"""`evenload jobs replay`: what would have become of a trace of jobs under each policy."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenload.cli.edge import json_option
from evenload.cli.output import Output

if TYPE_CHECKING:
    from evenload.governor.simulating.replay import Replayed

_BOUND_JOBS_MAX = 500  # its time and memory grow with the square of their number


@click.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--slots", "num_slots", type=click.IntRange(1), required=True, help="What there is to be.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Show only this one; may be repeated.  [default: all that are installed]",
)
@click.option(
    "--speeds",
    "speeds_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV with kind, slots, samples_per_s.",
)
@click.option(
    "--resize-cost",
    "resize_cost_s",
    type=click.FloatRange(0),
    default=15.0,
    show_default=True,
    help="Seconds from a stop to the first step at another size.",
)
@click.option(
    "--wait-max",
    "wait_max_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Who has waited so long gets a turn.  [default: nobody]",
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw slots over time to this file."
)
@json_option
def replay(
    *,
    trace: Path,
    num_slots: int,
    policies: tuple[str, ...],
    speeds_file: Path | None,
    resize_cost_s: float,
    wait_max_s: float | None,
    svg: Path | None,
    output: Output,
) -> None:
    """What would have become of the jobs of TRACE under each policy, in simulated time.

    TRACE is a CSV file with a line for each job: `submitted` (seconds, or a date with time), `slots` that it
    asked for, `duration_s` that it took on these; and if you like `name`, `kind`, `min_slots`, `max_slots`.
    How fast each kind is with more or fewer slots is in the file of `--speeds`; of other kinds it is guessed.

    No policy can have a lower mean completion (from submission to end) than the bound that is shown.
    """
    from evenload.governor.deciding.plugins import known_policies
    from evenload.governor.simulating.bound import mean_completion_bound
    from evenload.governor.simulating.replay import draw, replay
    from evenload.governor.simulating.simulation import Costs
    from evenload.governor.simulating.traces import GROWTH, GROWTH_SLOTS, read_speeds, read_trace

    speeds = read_speeds(speeds_file) if speeds_file else {}
    workload, num_guessed = read_trace(trace, num_slots, speeds)
    names = policies or known_policies()
    replayed = []
    with output.progress("replaying", "policies") as bar:
        task = bar.add_task("", total=len(names), detail="")
        for name in names:
            bar.update(task, detail=name)
            replayed.append(
                replay(
                    workload,
                    name,
                    num_slots=num_slots,
                    costs=Costs(start_s=resize_cost_s),
                    wait_max_s=math.inf if wait_max_s is None else wait_max_s,
                )
            )
            bar.advance(task)
    replayed.sort(key=lambda each: each.figures.mean_s)
    is_bounded = len(workload) <= _BOUND_JOBS_MAX
    bound_s = mean_completion_bound(workload, num_slots) if is_bounded else None
    if svg:
        draw(replayed, workload, num_slots).savefig(svg, format="svg")
    output.document(
        {"jobs": len(workload), "slots": num_slots, "bound_s": bound_s}
        | {"policies": {each.policy: asdict(each.figures) | {"fault": each.fault} for each in replayed}}
    )
    _show(replayed, bound_s, output)
    output.line(
        f"{len(workload):,} jobs on {num_slots:,} slots; a start or a resize takes {resize_cost_s:g} s. "
        "Shown are the mean and the 99th percentile of completions (from submission to end), the time until "
        "the last end, the part of all slots in use, the longest wait for slots, and resizes a job"
    )
    if bound_s is None:
        output.line(f"no bound: it is reckoned for up to {_BOUND_JOBS_MAX} jobs")
    else:
        output.line(f"no policy has a mean completion below {bound_s:,.0f} s")
    if num_guessed:
        output.line(
            f"note: --speeds doesn't say how fast {num_guessed:,} jobs are at other sizes: taken to grow "
            f"with slots^{GROWTH}, up to {GROWTH_SLOTS} times the slots asked for"
        )
    for each in replayed:
        if each.fault:
            output.line(f"note: {each.fault}")
    if svg:
        output.line(f"slots over time: {svg}")


def _show(replayed: list[Replayed], bound_s: float | None, output: Output) -> None:
    columns = ["policy", "mean s", "of bound", "p99 s", "makespan s", "in use", "waited s", "resizes"]
    output.table(columns, [_row(each, bound_s) for each in replayed])


def _row(each: Replayed, bound_s: float | None) -> list[Any]:
    figures = each.figures
    return [
        each.policy,
        f"{figures.mean_s:,.0f}",
        f"{figures.mean_s / bound_s:.2f}" if bound_s else "-",
        f"{figures.p99_s:,.0f}",
        f"{figures.makespan_s:,.0f}",
        f"{figures.utilisation:.0%}",
        f"{figures.longest_wait_s:,.0f}",
        f"{figures.resizes_per_job:.1f}",
    ]
