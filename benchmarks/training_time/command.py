"""`python -m benchmarks training_time`: measures, prints tables, keeps the result, and judges it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import pyarrow as pa
from rich.console import Console
from rich.status import Status

from benchmarks.records import data_folder
from benchmarks.results import keep, results_option, tell_misses
from benchmarks.stage import BROKER_PROPERTIES, Stage
from benchmarks.training_time.links import BYTES_ON_LINK, Links, run_inside
from benchmarks.training_time.placing import (
    BEST,
    DEFAULTS,
    EMPTY,
    PLACINGS,
    Placing,
    place,
    situation,
    take_away,
)
from benchmarks.training_time.ranks import Epoch, Ranks, Trained
from benchmarks.training_time.report import Run, document, draw, misses, tables
from benchmarks.training_time.workloads import WORKLOADS, Workload
from evenload.local_cluster import LocalCluster, temporary_cluster

RATIOS = (0.5, 1.0, 2.0)  # of reading the dataset, spread evenly, to an epoch on unlimited links
NUM_ROUNDS = 3
NUM_UNLIMITED = 4  # epochs, the first of which warms up
QUICK_WORKLOAD, QUICK_RATIO, QUICK_PLACINGS = (
    "CIFAR-10, ResNet-18",
    1.0,
    (BEST, "60/20/20, by hand", DEFAULTS),
)


@click.command("training_time")
@click.option(
    "--quick",
    is_flag=True,
    help="One training, a few layouts, once each; writes no result unless --results is given.",
)
@results_option
def training_time(quick: bool, folder: Path | None) -> None:
    """What uneven brokers cost training; exit status 1 where evenload's defaults cost more than 2 %."""
    data = data_folder()
    if not data.is_dir():
        raise click.ClickException(
            f"no data in {data}: set EVENLOAD_TEST_DATA to a folder with cola/ and cifar10/"
        )
    options = [*(["--quick"] if quick else []), *(["--results", str(folder)] if folder is not None else [])]
    status = run_inside(["training_time", *options])
    if status is not None:
        if status:
            raise click.exceptions.Exit(status)
        return
    console = Console(highlight=False)
    console.width = max(console.width, 120)
    runs: list[Run] = []
    with (
        console.status("starting brokers") as said,
        temporary_cluster(num_brokers=3, broker_properties=BROKER_PROPERTIES) as cluster,
        Ranks() as ranks,
    ):
        ports = [int(address.rpartition(":")[2]) for address in cluster.bootstrap_servers.split(",")]
        stand = _Stand(cluster, Links(dict(zip(cluster.broker_ids, ports, strict=True))), ranks)
        for workload in WORKLOADS.values():
            if quick and workload.name != QUICK_WORKLOAD:
                continue
            bench = _Bench(stand, workload, workload.make_rows(data, workload.num_samples), said)
            runs += bench.measure(num_rounds=1 if quick else NUM_ROUNDS, is_quick=quick)
            result = document(runs)
            for table in tables(result, workload.name):
                console.print(table)
    keep(result, lambda: draw(result), folder, is_whole=not quick)
    tell_misses(console, misses(result), is_judged=not quick)


class _Stand(NamedTuple):
    """What all trainings use."""

    cluster: LocalCluster
    links: Links
    ranks: Ranks


class _Bench:
    """All measurements of one training."""

    def __init__(self, stand: _Stand, workload: Workload, rows: pa.Table, status: Status) -> None:
        self._stand = stand
        self._workload = workload
        self._rows = rows
        self._status = status
        self._num_placed = 0

    def measure(self, *, num_rounds: int, is_quick: bool) -> Iterator[Run]:
        """Each layout in each round, and on each at every rate of the links; there and back."""
        unlimited = self._measure_unlimited()
        for number in range(num_rounds):
            turn = 1 if number % 2 == 0 else -1
            ratios = ([QUICK_RATIO] if is_quick else RATIOS)[::turn]
            for start, placings in PLACINGS.items():
                chosen = [each for each in placings if not is_quick or each.name in QUICK_PLACINGS]
                with Stage(self._stand.cluster, situation(start, self._rows.nbytes)) as stage:
                    for placing in chosen[::turn]:
                        yield from self._measure_placing(stage, placing, ratios, unlimited)

    def _measure_unlimited(self) -> Trained:
        """An epoch in which reading is hardly waited for."""
        best = PLACINGS[EMPTY][0]
        with Stage(self._stand.cluster, situation(EMPTY, self._rows.nbytes)) as stage:
            placed = place(stage, self._rows, best, self._next_name())
            self._status.update(f"{self._workload.name}: unlimited links")
            epoch = Epoch(self._workload.name, placed.manifest, stage.connection)
            trained = [self._stand.ranks.train(epoch) for _ in range(NUM_UNLIMITED)]
            take_away(stage, placed)
        return sorted(trained[1:])[(NUM_UNLIMITED - 1) // 2]

    def _measure_placing(
        self, stage: Stage, placing: Placing, ratios: Sequence[float], unlimited: Trained
    ) -> Iterator[Run]:
        start, links = stage.layout.name, self._stand.links
        self._status.update(f"{self._workload.name}; brokers {start}; {placing.name}")
        placed = place(stage, self._rows, placing, self._next_name())
        epoch = Epoch(self._workload.name, placed.manifest, stage.connection)
        bytes_on_link = unlimited.num_wire_bytes * BYTES_ON_LINK / len(self._stand.cluster.broker_ids)
        for ratio in ratios:
            links.limit(bytes_on_link / (ratio * unlimited.seconds))
            try:
                trained = self._stand.ranks.train(epoch)
            finally:
                links.limit(None)
            yield Run(
                workload=self._workload.name,
                start=start,
                placing=placing.name,
                ratio=ratio,
                unlimited_s=unlimited.seconds,
                dataset_parts=placed.dataset_parts,
                utilisation=placed.utilisation,
                seconds=trained.seconds,
            )
        take_away(stage, placed)

    def _next_name(self) -> str:
        self._num_placed += 1
        return f"rows-{self._num_placed}"
