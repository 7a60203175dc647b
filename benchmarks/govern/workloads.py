"""Pollux's workloads on curves measured at a fixed global batch."""

from __future__ import annotations

import csv
import functools
import math
from collections import defaultdict
from pathlib import Path

from evenload.governor.deciding.curves import interpolated
from evenload.governor.simulating.simulation import Submission

GPUS_PER_NODE = 4
LOADS = {0.5: "workloads-0.5", 1.0: "workloads", 1.5: "workloads-1.5"}


def read_curves(folder: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Samples/s by size on the fewest nodes, by application and global batch."""
    curves: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    with (folder / "curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            size = int(row["num_gpus"])
            if int(row["num_nodes"]) == math.ceil(size / GPUS_PER_NODE):
                curves[row["application"], int(row["global_batch"])][size] = float(row["samples_per_s"])
    return dict(curves)


@functools.cache
def samples_of(folder: Path, application: str, global_batch: int) -> int:
    """What a job of this application reads in all."""
    path = folder / "pollux" / "traces" / application / f"validation-{global_batch}.csv"
    with path.open(newline="") as file:
        *_, last = csv.DictReader(file)
    return int(last["iteration"]) * global_batch


def pollux_workload(folder: Path, load: float, number: int) -> list[Submission]:
    """One of eight workloads of a load (a key of `LOADS`), by submission."""
    curves = read_curves(folder)
    jobs = []
    with (folder / "pollux" / LOADS[load] / f"workload-{number}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["application"], int(row["batch_size"])
            measured, asked_size = curves[key], int(row["num_replicas"])
            jobs.append(
                Submission(
                    job_id=row["name"],
                    kind=f"{key[0]}-{key[1]}",
                    submitted_s=float(row["time"]),
                    asked_size=asked_size,
                    samples=samples_of(folder, *key),
                    speed=interpolated(measured, among={asked_size, *filter(fills_nodes, measured)}),
                )
            )
    return sorted(jobs, key=lambda job: job.submitted_s)


def fills_nodes(size: int) -> bool:
    """Whether its nodes, where there is more than one, are used as a whole."""
    return size <= GPUS_PER_NODE or size % GPUS_PER_NODE == 0
