"""What `benchmarks telemetry` tells: its goal, tables, result and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.paired_ratio import CONFIDENCE, paired_ratio
from benchmarks.results import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN, SERVICE = "own", "service"  # a collector each, or one for all
# Producers that only follow what one service decides.
ROUTES_OF_ONE, ROUTES_OF_MANY = "routes of 1 topic", "routes of 500 topics"
FOLLOWING = (ROUTES_OF_ONE, ROUTES_OF_MANY)
# A window holds one measurement more or less by chance; a hundred by themselves make a hundred times as many.
REQUESTS_RATIO_INTERVAL_END = 2.0
CPU_RATIO_INTERVAL_END = 1.5  # most of it is what brokers without work take


class Case(NamedTuple):
    """Who measures in a window."""

    way: str
    num_producers: int


IDLE, ONE = Case(OWN, 0), Case(OWN, 1)
JUDGED = Case(SERVICE, 100)
ROUTED = tuple(Case(way, 1000) for way in FOLLOWING)
ROUTING_CPU_MS = 500.0  # half a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened in one window, each second of it; processor time in milliseconds.

    Attributes:
        case: Who measured.
        requests: What brokers were asked by others than brokers, by kind.
        wire_bytes: What went over brokers' connections in both directions, those between brokers too.
        broker_cpu_ms: Of all brokers.
        client_cpu_ms: Of all producers' collectors.
        service_cpu_ms, service_requests: Of the collector service; 0 without one.
        opening_requests: Not each second: what opening one producer's collector asked of brokers before.
    """

    case: Case
    requests: Mapping[str, float]
    wire_bytes: float
    broker_cpu_ms: float
    client_cpu_ms: float
    service_cpu_ms: float
    service_requests: float
    opening_requests: float

    @property
    def num_requests(self) -> float:
        """Of all kinds."""
        return sum(self.requests.values())


def document(windows: Sequence[Window], *, num_partitions: int, window_s: float) -> dict[str, Any]:
    """The result, as JSON has it.

    Args:
        windows: As many of each case, in the order in which they were measured; at least two.
        num_partitions: On the brokers.
        window_s: How long each was.
    """
    by_case: dict[Case, list[Window]] = {}
    for window in windows:
        by_case.setdefault(window.case, []).append(window)
    return {
        "benchmark": "telemetry",
        "machine": machine("kafka-python", "aiohttp", "pydantic"),
        "confidence": CONFIDENCE,
        "num_partitions": num_partitions,
        "window_s": window_s,
        "cases": [_case(by_case, case) for case in sorted(by_case)],
    }


def misses(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each goal that was missed."""
    rows = {_case_of(each): each for each in result["cases"]}
    told = []
    for case in (JUDGED, *ROUTED):
        for what, most in (("requests", REQUESTS_RATIO_INTERVAL_END), ("broker_cpu", CPU_RATIO_INTERVAL_END)):
            _, low, high = rows[case][f"{what}_over_one"]
            if low > 1.0 or high >= most:
                told.append(
                    f"{what}: {case.num_producers} producers ({case.way}) cost {low:.2f} to {high:.2f} of "
                    "what one costs"
                )
    for case in ROUTED:
        if (taken_ms := rows[case]["service_cpu_ms"]) > ROUTING_CPU_MS:
            told.append(f"the service takes {taken_ms:.0f} ms a second for {case.num_producers} ({case.way})")
    return told


def tables(result: Mapping[str, Any]) -> tuple[Table, Table]:
    """What brokers are asked, and what time it takes; a row for each case."""
    asked = Table(
        "collector", "producers", "requests/s", "times one's", "wire, kB/s", "requests to open one", box=None
    )
    taken = Table(
        "collector",
        "producers",
        "brokers, ms/s",
        "times idle",
        "times one's",
        "producers, ms/s",
        "service, ms/s",
        "asked/s",
        box=None,
    )
    for row in result["cases"]:
        case = (row["way"], str(row["num_producers"]))
        asked.add_row(
            *case,
            f"{sum(row['requests'].values()):.2f}",
            _interval(row["requests_over_one"]),
            f"{row['wire_bytes'] / 1000:.1f}",
            f"{row['opening_requests']:.1f}",
        )
        taken.add_row(
            *case,
            f"{row['broker_cpu_ms']:.1f}",
            _interval(row["broker_cpu_over_idle"]),
            _interval(row["broker_cpu_over_one"]),
            f"{row['client_cpu_ms']:.2f}",
            f"{row['service_cpu_ms']:.2f}",
            f"{row['service_requests']:.1f}",
        )
    return asked, taken


def draw(result: Mapping[str, Any]) -> Figure:
    """Requests and processor time of the brokers, over the number of producers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = {OWN: "#e9862b", SERVICE: "#2b7de9", ROUTES_OF_ONE: "#3a9d5d", ROUTES_OF_MANY: "#8d5fd3"}
    for way, colour in colours.items():
        rows = [row for row in result["cases"] if row["way"] == way and row["num_producers"]]
        numbers = [row["num_producers"] for row in rows]
        left.plot(numbers, [sum(row["requests"].values()) for row in rows], "o-", color=colour, label=way)
        right.plot(numbers, [row["broker_cpu_ms"] for row in rows], "o-", color=colour, label=way)
        for row in rows:
            windows = row["windows"]["broker_cpu_ms"]
            right.plot([row["num_producers"]] * len(windows), windows, ".", color=colour, alpha=0.4)
    (idle,) = (row for row in result["cases"] if _case_of(row) == IDLE)
    right.axhline(idle["broker_cpu_ms"], color="#888888", linewidth=0.8, label="nobody measures")
    left.set_yscale("log")
    left.set_ylabel("requests a second to all brokers")
    right.set_ylim(bottom=0)
    right.set_ylabel("brokers' processor time, ms a second")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("producers that measure")
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _case(by_case: Mapping[Case, Sequence[Window]], case: Case) -> dict[str, Any]:
    windows = by_case[case]
    kinds = sorted({kind for window in windows for kind in window.requests})
    means = ("wire_bytes", "broker_cpu_ms", "client_cpu_ms", "service_cpu_ms", "service_requests")
    has_requests = case != IDLE
    return {
        "way": case.way,
        "num_producers": case.num_producers,
        "requests": {kind: _mean(window.requests.get(kind, 0.0) for window in windows) for kind in kinds},
        "requests_over_one": _ratio(by_case, "num_requests", case, ONE) if has_requests else None,
        **{name: _mean(getattr(window, name) for window in windows) for name in means},
        "broker_cpu_over_idle": _ratio(by_case, "broker_cpu_ms", case, IDLE),
        "broker_cpu_over_one": _ratio(by_case, "broker_cpu_ms", case, ONE),
        "opening_requests": _mean(window.opening_requests for window in windows),
        "windows": {
            name: [round(getattr(window, name), 3) for window in windows]
            for name in ("num_requests", "broker_cpu_ms", "client_cpu_ms", "service_cpu_ms")
        },
    }


def _ratio(by_case: Mapping[Case, Sequence[Window]], name: str, case: Case, other: Case) -> list[float]:
    """Of windows of the same round."""
    ours, theirs = ([getattr(window, name) for window in by_case[each]] for each in (case, other))
    return [round(bound, 4) for bound in paired_ratio(ours, theirs)]


def _mean(values: Any) -> float:
    return round(float(np.mean(list(values))), 3)


def _case_of(row: Mapping[str, Any]) -> Case:
    return Case(row["way"], row["num_producers"])


def _interval(ratio: Sequence[float] | None) -> str:
    return "" if ratio is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratio)
