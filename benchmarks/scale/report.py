"""Say what `benchmarks scale` found: tables for the terminal, a document for scripts, a picture, a verdict.

Differences are in points of utilisation, memory in MiB, times in milliseconds unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from benchmarks.outcome import POINT
from benchmarks.results import machine
from benchmarks.scale.clusters import Size
from benchmarks.scale.decisions import Comparison, Timing
from benchmarks.scale.memory import Memory
from benchmarks.scale.simulation import Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALLOWED_S = 0.5
ALLOWED_POINTS = 0.5
ALLOWED_HERD_RATIO = 2.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that was found."""

    size: Size
    timings: Sequence[Timing]
    memory: Memory
    compared: Sequence[Comparison]
    random: Sequence[Comparison]
    simulated: Sequence[Simulated]


def verdicts(result: Result) -> dict[str, bool]:
    """Each goal, and whether it is met."""
    compared = [*result.compared, *result.random]
    return {
        f"a decision takes under {ALLOWED_S} s": max(each.seconds for each in result.timings) < ALLOWED_S,
        f"line and spread at most {ALLOWED_POINTS} points over the optimum's": max(
            max(each.line_points, each.spread_points) for each in compared
        )
        <= ALLOWED_POINTS,
        f"no broker gets more than {ALLOWED_HERD_RATIO:.0f} fair shares in a period": max(
            max(each.herd_ratios) for each in result.simulated
        )
        <= ALLOWED_HERD_RATIO,
    }


def passes(result: Result) -> bool:
    """Whether every goal is met."""
    return all(verdicts(result).values())


def tables(result: Result) -> Group:
    """All of it, to read."""
    size = result.size
    title = (
        f"[bold]{size.num_brokers:,} brokers, {size.num_all_partitions:,} partitions, a topic of "
        f"{size.num_partitions:,}, 3 replicas[/bold]"
    )
    met = [
        f"{goal}: {'[green]passes[/green]' if is_met else '[red]FAILS[/red]'}"
        for goal, is_met in verdicts(result).items()
    ]
    parts = (_timings(result), _comparisons(result), _simulations(result), _memory(result.memory))
    return Group(title, *(line for part in parts for line in ("", part)), "", *met)


def _timings(result: Result) -> Table:
    table = Table("one decision", box=None, pad_edge=False)
    for heading in ("ms", "processor ms", "first, ms"):
        table.add_column(heading, justify="right")
    for each in result.timings:
        table.add_row(
            each.state, *(f"{1000 * value:.0f}" for value in (each.seconds, each.processor_s, each.first_s))
        )
    return table


def _comparisons(result: Result) -> Table:
    table = Table("points over the optimum", "to come", box=None, pad_edge=False)
    for heading in ("line", "spread", "by rank: mean", "worst", "optimum, s"):
        table.add_column(heading, justify="right")
    for each in result.compared:
        to_come = "unknown" if each.remaining is None else f"{each.remaining:.0%}"
        table.add_row(each.state, to_come, *_points(each), f"{each.optimum_s:.1f}")
    if result.random:
        highest = (
            max(getattr(each, name) for each in result.random)
            for name in ("line_points", "spread_points", "mean_points", "worst_points")
        )
        table.add_row(f"highest of {len(result.random)} random", "", *(f"{value:.3f}" for value in highest))
    return table


def _points(each: Comparison) -> tuple[str, ...]:
    values = (each.line_points, each.spread_points, each.mean_points, each.worst_points)
    return tuple(f"{value:.3f}" for value in values)


def _simulations(result: Result) -> Table:
    table = Table("spread, points", box=None, pad_edge=False)
    for heading in (
        "producers",
        "own rest",
        "periods",
        "before",
        "after",
        "undelayed",
        "best",
        "fair shares",
        "decisions",
    ):
        table.add_column(heading, justify="right")
    for each in result.simulated:
        spreads = (each.spread_before, each.spreads[-1], each.undelayed_spreads[-1], each.best_spread)
        table.add_row(
            each.state,
            f"{each.load.num_producers:,}",
            "known" if each.load.is_rest_known else "unknown",
            str(each.load.num_periods),
            *(f"{value / POINT:.1f}" for value in spreads),
            f"{max(each.herd_ratios):.2f}",
            f"{each.num_decisions:,}",
        )
    return table


def _memory(memory: Memory) -> Table:
    table = Table("memory", box=None, pad_edge=False)
    table.add_column("MiB", justify="right")
    for name, size_bytes in asdict(memory).items():
        table.add_row(name.replace("_", " "), f"{size_bytes / _MIB:.2f}")
    return table


def document(result: Result) -> dict[str, Any]:
    """All of it, for `results.write_json`."""
    return {
        "benchmark": "scale",
        "machine": machine("numpy", "scipy"),
        "criterion": {
            "seconds_max": ALLOWED_S,
            "points_over_optimum_max": ALLOWED_POINTS,
            "fair_shares_max": ALLOWED_HERD_RATIO,
        },
        "size": asdict(result.size),
        "goals": verdicts(result),
        "decisions": [_rounded(asdict(each)) for each in result.timings],
        "memory_bytes": asdict(result.memory),
        "optimum": [_rounded(asdict(each)) for each in result.compared],
        "random_clusters": [_rounded(asdict(each)) for each in result.random],
        "simulated": [_rounded(asdict(each)) for each in result.simulated],
    }


def _rounded(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _round(value) for name, value in entry.items()}


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return [_round(each) for each in value] if isinstance(value, list) else value


def draw(result: Result) -> Figure:
    """Spread over periods by state: as written, and had nothing been delayed; a line for the optimum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    all_axes = figure.subplots(2, -(-len(result.simulated) // 2), squeeze=False).ravel()
    for axes, each in zip(all_axes, result.simulated, strict=False):
        before = each.spread_before / POINT
        periods = range(len(each.spreads) + 1)
        delayed = [before, *(spread / POINT for spread in each.spreads)]
        undelayed = [before, *(spread / POINT for spread in each.undelayed_spreads)]
        axes.plot(periods, undelayed, color="#9aa5b1", linewidth=4, label="undelayed")
        axes.plot(periods, delayed, color="#c2185b", marker="o", markersize=3, label="5 to 38 s old")
        axes.axhline(each.best_spread / POINT, color="#3f7d58", linestyle=":", label="best in hindsight")
        rest = ", rest known" if each.load.is_rest_known else ""
        axes.set_title(f"{each.state}, {each.load.num_producers:,} producers{rest}", fontsize="small")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in all_axes[len(result.simulated) :]:
        axes.set_visible(False)
    figure.supxlabel("sampling periods of 30 s", fontsize="small")
    figure.supylabel("spread, points", fontsize="small")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    return figure
