"""A trace of jobs, as a CSV file that anybody can make from what their scheduler has written down.

Columns: `submitted` (seconds, or a date with time), `slots` (asked for), `duration_s` (that it took there).
Optional: `name`, `kind` (of jobs with the same speeds), `min_slots`, `max_slots` (that it can run with).
Speeds by size are in a file of their own, with columns `kind`, `slots`, `samples_per_s`; only their ratios
count.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from evenload.governor.deciding.curves import SpeedCurve, interpolated
from evenload.governor.errors import TraceError
from evenload.governor.simulating.simulation import Submission

GROWTH = 0.8  # where speeds aren't known, they are taken to grow with this power of the size,
GROWTH_SLOTS = 2  # up to so many times the slots asked for
_SLOTS_MAX = 100_000

Speeds = Mapping[str, Mapping[int, float]]  # samples/s by kind and size


def read_speeds(path: Path) -> dict[str, dict[int, float]]:
    """Speeds by size and kind.

    Raises:
        TraceError: A line can't be understood.
        OSError: The file can't be read.
    """
    speeds: dict[str, dict[int, float]] = defaultdict(dict)
    for where, row in _rows(path, ("kind", "slots", "samples_per_s")):
        size = _slots(where, "slots", row["slots"])
        speeds[row["kind"]][size] = _positive(where, "samples_per_s", row["samples_per_s"])
    return dict(speeds)


class Trace(NamedTuple):
    """What a file of jobs says."""

    jobs: list[Submission]  # by submission
    num_guessed: int  # jobs of kinds whose speeds aren't known


def read_trace(path: Path, num_slots: int, speeds: Speeds) -> Trace:
    """The jobs of a trace.

    Args:
        num_slots: What there is to be for all of them.
        speeds: As `read_speeds` gives them; a job of another kind is taken to be as fast as `GROWTH` says.

    Raises:
        TraceError: A line can't be understood, or there is none.
        OSError: The file can't be read.
    """
    jobs: dict[str, Submission] = {}
    num_guessed = 0
    for where, row in _rows(path, ("submitted", "slots", "duration_s")):
        name = row.get("name") or f"job-{len(jobs) + 1}"
        if name in jobs:
            raise TraceError(f"{where}: there are two jobs named {name!r}")
        jobs[name] = _job(where, name, row, num_slots, speeds)
        num_guessed += (row.get("kind") or "") not in speeds
    if not jobs:
        raise TraceError(f"{path} has no jobs")
    return Trace(sorted(jobs.values(), key=lambda job: job.submitted_s), num_guessed)


def _job(where: str, name: str, row: Mapping[str, str], num_slots: int, speeds: Speeds) -> Submission:
    asked = _slots(where, "slots", row["slots"])
    least = _slots(where, "min_slots", row["min_slots"]) if row.get("min_slots") else 1
    most = _slots(where, "max_slots", row["max_slots"]) if row.get("max_slots") else None
    if asked > num_slots:
        raise TraceError(f"{where}: {name!r} asks for {asked} slots, and there are to be {num_slots}")
    if not least <= asked <= (most or asked):
        raise TraceError(f"{where}: {name!r} asks for {asked} slots, but can have {least} to {most or asked}")
    kind = row.get("kind") or ""
    measured = speeds.get(kind)
    if measured is None:
        largest = min(num_slots, most or GROWTH_SLOTS * asked)
        measured = {size: size**GROWTH for size in range(1, largest + 1)}
    elif asked > max(measured):
        raise TraceError(
            f"{where}: {name!r} asks for {asked} slots, but speeds of kind {kind!r} are known up to "
            f"{max(measured)}"
        )
    known = interpolated(measured).samples_per_s
    largest = max(asked, min(num_slots, most or num_slots, len(known) - 1))
    curve = _curve(known[: largest + 1], least)
    samples = _positive(where, "duration_s", row["duration_s"]) * curve.samples_per_s[asked]
    return Submission(
        job_id=name,
        submitted_s=_seconds(where, row["submitted"]),
        asked_size=asked,
        samples=samples,
        speed=curve,
        kind=f"{kind} up to {largest}",
        min_size=least,
    )


def _curve(speeds: tuple[float, ...], least: int) -> SpeedCurve:
    return interpolated(dict(enumerate(speeds[1:], start=1)), among=range(least, len(speeds)))


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each line with where it is."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(
                    f"{path} has no column {' and no column '.join(missing)}; its first line names "
                    f"{', '.join(columns)}"
                )
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise TraceError(f"{where} has not as many values as the first line has names")
                yield where, row
        except csv.Error as error:
            raise TraceError(f"{path}, after line {reader.line_num}: {error}") from error


def _slots(where: str, column: str, text: str) -> int:
    value = _positive(where, column, text)
    if value != int(value) or value > _SLOTS_MAX:
        raise TraceError(f"{where}: {column} is {text!r}, must be a whole number from 1 to {_SLOTS_MAX:,}")
    return int(value)


def _positive(where: str, column: str, text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise TraceError(f"{where}: {column} is {text!r}, must be a number above 0")
    return value


def _seconds(where: str, text: str) -> float:
    seconds = _number(text)
    if math.isfinite(seconds):
        return seconds
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise TraceError(
            f"{where}: submitted is {text!r}, must be seconds or a date with time, as 2026-11-25 14:30:00"
        ) from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
