"""What `benchmarks write` tells: its goals, tables, result and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.paired_ratio import CONFIDENCE, paired_ratio
from benchmarks.results import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P50_RATIO_MAX = 1.02
P99_RATIO_INTERVAL_END = 1.25
THROUGHPUT_RATIO_MIN = 0.98
JAVA_BATCH_RATIO_MIN = 0.8
JUDGED_RECORD_BYTES = 64 << 10  # a throughput counts for the goal from this record size on
# Who is lied to puts most records on one broker, and without bounds all; what that costs is shown.
UNJUDGED_CONDITIONS = ("lying", "60/60/20, no bounds")
PLAIN, OURS = "plain", "evenload"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRow:
    """One load in one condition, by client; a value for each window.

    Attributes:
        condition: What the collector is like (collector_conditions.py).
        load: Part of the rate that the brokers sustain.
        records_per_s: That part.
        first_s: Seconds until a record in each partition was acknowledged, by a producer that was just made.
        p50_ms: Median time from when a record was due until it was acknowledged, in milliseconds.
        p99_ms: The time that one in a hundred took longer than.
    """

    condition: str
    load: float
    records_per_s: float
    first_s: Mapping[str, Sequence[float]]
    p50_ms: Mapping[str, Sequence[float]]
    p99_ms: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRow:
    """One way to write records of one size; records a second in each window, by client."""

    record_bytes: int
    method: str
    has_reports: bool
    rate: Mapping[str, Sequence[float]]


def document(
    records_per_s: float,
    record_bytes: int,
    latencies: Sequence[LatencyRow],
    throughputs: Sequence[ThroughputRow],
    java_batch_bytes: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """The result, as JSON has it."""
    return {
        "benchmark": "write",
        "machine": machine("confluent-kafka", "kafka-python"),
        "confidence": CONFIDENCE,
        "sustained_records_per_s": round(records_per_s),
        "latency_record_bytes": record_bytes,
        "latency": [_latency(row) for row in latencies],
        "throughput": [_throughput(row) for row in throughputs],
        "java_batch_bytes": _medians(java_batch_bytes, 0),
        "java_batch_ratio": _rounded(java_batch_bytes),
    }


def misses(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal that was missed."""
    told = []
    for row in result["latency"]:
        where = f"with the collector {row['condition']}, at {row['load']:.0%}"
        if row["condition"] in UNJUDGED_CONDITIONS:
            continue
        if row["p50_ratio"][0] > P50_RATIO_MAX:
            told.append(f"p50 {where} is {row['p50_ratio'][0]:.3f} of the plain client's")
        _, low, high = row["p99_ratio"]
        if low > 1.0 or high >= P99_RATIO_INTERVAL_END:
            told.append(f"p99 {where} is {low:.2f} to {high:.2f} of the plain client's")
    if result["java_batch_ratio"][0] < JAVA_BATCH_RATIO_MIN:
        told.append(
            f"Java's batches are {result['java_batch_ratio'][0]:.2f} as large as with its own partitioner"
        )
    for row in result["throughput"]:
        if row["record_bytes"] >= JUDGED_RECORD_BYTES and row["ratio"][0] < THROUGHPUT_RATIO_MIN:
            how = f"{row['method']}, {'with' if row['has_reports'] else 'without'} reports"
            told.append(
                f"{row['record_bytes']:,} bytes, {how}: {row['ratio'][0]:.3f} of the plain throughput"
            )
    return told


def tables(result: Mapping[str, Any]) -> tuple[Table, Table]:
    """Latencies, and throughputs."""
    latency = Table(
        "collector",
        "load",
        "first records",
        "records/s",
        "p50 plain, ours",
        "p50 ratio",
        "p99 plain, ours",
        "p99 ratio",
        box=None,
    )
    for row in result["latency"]:
        latency.add_row(
            row["condition"],
            f"{row['load']:.0%}",
            "{:.2f}, {:.2f} s".format(*row["first_s"]),
            f"{row['records_per_s']:,}",
            "{:.2f}, {:.2f} ms".format(*row["p50_ms"]),
            _interval(row["p50_ratio"]),
            "{:.2f}, {:.2f} ms".format(*row["p99_ms"]),
            _interval(row["p99_ratio"]),
        )
    throughput = Table("record", "method", "reports", "plain, ours (records/s)", "ratio", box=None)
    for row in result["throughput"]:
        throughput.add_row(
            f"{row['record_bytes']:,} B",
            row["method"],
            "yes" if row["has_reports"] else "no",
            "{:,}, {:,}".format(*row["records_per_s"]),
            _interval(row["ratio"]),
        )
    return latency, throughput


