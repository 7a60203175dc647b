"""What the simulations came to: tables, the document, the picture, the goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.results import machine
from evenload.governor.deciding.plugins import DEFAULT
from evenload.governor.simulating.metrics import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVER_BOUND_MAX = {0.5: 1.2, 1.0: 1.35, 1.5: 1.4}
BELOW_OTHERS_MIN = {"las": 0.25, "elastic_fifo": 0.18, "power_mean": 0.15, "afs": 0.10}  # at load 1
LONGEST_WAIT_MAX_S = 720.0
MAKESPAN_MAX, P99_MAX = 1.10, 1.05  # times those of elastic_fifo, at load 1


@dataclass(frozen=True, slots=True)
class Row:
    """A workload under a policy."""

    load: float
    workload: int
    policy: str
    bound_s: float
    figures: Figures
    condition: str = ""  # other than what is judged


def mean_s(rows: Sequence[Row], load: float, policy: str) -> float:
    """The mean completion of all workloads of a load, each counted alike."""
    return mean(row.figures.mean_s for row in rows if (row.load, row.policy) == (load, policy))


def bound_s(rows: Sequence[Row], load: float) -> float:
    """The bound on it."""
    return mean(row.bound_s for row in rows if row.load == load)


def table_of(rows: Sequence[Row]) -> Table:
    """One load: means over its workloads, the lowest first."""
    load = rows[0].load
    title = f"load {load:g}: mean completion at least {bound_s(rows, load):,.0f} s under any policy"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in (
        "mean s",
        "over the bound",
        "median s",
        "p99 s",
        "makespan s",
        "in use",
        "longest wait s",
        "resizes",
    ):
        table.add_column(column, justify="right")
    for policy in sorted({row.policy for row in rows}, key=lambda policy: mean_s(rows, load, policy)):
        of_policy = [row.figures for row in rows if row.policy == policy]
        table.add_row(
            policy,
            f"{mean_s(rows, load, policy):,.0f}",
            f"{mean_s(rows, load, policy) / bound_s(rows, load):.2f}",
            f"{mean(each.median_s for each in of_policy):,.0f}",
            f"{mean(each.p99_s for each in of_policy):,.0f}",
            f"{mean(each.makespan_s for each in of_policy):,.0f}",
            f"{mean(each.utilisation for each in of_policy):.0%}",
            f"{max(each.longest_wait_s for each in of_policy):,.0f}",
            f"{mean(each.resizes_per_job for each in of_policy):.1f}",
            style="bold" if policy == DEFAULT else "",
        )
    return table


def conditions_table(rows: Sequence[Row]) -> Table:
    """Means over the workloads of load 1 under other conditions, which are not judged."""
    table = Table(box=None, pad_edge=False, title="load 1, mean s where ...", title_justify="left")
    policies = sorted({row.policy for row in rows})
    for column in ("", *policies):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for condition in dict.fromkeys(row.condition for row in rows):
        of = [row for row in rows if row.condition == condition]
        table.add_row(condition, *(f"{mean_s(of, 1.0, policy):,.0f}" for policy in policies))
    return table


def misses(rows: Sequence[Row]) -> list[str]:
    """The goals that the default policy missed."""
    found = []
    for load, over_max in OVER_BOUND_MAX.items():
        over = mean_s(rows, load, DEFAULT) / bound_s(rows, load)
        if over > over_max:
            found.append(f"at load {load:g} {DEFAULT} is {over:.3f} times the bound, not at most {over_max}")
    for policy, below_min in BELOW_OTHERS_MIN.items():
        below = 1 - mean_s(rows, 1.0, DEFAULT) / mean_s(rows, 1.0, policy)
        if below < below_min:
            found.append(f"{DEFAULT} is {below:.1%} below {policy}, not at least {below_min:.0%}")
    for what, most in (("makespan_s", MAKESPAN_MAX), ("p99_s", P99_MAX)):
        own, other = (_mean(rows, what, policy) for policy in (DEFAULT, "elastic_fifo"))
        if own > most * other:
            found.append(
                f"the {what[:-2]} is {own / other:.2f} times that of elastic_fifo, not at most {most:.2f}"
            )
    longest_s = max(row.figures.longest_wait_s for row in rows if row.policy == DEFAULT)
    if longest_s > LONGEST_WAIT_MAX_S:
        found.append(f"a job waited {longest_s:.0f} s for slots, not at most {LONGEST_WAIT_MAX_S:.0f} s")
    return found


def _mean(rows: Sequence[Row], what: str, policy: str) -> float:
    """A figure's mean over the workloads of load 1."""
    return mean(float(getattr(row.figures, what)) for row in rows if (row.load, row.policy) == (1.0, policy))


def document(rows: Sequence[Row], under: Sequence[Row] = ()) -> dict[str, Any]:
    """All of it, for `results.write_json`."""
    return {
        "benchmark": "govern",
        "machine": machine("numpy"),
        "criterion": {
            "over_bound_max": {f"{load:g}": value for load, value in OVER_BOUND_MAX.items()},
            "below_others_min": BELOW_OTHERS_MIN,
            "longest_wait_max_s": LONGEST_WAIT_MAX_S,
            "makespan_over_elastic_fifo_max": MAKESPAN_MAX,
            "p99_over_elastic_fifo_max": P99_MAX,
        },
        "runs": [{"bound_s": round(row.bound_s, 1)} | _run(row) for row in rows],
        "other_conditions": [{"condition": row.condition} | _run(row) for row in under],
    }


def _run(row: Row) -> dict[str, Any]:
    figures = {name: round(value, 3) for name, value in asdict(row.figures).items()}
    return {"load": row.load, "workload": row.workload, "policy": row.policy, **figures}


def draw(rows: Sequence[Row]) -> Figure:
    """Mean completion over the bound, by policy; a panel for each load."""
    from matplotlib.figure import Figure

    loads = sorted({row.load for row in rows})
    figure = Figure(figsize=(9, 3.2 * len(loads)), layout="constrained")
    for axes, load in zip(figure.subplots(len(loads), squeeze=False)[:, 0], loads, strict=True):
        names = sorted({row.policy for row in rows}, key=lambda name: mean_s(rows, load, name))
        over = [mean_s(rows, load, name) / bound_s(rows, load) for name in names]
        colors = ["#c7a252" if name == DEFAULT else "#9aa5b1" for name in names]
        bars = axes.barh(names[::-1], over[::-1], color=colors[::-1])
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
        axes.axvline(1, color="#52606d", linewidth=1)
        axes.set_xscale("log")
        axes.set_title(f"load {load:g}: mean completion over the bound", loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    return figure
