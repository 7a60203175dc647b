"""Say what `benchmarks balance` found: tables for the terminal, a document for scripts, a picture.

Utilisations are in percent, differences to the optimum in points of them; "worst" is over a layout's loads.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from benchmarks.balance.route_cost import ALLOWED_RATIO, JUDGED_RECORD_BYTES, RouteCost
from benchmarks.balance.runs import Run
from benchmarks.layouts import Layout
from benchmarks.outcome import ALLOWED_POINTS, POINT, Outcome, spread
from benchmarks.results import machine
from benchmarks.strategies import EVENLOAD, JAVA, STRATEGIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (
    *("#9aa5b1", "#b0457b", "#7b8794", "#52606d", "#c7a252"),
    *("#d9822b", "#6b8fb5", "#3f7d58", "#8e6bb5", "#c2185b"),
)
_MARKERS = ("v", "d", "^", "<", "s", "D", "P", "X", "h", "o")


def layout_report(runs: Sequence[Run]) -> Group:
    """What each strategy reached in one layout: a title, a table, and whether evenload passes."""
    verdict = _verdict({name: _worst_points(outcomes) for name, outcomes in _by_strategy(runs).items()})
    return Group(_title(runs[0].case.layout), _layout_table(runs), verdict)


def _layout_table(runs: Sequence[Run]) -> Table:
    loads = sorted({run.case.fraction for run in runs})
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for fraction in loads:
        table.add_column(f"load {fraction:.0%}:\nhighest", justify="right")
        table.add_column("\nspread", justify="right")
    table.add_column("worst over best:\nhighest", justify="right")
    table.add_column("\nspread", justify="right")
    table.add_column("leads\n(% by broker)", justify="right")
    best = [_reached([run.outcome.best for run in runs if run.case.fraction == load]) for load in loads]
    table.add_row("best possible", *chain.from_iterable(best), style="bold")
    for strategy, outcomes in _by_strategy(runs).items():
        own = [run for run in runs if run.strategy == strategy]
        reached = [
            _reached([run.outcome.utilisation for run in own if run.case.fraction == load]) for load in loads
        ]
        style = "bold" if strategy == EVENLOAD else ""
        table.add_row(
            strategy, *chain.from_iterable(reached), *_worst(outcomes), _leads(outcomes), style=style
        )
    return table


def _reached(utilisations: Sequence[Mapping[int, float]]) -> tuple[str, str]:
    """Highest and spread in percent, the medians over loads."""
    return (
        _percent(statistics.median(max(utilisation.values()) for utilisation in utilisations)),
        _percent(statistics.median(map(spread, utilisations))),
    )


def summary_table(runs: Sequence[Run]) -> Table:
    """Points over the best, the worse of highest and spread, by layout and strategy."""
    strategies = list(_by_strategy(runs))
    table = Table(box=None, pad_edge=False)
    table.add_column("[bold]points over the best[/bold]\n(highest or spread, worst load)", no_wrap=True)
    for strategy in strategies:
        table.add_column(strategy.replace(" ", "\n", 1), justify="right")
    table.add_column("")
    for layout, of_layout in _by_layout(runs).items():
        reached = _by_strategy(of_layout)
        points = {strategy: _worst_points(outcomes) for strategy, outcomes in reached.items()}
        texts = [_points_text(points[each]) if each in points else "" for each in strategies]
        table.add_row(layout, *texts, _verdict(points))
    return table


def cost_sentence(cost: RouteCost) -> str:
    """What choosing a partition costs."""
    verdict = "passes" if cost.is_cheap else "FAILS"
    sizes = ", ".join(f"{_size(size)} {ns:.0f} ns" for size, ns in cost.route_ns.items())
    return (
        f"partition_for costs {cost.ratio:.1f} times an empty method call of {cost.empty_ns:.0f} ns "
        f"(records of {_size(JUDGED_RECORD_BYTES)}; at most {ALLOWED_RATIO:.0f}: {verdict}). By record size: "
        f"{sizes}; with a producer's books {cost.producer_ns:.0f} ns."
    )


def document(runs: Sequence[Run], cost: RouteCost) -> dict[str, Any]:
    """All of it, for `results.write_json`."""
    layouts = {run.case.layout.name: run.case.layout for run in runs}
    return {
        "benchmark": "balance",
        "machine": machine("confluent-kafka", "kafka-python"),
        "criterion": {"points_over_best_max": ALLOWED_POINTS, "partition_for_ratio_max": ALLOWED_RATIO},
        "partition_for": {
            "ratio_to_empty_method": round(cost.ratio, 2),
            "empty_ns": round(cost.empty_ns, 1),
            "ns_by_record_bytes": {size: round(ns, 1) for size, ns in cost.route_ns.items()},
            "with_producers_books_ns": round(cost.producer_ns, 1),
        },
        "layouts": [_layout_entry(layout) for layout in layouts.values()],
        "runs": [_run_entry(run) for run in runs],
    }


def draw(runs: Sequence[Run]) -> Figure:
    """Points over the best, by layout; a marker for each strategy's median, a line from its best to worst."""
    from matplotlib.figure import Figure

    layouts = _by_layout(runs)
    strategies = list(_by_strategy(runs))
    figure = Figure(figsize=(9, 1.4 + 0.62 * len(layouts)), layout="constrained")
    axes = figure.subplots()
    labelled: set[str] = set()
    for number, strategy in enumerate(strategies):
        look: dict[str, Any] = {
            "color": _COLOURS[number % len(_COLOURS)],
            "zorder": 2 + (strategy == EVENLOAD),
        }
        offset = 0.08 * (number - (len(strategies) - 1) / 2)
        for row, of_layout in enumerate(layouts.values()):
            points = [_points(outcome) for outcome in _by_strategy(of_layout).get(strategy, [])]
            if not points:
                continue
            axes.hlines(row + offset, min(points), max(points), linewidth=1, **look)
            label = None if strategy in labelled else strategy
            labelled.add(strategy)
            axes.plot(
                statistics.median(points),
                row + offset,
                _MARKERS[number % len(_MARKERS)],
                ms=5,
                label=label,
                **look,
            )
    axes.set_yticks(range(len(layouts)), list(layouts))
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    ticks = [-10, -1, 0, 1, 2, 5, 10, 20, 50]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(*axes.get_xlim())
    axes.axvspan(-100, ALLOWED_POINTS, color="#c2185b", alpha=0.08, linewidth=0)
    axes.set_xlabel("points over the best possible: highest utilisation or spread, whichever is worse")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    return figure


