"""Workloads on curves measured at a fixed global batch: Pollux's, and days of Philly's trace."""

from __future__ import annotations

import csv
import functools
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from evenload.governor.deciding.curves import interpolated
from evenload.governor.simulating.simulation import Submission

GPUS_PER_NODE = 4
LOADS = {0.5: "workloads-0.5", 1.0: "workloads", 1.5: "workloads-1.5"}
NUM_WORKLOADS = 8  # of each kind

# Of Philly's trace: the ISO weeks of 2017 with the most jobs, and how long a window of each is.
_WEEKS = (39, 40, 41, 42, 43, 45, 46, 49)
_WINDOW_HOURS, _JOBS_MAX = 8, 160
_SHORTEST_S, _LONGEST_GPU_S = 60.0, 1000 * 3600.0
# What a job of below so many GPU-hours is taken for, as Pollux's authors did.
_APPLICATIONS = (
    (1, ("cifar10", "ncf")),
    (10, ("deepspeech2", "bert")),
    (100, ("yolov3",)),
    (math.inf, ("imagenet",)),
)


@functools.cache
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


class _Asked(NamedTuple):
    """What a job trains, and with how much."""

    application: str
    global_batch: int
    size: int


def pollux_workload(folder: Path, load: float, number: int) -> list[Submission]:
    """One of eight workloads of a load (a key of `LOADS`), by submission."""
    jobs = [
        _submission(folder, row["name"], float(row["time"]), _asked(row))
        for row in _rows(folder / "pollux" / LOADS[load] / f"workload-{number}.csv")
    ]
    return sorted(jobs, key=lambda job: job.submitted_s)


def philly_workload(folder: Path, number: int) -> list[Submission]:
    """The busiest eight hours of one of eight weeks, with arrivals as they were; by submission.

    Pollux's workloads fold all days into one. What a job trains follows from the GPU-hours that it took; its
    batch and size are drawn from the jobs of that application in Pollux's workloads.
    """
    week = _WEEKS[number - 1]
    rng = random.Random(week)
    window = _busiest_window(list(_philly_jobs(folder, week)))
    if len(window) > _JOBS_MAX:
        window = sorted(rng.sample(window, _JOBS_MAX))
    alike: dict[str, list[_Asked]] = defaultdict(list)
    for each in range(1, NUM_WORKLOADS + 1):
        for row in _rows(folder / "pollux" / LOADS[1.0] / f"workload-{each}.csv"):
            alike[row["application"]].append(_asked(row))
    begin_s = window[0][0]
    jobs = []
    for at, (submitted_s, gpu_s) in enumerate(window):
        applications = next(names for hours, names in _APPLICATIONS if gpu_s < hours * 3600)
        asked = rng.choice(alike[rng.choice(applications)])
        jobs.append(_submission(folder, f"{asked.application}-{at}", submitted_s - begin_s, asked))
    return jobs


def with_a_shared_broker(jobs: Sequence[Submission], application: str) -> tuple[list[Submission], float]:
    """The same jobs, of which those of an application read from one broker, and what that can give.

    It is as much as the fastest of them reads on 16 GPUs, in samples/s: two at a time are too many for it.
    """
    readers = {job.job_id: job for job in jobs if job.job_id.startswith(application)}
    limit = max(max(job.speed.samples_per_s[:17]) for job in readers.values())
    return [replace(job, reads={1: 1.0}) if job.job_id in readers else job for job in jobs], limit


def _philly_jobs(folder: Path, week: int) -> Iterator[tuple[float, float]]:
    """When each job of a week was submitted, in seconds, and how many GPU-seconds it took."""
    for row in _rows(folder / "philly.csv"):
        gpu_s = float(row["gpu_time"])
        submitted = datetime.fromisoformat(row["timestamp"])
        if submitted.isocalendar()[:2] != (2017, week):
            continue
        if float(row["duration"]) >= _SHORTEST_S and gpu_s < _LONGEST_GPU_S:
            yield (submitted - datetime(2017, 1, 1)).total_seconds(), gpu_s


def _busiest_window(jobs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The jobs of the eight whole hours in which most GPU-hours were submitted; by submission."""
    by_hour: defaultdict[int, float] = defaultdict(float)
    for submitted_s, gpu_s in jobs:
        by_hour[int(submitted_s // 3600)] += gpu_s
    first = max(
        range(min(by_hour), max(by_hour) + 1),
        key=lambda hour: sum(by_hour[hour + more] for more in range(_WINDOW_HOURS)),
    )
    return sorted(job for job in jobs if first <= job[0] // 3600 < first + _WINDOW_HOURS)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def _asked(row: dict[str, str]) -> _Asked:
    return _Asked(row["application"], int(row["batch_size"]), int(row["num_replicas"]))


def _submission(folder: Path, job_id: str, submitted_s: float, asked: _Asked) -> Submission:
    key = asked.application, asked.global_batch
    measured = read_curves(folder)[key]
    return Submission(
        job_id=job_id,
        kind=f"{key[0]}-{key[1]}",
        submitted_s=submitted_s,
        asked_size=asked.size,
        samples=samples_of(folder, *key),
        speed=interpolated(measured, among={asked.size, *filter(fills_nodes, measured)}),
    )


def fills_nodes(size: int) -> bool:
    """Whether its nodes, where there is more than one, are used as a whole."""
    return size <= GPUS_PER_NODE or size % GPUS_PER_NODE == 0
