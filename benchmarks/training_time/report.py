"""What `benchmarks training_time` tells: its goal, tables, result and picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.paired_ratio import CONFIDENCE, Ratio, paired_ratio
from benchmarks.results import machine
from benchmarks.training_time.placing import BEST, DEFAULTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALLOWED = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An epoch.

    Attributes:
        workload: Which training.
        start: How full brokers were before.
        placing: Who laid the dataset, and by what.
        ratio: Of reading it, if it lay evenly, to an epoch on unlimited links.
        unlimited_s: What such an epoch takes.
        dataset_parts: Which part of the dataset each broker had, by id; 0 to 1.
        utilisation: How full each broker was; 0 to 1.
        seconds: What the epoch took.
    """

    workload: str
    start: str
    placing: str
    ratio: float
    unlimited_s: float
    dataset_parts: Mapping[int, float]
    utilisation: Mapping[int, float]
    seconds: float


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """The result, as JSON has it.

    Args:
        runs: As many of each layout, in the order in which they were measured.
    """
    by_layout: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        by_layout.setdefault((run.workload, run.start, run.placing), []).append(run)
    return {
        "benchmark": "training_time",
        "machine": machine("torch", "transformers", "confluent-kafka"),
        "criterion": {"defaults_over_best_max": ALLOWED, "confidence": CONFIDENCE},
        "layouts": [_layout(by_layout, layout) for layout in by_layout],
    }


def misses(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each training, start and rate at which the goal was missed, beyond chance."""
    return [
        f"{row['workload']}, brokers {row['start']}, reading {epoch['read_over_unlimited']:g} times as long: "
        f"evenload's defaults cost {median:.3f} ({low:.3f} to {high:.3f}) of the best layout's time (allowed "
        f"{ALLOWED})"
        for row in result["layouts"]
        if row["placing"] == DEFAULTS
        for epoch in row["epochs"]
        for median, low, high in [epoch["times_best"]]
        if median > ALLOWED and low > 1
    ]


def tables(result: Mapping[str, Any], workload: str) -> list[Table]:
    """One for each start: how layouts lie, and what an epoch takes on them."""
    told = []
    rows = [row for row in result["layouts"] if row["workload"] == workload]
    for start in dict.fromkeys(row["start"] for row in rows):
        of_start = [row for row in rows if row["start"] == start]
        title = f"{workload} ({of_start[0]['unlimited_s']:.1f} s on unlimited links); brokers {start}"
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        table.add_column("", no_wrap=True)
        for name in (
            "dataset",
            "disks",
            "spread",
            *(f"read {each['read_over_unlimited']:g}" for each in of_start[0]["epochs"]),
        ):
            table.add_column(name, justify="right")
        for row in of_start:
            times = [each["times_best"] for each in row["epochs"]]
            table.add_row(
                row["placing"],
                _percents(row["dataset_parts"]),
                _percents(row["utilisation"]),
                f"{100 * row['disk_spread']:.0f}",
                *("{:.2f} ({:.2f} to {:.2f})".format(*each) for each in times),
                style="bold" if row["placing"] == DEFAULTS else "",
            )
        told.append(table)
    return told


def draw(result: Mapping[str, Any]) -> Figure:
    """An epoch's time over that on the best layout, by how far apart disks are; a panel for each training."""
    from matplotlib.figure import Figure

    workloads = list(dict.fromkeys(row["workload"] for row in result["layouts"]))
    figure = Figure(figsize=(3.4 * len(workloads), 3.6), layout="constrained")
    colours, marks = ("#9aa5b1", "#c7a252", "#b5442e"), {0: "o", 1: "s"}
    starts = list(dict.fromkeys(row["start"] for row in result["layouts"]))
    for axes, workload in zip(figure.subplots(1, len(workloads), squeeze=False)[0], workloads, strict=True):
        for row in (row for row in result["layouts"] if row["workload"] == workload):
            for colour, epoch in zip(colours, row["epochs"], strict=False):
                axes.plot(
                    100 * row["disk_spread"],
                    epoch["times_best"][0],
                    marks[starts.index(row["start"])],
                    color=colour,
                    markersize=7 if row["placing"] == DEFAULTS else 4,
                    markeredgecolor="black" if row["placing"] == DEFAULTS else colour,
                )
        axes.set_title(workload, loc="left", fontsize="small")
        axes.set_xlabel("disk spread, points")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("epoch, times the best layout's")
    epochs = result["layouts"][0]["epochs"]
    for colour, epoch in zip(colours, epochs, strict=False):
        figure.axes[0].plot(
            [], [], "o", color=colour, label=f"reading {epoch['read_over_unlimited']:g} x an epoch's time"
        )
    for number, start in enumerate(starts):
        figure.axes[0].plot(
            [], [], marks[number], color="white", markeredgecolor="black", label=f"brokers {start}"
        )
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def _layout(
    by_layout: Mapping[tuple[str, str, str], Sequence[Run]], layout: tuple[str, str, str]
) -> dict[str, Any]:
    runs, best = by_layout[layout], by_layout[(*layout[:2], BEST)]
    workload, start, placing = layout
    ratios = sorted({run.ratio for run in runs})
    utilisation = _means([run.utilisation for run in runs])
    return {
        "workload": workload,
        "start": start,
        "placing": placing,
        "unlimited_s": round(runs[0].unlimited_s, 3),
        "dataset_parts": _means([run.dataset_parts for run in runs]),
        "utilisation": utilisation,
        "disk_spread": round(max(utilisation.values()) - min(utilisation.values()), 4),
        "epochs": [
            {
                "read_over_unlimited": ratio,
                "seconds": [round(run.seconds, 3) for run in runs if run.ratio == ratio],
                "times_best": _rounded(_paired(_seconds(runs, ratio), _seconds(best, ratio))),
            }
            for ratio in ratios
        ],
    }


def _seconds(runs: Sequence[Run], ratio: float) -> list[float]:
    return [run.seconds for run in runs if run.ratio == ratio]


def _paired(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    if len(ours) < 2:  # a quick run
        return Ratio(*[ours[0] / theirs[0]] * 3)
    return paired_ratio(ours, theirs)


def _means(of_brokers: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {
        broker_id: round(statistics.fmean(each[broker_id] for each in of_brokers), 4)
        for broker_id in of_brokers[0]
    }


def _rounded(ratio: Ratio) -> list[float]:
    return [round(bound, 4) for bound in ratio]


def _percents(parts: Mapping[int, float]) -> str:
    return "/".join(f"{100 * part:.0f}" for part in parts.values())
