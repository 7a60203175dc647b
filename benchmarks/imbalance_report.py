"""What `benchmarks imbalance` tells: its goals, tables, result and picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from benchmarks.imbalance_moving import THROTTLE_BYTES_PER_S, THROTTLED, UNTHROTTLED, Moved
from benchmarks.imbalance_writing import LEVEL, Written
from benchmarks.layouts import MIB
from benchmarks.outcome import POINT
from benchmarks.results import machine
from benchmarks.strategies import EVENLOAD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN_OVER_LEAST_MAX = 1.25
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
        if run["contender"] != EVENLOAD:
            continue
        if run["over_least"] is None:
            told.append(f"evenload was not level after {run['written_bytes'] / MIB:.0f} MiB")
        elif run["over_least"] > WRITTEN_OVER_LEAST_MAX:
            told.append(f"evenload was level after {run['over_least']:.2f} times the least possible")
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
            "" if run["found_s"] is None else f"{run['found_s']:.1f} s",
        )
    moving = Table(
        "moves",
        "moved",
        "times the least",
        "of the producer's",
        "spread",
        "took",
        "p50 before, during",
        "p99 before, during",
        box=None,
    )
    for row in result["moving"]:
        moving.add_row(
            row["kind"],
            f"{row['moved_bytes'] / MIB:.0f} MiB",
            f"{row['over_least']:.2f}",
            str(row["num_own_moves"]),
            f"{100 * row['spread_before']:.1f} to {100 * row['spread_after']:.1f}",
            f"{row['took_s']:.1f} s",
            "{:.1f}, {:.1f} ms".format(*row["p50_ms"]),
            "{:.1f}, {:.1f} ms".format(*row["p99_ms"]),
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
    left.legend(fontsize=7, frameon=False)
    for place, kind in enumerate((THROTTLED, UNTHROTTLED)):
        rows = [row for row in result["moving"] if row["kind"] == kind]
        for shift, which, colour in ((-0.12, "p50", "#2b7de9"), (0.12, "p99", "#e9862b")):
            for row in rows:
                before, during = row[f"{which}_ms"]
                label = which if not place and row is rows[0] else None
                right.plot([place - 0.2 + shift, place + 0.2 + shift], [before, during], "o-", color=colour)
                right.plot([], [], "o-", color=colour, label=label)
    right.set_xticks([0, 1], ["throttled\nbefore, during", "not throttled\nbefore, during"])
    right.set_yscale("log")
    right.set_ylabel("a producer's latency, ms")
    right.legend(fontsize=7, frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


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
        "found_s": None if run.found_s is None else round(run.found_s, 2),
        "course": [[each.written_bytes, round(each.spread, 4)] for each in run.standings],
    }


def _moving(moved: Moved) -> dict[str, Any]:
    return {
        "kind": moved.kind,
        "moved_bytes": moved.moved_bytes,
        "least_bytes": moved.least_bytes,
        "over_least": round(moved.moved_bytes / moved.least_bytes, 4),
        "part_of_held": round(moved.moved_bytes / moved.held_bytes, 4),
        "num_own_moves": moved.num_own_moves,
        "spread_before": round(moved.spread_before, 4),
        "spread_after": round(moved.spread_after, 4),
        "took_s": round(moved.took_s, 2),
        "num_records": [len(moved.quiet_s), len(moved.moving_s)],
        "p50_ms": _percentile_ms((moved.quiet_s, moved.moving_s), 50),
        "p99_ms": _percentile_ms((moved.quiet_s, moved.moving_s), 99),
    }


def _percentile_ms(windows: Iterable[Any], percent: float) -> list[float]:
    """Before, during."""
    return [round(float(np.percentile(window, percent)) * 1000, 3) for window in windows]
