"""What would have become of a workload under each policy, and a picture of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evenload.governor.deciding.plugins import GuardedPolicy, load_policy
from evenload.governor.simulating.metrics import Figures, figures_of
from evenload.governor.simulating.simulation import USUAL, Costs, Submission, simulate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#4e79a7", "#f28e2b", "#76b7b2", "#e15759", "#59a14f", "#edc948", "#b07aa1", "#9c755f")


@dataclass(frozen=True, slots=True)
class Replayed:
    """A workload under a policy.

    Attributes:
        resizes: Time, job and slots from then on, as it came.
        fault: Why another policy has decided in this one's place; None if it did itself.
    """

    policy: str
    figures: Figures
    resizes: tuple[tuple[float, str, int], ...]
    fault: str | None


def replay(
    workload: Sequence[Submission],
    policy: str,
    *,
    num_slots: int,
    costs: Costs = USUAL,
    wait_max_s: float = math.inf,
) -> Replayed:
    """Simulates a workload.

    Args:
        workload: Its jobs, by submission, at least one.
        policy: The name of a policy.

    Raises:
        PolicyError: There is no such policy.
        StuckError: It starts nothing.
    """
    guarded = GuardedPolicy(load_policy(policy), name=policy)
    resizes: list[tuple[float, str, int]] = []
    ended = simulate(
        workload,
        guarded,
        num_slots=num_slots,
        costs=costs,
        wait_max_s=wait_max_s,
        on_resize=lambda *resize: resizes.append(resize),
    )
    return Replayed(policy, figures_of(ended, num_slots), tuple(resizes), guarded.fault)


def draw(replayed: Sequence[Replayed], workload: Sequence[Submission], num_slots: int) -> Figure:
    """Slots over time, a band for each job; a panel for each policy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.2 * len(replayed) + 0.4), layout="constrained")
    panels = figure.subplots(len(replayed), sharex=True, squeeze=False)[:, 0]
    begun_s = workload[0].submitted_s
    unit, unit_s = _unit(max(each.figures.makespan_s for each in replayed))
    for axes, each in zip(panels, replayed, strict=True):
        times, sizes = _steps(each, [job.job_id for job in workload])
        axes.stackplot(
            (times - begun_s) / unit_s,
            sizes,
            step="post",
            colors=[COLORS[n % len(COLORS)] for n in range(len(workload))],
            linewidth=0,
        )
        axes.set_ylim(0, num_slots)
        axes.set_ylabel("slots")
        title = f"{each.policy}: mean completion {each.figures.mean_s:,.0f} s"
        axes.set_title(title, loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel(f"{unit} since the first submission; a band is a job")
    panels[-1].set_xlim(left=0)
    return figure


def _steps(replayed: Replayed, job_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Times of all changes, and each job's slots from then on [jobs, times]."""
    times = np.array(sorted({time for time, _, _ in replayed.resizes}))
    rows = {job_id: row for row, job_id in enumerate(job_ids)}
    changes = np.zeros((len(job_ids), len(times)))
    held = dict.fromkeys(job_ids, 0)
    for time, job_id, size in replayed.resizes:
        changes[rows[job_id], np.searchsorted(times, time)] += size - held[job_id]
        held[job_id] = size
    return times, changes.cumsum(axis=1)


def _unit(seconds: float) -> tuple[str, float]:
    if seconds > 2 * 86_400:
        return "days", 86_400.0
    return ("hours", 3600.0) if seconds > 2 * 3600 else ("minutes", 60.0)