def draw(result: Mapping[str, Any]) -> Figure:
    """Ratios with their intervals: latencies on the left, throughputs on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [f"{row['condition']} {row['load']:.0%}" for row in result["latency"]]
    for shift, which, colour in ((-0.15, "p50", "#2b7de9"), (0.15, "p99", "#e9862b")):
        ratios = [row[f"{which}_ratio"] for row in result["latency"]]
        _draw_intervals(left, [place + shift for place in range(len(names))], ratios, colour, which)
    left.set_yticks(range(len(names)), names)
    left.set_xlabel("latency, times the plain client's")
    sizes = sorted({row["record_bytes"] for row in result["throughput"]})
    ways = ((-0.2, "produce", "#2b7de9"), (0.2, "produce_batch", "#4f9d4f"))
    for has_reports, fill in ((False, "full"), (True, "none")):
        for shift, method, colour in ways:
            rows = [
                row
                for row in result["throughput"]
                if row["method"] == method and row["has_reports"] == has_reports
            ]
            places = [sizes.index(row["record_bytes"]) + shift + 0.15 * has_reports for row in rows]
            label = method + (", with reports" if has_reports else "")
            _draw_intervals(right, places, [row["ratio"] for row in rows], colour, label, fill)
    right.set_yticks(range(len(sizes)), [f"{size:,} B" for size in sizes])
    right.set_xlabel("throughput, times the plain client's")
    for axes in (left, right):
        axes.axvline(1.0, color="#888888", linewidth=0.8)
        axes.invert_yaxis()
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_intervals(
    axes: Any,
    places: Sequence[float],
    ratios: Sequence[Sequence[float]],
    colour: str,
    label: str,
    fill: str = "full",
) -> None:
    middles = [ratio[0] for ratio in ratios]
    below = [ratio[0] - ratio[1] for ratio in ratios]
    above = [ratio[2] - ratio[0] for ratio in ratios]
    axes.errorbar(
        middles, places, xerr=(below, above), fmt="o", markersize=4, color=colour, label=label, fillstyle=fill
    )


def _latency(row: LatencyRow) -> dict[str, Any]:
    return {
        "condition": row.condition,
        "load": row.load,
        "records_per_s": round(row.records_per_s),
        "num_pairs": len(row.p50_ms[OURS]),
        "first_s": _medians(row.first_s, 3),
        "p50_ms": _medians(row.p50_ms, 3),
        "p50_ratio": _rounded(row.p50_ms),
        "p99_ms": _medians(row.p99_ms, 3),
        "p99_ratio": _rounded(row.p99_ms),
        "windows": {"p50_ms": dict(row.p50_ms), "p99_ms": dict(row.p99_ms)},
    }


def _throughput(row: ThroughputRow) -> dict[str, Any]:
    return {
        "record_bytes": row.record_bytes,
        "method": row.method,
        "has_reports": row.has_reports,
        "num_pairs": len(row.rate[OURS]),
        "records_per_s": [round(rate) for rate in _medians(row.rate, 0)],
        "ratio": _rounded(row.rate),
    }


def _medians(windows: Mapping[str, Sequence[float]], digits: int) -> list[float]:
    """Plain, ours."""
    import numpy as np

    return [round(float(np.median(windows[name])), digits) for name in (PLAIN, OURS)]


def _rounded(windows: Mapping[str, Sequence[float]]) -> list[float]:
    return [round(bound, 4) for bound in paired_ratio(windows[OURS], windows[PLAIN])]


def _interval(ratio: Sequence[float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*ratio)
