"""What if a topic's partitions lie unevenly over brokers? `python -m benchmarks uneven`

As `benchmarks balance`, with real rows (texts of CoLA, images of CIFAR-10, both in a fixed rhythm) in topics
whose leaders are 60/20/20 and worse over three brokers, beside every baseline and one more: as many records
for each broker. Shown is how full each broker is at the end; evenload passes where it is within 1 point of
the best possible.

The rows come from `EVENLOAD_TEST_DATA` (default ../shared/data); see there for what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.layouts import Layout
from benchmarks.one_load import load_once
from benchmarks.outcome import ALLOWED_POINTS, POINT, Outcome, are_all_within_a_point
from benchmarks.records import Rows, cifar10, cola, data_folder, texts_and_images
from benchmarks.results import keep, machine, results_option
from benchmarks.stage import BROKER_PROPERTIES, Stage
from benchmarks.strategies import EVENLOAD, STRATEGIES, Strategy
from benchmarks.writers import by_record_counts
from evenload.local_cluster import temporary_cluster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOAD_OF_FREE = 0.3
ALL = (
    *(each for each in STRATEGIES.values() if each.layouts is None),
    Strategy("record counts", by_record_counts),
)

LAYOUTS = (
    Layout(name="leaders 60/20/20", capacity_mib=(64, 64, 64), assignment=[(1,)] * 3 + [(2,), (3,)]),
    Layout(name="leaders 80/10/10", capacity_mib=(64, 64, 64), assignment=[(1,)] * 8 + [(2,), (3,)]),
    Layout(
        name="leaders 60/20/20, broker 1 half full",
        capacity_mib=(96, 96, 96),
        assignment=[(1,)] * 3 + [(2,), (3,)],
        held_mib={1: 48},
    ),
    Layout(
        name="leaders 60/20/20, R = 2",
        capacity_mib=(96, 96, 96),
        assignment=[(1, 2), (1, 3), (1, 2), (2, 3), (3, 1)],
        held_mib={1: 24},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Rows that come into a situation, as many as take `LOAD_OF_FREE` of what is free."""

    layout: Layout
    records: Rows
    seed: int = 1

    @property
    def num_records(self) -> int:
        """An even number."""
        rows = self.records.rows
        mean_bytes = self.records.num_bytes(len(rows)) / len(rows)
        return int(self.layout.load_bytes(LOAD_OF_FREE) / mean_bytes) // 2 * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A strategy's outcome in a case."""

    case: Case
    strategy: str
    outcome: Outcome


@click.command()
@click.option("--quick", is_flag=True, help="One kind of rows; writes no result unless --results is given.")
@results_option
def uneven(quick: bool, folder: Path | None) -> None:
    """How full brokers end up where partitions lie unevenly; exit status 1 if evenload misses its goal."""
    console = Console(highlight=False)
    console.width = max(console.width, 110)
    data = data_folder()
    if not data.is_dir():
        raise click.ClickException(
            f"no data in {data}: set EVENLOAD_TEST_DATA to a folder with cola/ and cifar10/"
        )
    texts, images = cola(data), cifar10(data)
    kinds = [texts_and_images(texts, images)] if quick else [texts, images, texts_and_images(texts, images)]
    runs: list[Run] = []
    with (
        console.status("starting brokers") as status,
        temporary_cluster(num_brokers=3, broker_properties=BROKER_PROPERTIES) as cluster,
    ):
        for layout in LAYOUTS:
            with Stage(cluster, layout) as stage:
                for rows in kinds:
                    case = Case(layout=layout, records=rows)
                    for strategy in ALL:
                        status.update(f"{layout.name}, {rows.name}: {strategy.name}")
                        outcome = load_once(stage, case, strategy)
                        runs.append(Run(case=case, strategy=strategy.name, outcome=outcome))
                    console.print(table_of(runs[-len(ALL) :]))
    keep(document(runs), lambda: draw(runs), folder, is_whole=not quick)
    if not are_all_within_a_point([run.outcome for run in runs if run.strategy == EVENLOAD]):
        raise click.exceptions.Exit(1)


def table_of(runs: Sequence[Run]) -> Table:
    """The runs of one case: how full each broker is at the end, in percent."""
    case, best = runs[0].case, runs[0].outcome.best
    table = Table(
        box=None, pad_edge=False, title=f"{case.layout.name}: {case.records.name}", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for broker_id in best:
        table.add_column(f"broker {broker_id}", justify="right")
    table.add_column("spread", justify="right")
    table.add_column("over the best", justify="right")
    table.add_row("best possible", *map(_percent, best.values()), style="bold")
    for run in runs:
        outcome = run.outcome
        table.add_row(
            run.strategy,
            *map(_percent, outcome.utilisation.values()),
            _percent(outcome.spread),
            f"{_points(outcome):+.1f}",
            style="bold" if run.strategy == EVENLOAD else "",
        )
    return table


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """All of it, for `results.write_json`."""
    return {
        "benchmark": "uneven",
        "machine": machine("confluent-kafka", "kafka-python"),
        "criterion": {"points_over_best_max": ALLOWED_POINTS},
        "runs": [
            {
                "layout": run.case.layout.name,
                "rows": run.case.records.name,
                "num_records": run.case.num_records,
                "strategy": run.strategy,
                "utilisation": _rounded(run.outcome.utilisation),
                "best": _rounded(run.outcome.best),
                "spread": round(run.outcome.spread, 4),
                "points_over_best": round(_points(run.outcome), 2),
            }
            for run in runs
        ],
    }


def draw(runs: Sequence[Run]) -> Figure:
    """How full each broker is, by strategy; a panel for each layout, with the rows that were worst for it."""
    from matplotlib.figure import Figure

    layouts = list(dict.fromkeys(run.case.layout.name for run in runs))
    figure = Figure(figsize=(9, 2.6 * len(layouts)), layout="constrained")
    for axes, layout in zip(figure.subplots(len(layouts), squeeze=False)[:, 0], layouts, strict=True):
        of_layout = [run for run in runs if run.case.layout.name == layout]
        names = list(dict.fromkeys(run.strategy for run in of_layout))
        worst = [
            max((r for r in of_layout if r.strategy == n), key=lambda r: _points(r.outcome)) for n in names
        ]
        for place, broker_id in enumerate(worst[0].outcome.utilisation):
            axes.bar(
                [number + 0.27 * (place - 1) for number in range(len(worst))],
                [100 * run.outcome.utilisation[broker_id] for run in worst],
                width=0.25,
                color=("#52606d", "#9aa5b1", "#c7a252")[place],
                label=f"broker {broker_id}" if layout == layouts[0] else None,
            )
        axes.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names], fontsize="small")
        axes.set_ylabel("% full")
        axes.set_title(layout, loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize="small")
    return figure


def _points(outcome: Outcome) -> float:
    return max(outcome.highest_over_best, outcome.spread_over_best) / POINT


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _rounded(utilisation: Mapping[int, float]) -> dict[int, float]:
    return {broker_id: round(value, 4) for broker_id, value in utilisation.items()}
