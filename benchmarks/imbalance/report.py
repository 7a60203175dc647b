"""What `benchmarks imbalance` tells: its goals, tables, result and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.imbalance.moving import THROTTLE_BYTES_PER_S, THROTTLED, UNTHROTTLED, Moved
from benchmarks.imbalance.writing import LEVEL, UNBOUNDED, Written
from benchmarks.layouts import MIB
from benchmarks.outcome import POINT
from benchmarks.results import machine
from benchmarks.strategies import EVENLOAD
from evenload.router.safe_shares import LEADER_MAX

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN_OVER_LEAST_MAX = {EVENLOAD: 2.2, UNBOUNDED: 1.25}
# Turns of a batch, and what is stored beside the payload, are in what log folders hold.
LEADER_OVER_EVEN_MAX = LEADER_MAX * 1.02
MOVED_OVER_LEAST_MAX = 1.1
_COLOURS = ("#c2185b", "#e9862b", "#2b7de9", "#4f9d4f", "#52606d", "#9aa5b1")


def document(written: Sequence[Written], moved: Sequence[Moved]) -> dict[str, Any]:
    """The result, as JSON has it."""
    return {
        "benchmark": "imbalance",
        "machine": machine("confluent-kafka", "kafka-python"),
        "criterion": {
            "spread_below_points": LEVEL / POINT,
            "written_over_least_max": WRITTEN_OVER_LEAST_MAX,
            "leader_over_even_max": LEADER_OVER_EVEN_MAX,
            "moved_over_least_max": MOVED_OVER_LEAST_MAX,
        },
        "writing": [_writing(run) for run in written],
        "throttle_bytes_per_s": THROTTLE_BYTES_PER_S,
        "moving": [_moving(each) for each in moved],
    }


def misses(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal that was missed."""
    told = []
    for run in result["writing"]:
        who, over_least = run["contender"], run["over_least"]
        if who not in WRITTEN_OVER_LEAST_MAX:
            continue
        if over_least is None:
            told.append(f"{who} was not level after {run['written_bytes'] / MIB:.0f} MiB")
        elif over_least > WRITTEN_OVER_LEAST_MAX[who]:
            told.append(f"{who} was level after {over_least:.2f} times the least possible")
        if who == EVENLOAD and run["leader_over_even"] > LEADER_OVER_EVEN_MAX:
            told.append(f"a leader got {run['leader_over_even']:.2f} times its even share")
    for row in result["moving"]:
        if row["over_least"] > MOVED_OVER_LEAST_MAX:
            told.append(f"moves ({row['kind']}) took {row['over_least']:.2f} times the least possible")
    return told


def tables(result: Mapping[str, Any]) -> tuple[Table, Table]:
    """Writing, and moving."""
    writing = Table(
        "written by",
        "level after",
        "times the least",
        "written",
        "spread then",
        "fullest then",
        "most of a leader",
        "added broker found in",
        box=None,
    )
    for run in result["writing"]:
        level = run["level_bytes"]
        writing.add_row(
            run["contender"],
            "not by then" if level is None else f"{level / MIB:.0f} MiB",
            "" if level is None else f"{run['over_least']:.2f}",
            f"{run['written_bytes'] / MIB:.0f} MiB",
            f"{100 * run['spread']:.1f}",
            f"{100 * run['highest']:.0f} %",
            f"{run['leader_over_even']:.2f} x even",
            "" if run["found_s"] is None else f"{run['found_s']:.1f} s",
        )
    moving = Table(
        "moves",
        "moved",
        "times the least",
        "spread",
        "took",
        "p50 before / during / moved",
        "p99 before / during / moved",
        box=None,
    )
    for row in result["moving"]:
        moving.add_row(
            row["kind"],
            f"{row['moved_bytes'] / MIB:.0f} MiB",
            f"{row['over_least']:.2f}",
            f"{100 * row['spread_before']:.1f} to {100 * row['spread_after']:.1f}",
            f"{row['took_s']:.1f} s",
            _slashed(row["p50_ms"]),
            _slashed(row["p99_ms"]),
        )
    return writing, moving