def _by_strategy(runs: Iterable[Run]) -> dict[str, list[Outcome]]:
    grouped: dict[str, list[Outcome]] = {}
    for run in runs:
        grouped.setdefault(run.strategy, []).append(run.outcome)
    return {name: grouped[name] for name in STRATEGIES if name in grouped}


def _by_layout(runs: Iterable[Run]) -> dict[str, list[Run]]:
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.case.layout.name, []).append(run)
    return grouped


def _title(layout: Layout) -> str:
    held = [layout.held_mib.get(broker_id, 0) for broker_id in layout.capacity_bytes]
    parts = [f"capacities {_slashed(layout.capacity_mib)} MiB", f"R = {layout.replication}"]
    if any(held):
        parts.insert(1, f"held before {_slashed(held)} MiB")
    for broker_id, mib in layout.intrusion_mib.items():
        parts.append(f"half-way {mib} MiB more on broker {broker_id}")
    return f"\n[bold]{layout.name}[/bold] ({', '.join(parts)})"


def _worst(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    return (
        f"{max(outcome.highest_over_best for outcome in outcomes) / POINT:+.1f}",
        f"{max(outcome.spread_over_best for outcome in outcomes) / POINT:+.1f}",
    )


def _points(outcome: Outcome) -> float:
    return max(outcome.highest_over_best, outcome.spread_over_best) / POINT


def _worst_points(outcomes: Sequence[Outcome]) -> float:
    return max(map(_points, outcomes))


def _points_text(points: float) -> str:
    return f"{points:.1f}" if abs(points) >= 0.05 else "0.0"


def _verdict(points: Mapping[str, float]) -> str:
    """Whether evenload passes, and by the Java client, as far as they were there."""
    verdicts = {True: "[green]passes[/green]", False: "[red]FAILS[/red]"}
    judged = [name for name in (EVENLOAD, JAVA) if name in points]
    return ", ".join(f"{name} {verdicts[points[name] <= ALLOWED_POINTS]}" for name in judged)


def _leads(outcomes: Sequence[Outcome]) -> str:
    brokers = outcomes[0].leader_bytes
    parts = [
        100 * statistics.median(outcome.leader_bytes[broker] / outcome.topic_bytes for outcome in outcomes)
        for broker in brokers
    ]
    return "/".join(f"{part:.0f}" for part in parts)


def _layout_entry(layout: Layout) -> dict[str, Any]:
    return {
        "name": layout.name,
        "capacity_mib": list(layout.capacity_mib),
        "held_mib": layout.held_mib,
        "half_way_mib": layout.intrusion_mib,
        "replicas": [list(replicas) for replicas in layout.assignment],
    }


def _run_entry(run: Run) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "layout": run.case.layout.name,
        "strategy": run.strategy,
        "load_of_free": run.case.fraction,
        "record_bytes": run.case.record_bytes,
        "seed": run.case.seed,
        "topic_bytes": outcome.topic_bytes,
        "leader_bytes": outcome.leader_bytes,
        "utilisation": _rounded(outcome.utilisation),
        "best": _rounded(outcome.best),
        "highest_over_best_points": round(outcome.highest_over_best / POINT, 2),
        "spread": round(outcome.spread, 4),
        "spread_over_best_points": round(outcome.spread_over_best / POINT, 2),
    }


def _rounded(utilisation: Mapping[int, float]) -> dict[int, float]:
    return {broker_id: round(value, 4) for broker_id, value in utilisation.items()}


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _slashed(numbers: Iterable[int]) -> str:
    return "/".join(map(str, numbers))


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 10} KiB" if num_bytes >= 1 << 10 else f"{num_bytes} B"
