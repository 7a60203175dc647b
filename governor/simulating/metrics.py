"""The figures that policies are compared by, of a workload that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenload.governor.simulating.simulation import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of all jobs of a workload; times in seconds."""

    mean_s: float  # completion: end minus submission
    median_s: float
    p99_s: float
    makespan_s: float  # last end minus first submission
    longest_wait_s: float  # for slots, of any job at any time
    utilisation: float  # of slot-seconds until the last end, the part that jobs held, 0 to 1
    resizes_per_job: float


def figures_of(ended: Sequence[Ended], num_slots: int) -> Figures:
    """The figures of a workload that has ended.

    Args:
        ended: Its jobs, at least one.
        num_slots: What there was.
    """
    completions = np.array([each.completion_s for each in ended])
    makespan_s = max(each.ended_s for each in ended) - min(each.job.submitted_s for each in ended)
    return Figures(
        mean_s=float(completions.mean()),
        median_s=float(np.quantile(completions, 0.5)),
        p99_s=float(np.quantile(completions, 0.99)),
        makespan_s=makespan_s,
        longest_wait_s=max(each.longest_wait_s for each in ended),
        utilisation=sum(each.slot_seconds for each in ended) / (num_slots * makespan_s),
        resizes_per_job=sum(each.num_resizes for each in ended) / len(ended),
    )