def least_sentence(result: Mapping[str, Any]) -> str:
    """What the two ways take at least, beside each other."""
    (first, *_), (move, *_) = result["writing"], result["moving"]
    return (
        f"Level takes {first['least_bytes'] / MIB:.0f} MiB more data at least, of which "
        f"{first['added_bytes'] / MIB:.0f} MiB came before the broker was added; "
        f"or moving {move['part_of_held']:.0%} of what is there."
    )


def draw(result: Mapping[str, Any]) -> Figure:
    """The spread over what was written, on the left; the producer's latencies on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for number, run in enumerate(result["writing"]):
        course = np.array(run["course"])
        left.plot(
            course[:, 0] / run["least_bytes"],
            100 * course[:, 1],
            color=_COLOURS[number % len(_COLOURS)],
            linewidth=2 if run["contender"] == EVENLOAD else 1.2,
            label=run["contender"],
        )
    left.axvline(1.0, color="#888888", linewidth=0.8, linestyle="--")
    left.set_xlabel("written, times the least possible")
    left.set_ylabel("spread of utilisation, points")
    left.set_ylim(bottom=0)
    _draw_latencies(right, result["moving"])
    for axes in (left, right):
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_latencies(axes: Any, moving: Sequence[Mapping[str, Any]]) -> None:
    for place, kind in enumerate((THROTTLED, UNTHROTTLED)):
        rows = [row for row in moving if row["kind"] == kind]
        for which, colour in (("p50", "#2b7de9"), ("p99", "#e9862b")):
            for row in rows:
                label = which if not place and row is rows[0] else None
                points = [
                    (place + 0.25 * step, ms)
                    for step, ms in zip((-1, 0, 1), row[f"{which}_ms"], strict=True)
                    if ms is not None
                ]
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=label, ms=3, linewidth=1)
    axes.set_xticks([0, 1], [f"{kind}:\nbefore, during,\nmoved itself" for kind in (THROTTLED, UNTHROTTLED)])
    axes.set_yscale("log")
    axes.set_ylabel("a producer's latency, ms")


def _writing(run: Written) -> dict[str, Any]:
    last = run.standings[-1]
    return {
        "contender": run.contender,
        "least_bytes": run.least_bytes,
        "added_bytes": run.added_bytes,
        "level_bytes": run.level_bytes,
        "over_least": None if run.over_least is None else round(run.over_least, 4),
        "written_bytes": last.written_bytes,
        "spread": round(last.spread, 4),
        "highest": round(max(last.utilisation.values()), 4),
        "utilisation": {broker_id: round(level, 4) for broker_id, level in last.utilisation.items()},
        "leader_over_even": round(run.leader_share_over_even, 3),
        "found_s": None if run.found_s is None else round(run.found_s, 2),
        "course": [[each.written_bytes, round(each.spread, 4)] for each in run.standings],
    }


def _moving(moved: Moved) -> dict[str, Any]:
    windows = (moved.quiet_s, moved.staying_s, moved.moving_s)
    return {
        "kind": moved.kind,
        "moved_bytes": moved.moved_bytes,
        "least_bytes": moved.least_bytes,
        "over_least": round(moved.moved_bytes / moved.least_bytes, 4),
        "part_of_held": round(moved.moved_bytes / moved.held_bytes, 4),
        "spread_before": round(moved.spread_before, 4),
        "spread_after": round(moved.spread_after, 4),
        "took_s": round(moved.took_s, 2),
        "num_records": [len(window) for window in windows],
        "p50_ms": [_percentile_ms(window, 50) for window in windows],
        "p99_ms": [_percentile_ms(window, 99) for window in windows],
    }


def _percentile_ms(latencies_s: NDArray[np.float64], percent: float) -> float | None:
    """None of none: no partition of the producer's may have moved."""
    return round(float(np.percentile(latencies_s, percent)) * 1000, 3) if len(latencies_s) else None


def _slashed(milliseconds: Sequence[float | None]) -> str:
    return " / ".join("-" if each is None else f"{each:,.0f}" for each in milliseconds) + " ms"
