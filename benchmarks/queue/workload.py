"""Ten runs that come within three minutes, and how fast each is with how many workers.

Real training on a machine of few cores would be as fast with four workers as with one. So a step computes
little and then waits until as much time has passed as a curve says; all else is real.
"""

from __future__ import annotations

from typing import NamedTuple

from evenload.governor.deciding.curves import interpolated
from evenload.governor.simulating.simulation import Submission

NUM_SLOTS = 4
SAMPLES_PER_S = 64.0  # with one worker
GLOBAL_BATCH_SIZE = 32
NUM_SAMPLES = 640  # of the dataset: ten seconds with one worker
RELATIVE_SPEEDS = {"A": (1.0, 1.77, 2.39, 2.90), "B": (1.0, 1.30, 1.59, 1.82), "C": (1.0, 1.18, 1.29, 1.33)}


class Run(NamedTuple):
    """One run."""

    name: str
    submitted_s: float
    curve: str
    one_worker_s: int
    asked: int

    @property
    def epochs(self) -> int:
        return round(self.one_worker_s * SAMPLES_PER_S / NUM_SAMPLES)

    @property
    def submission(self) -> Submission:
        """The same in a simulation."""
        return Submission(
            job_id=self.name,
            kind=self.curve,
            submitted_s=self.submitted_s,
            asked_size=self.asked,
            samples=float(self.epochs * NUM_SAMPLES),
            speed=interpolated(speeds_of(self.curve)),
        )


def speeds_of(curve: str) -> dict[int, float]:
    """Samples/s by workers."""
    return {size: SAMPLES_PER_S * part for size, part in enumerate(RELATIVE_SPEEDS[curve], start=1)}


RUNS = tuple(
    Run(f"run-{number}", submitted_s, curve, one_worker_s, asked)
    for number, (submitted_s, curve, one_worker_s, asked) in enumerate(
        (
            (0, "A", 420, 4),
            (10, "C", 60, 2),
            (20, "B", 180, 2),
            (40, "A", 90, 2),
            (60, "C", 120, 2),
            (80, "B", 60, 4),
            (100, "A", 240, 4),
            (120, "B", 120, 2),
            (150, "C", 60, 1),
            (170, "A", 120, 4),
        ),
        start=1,
    )
)
