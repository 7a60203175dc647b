"""The loss of a run, step by step, from the books: only steps that count, each once, over all ranks."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from evenload.ray_trainer.training.books.ledger import StepEntry, StepRange
from evenload.ray_trainer.training.books.part_files import read_books
from evenload.resume.storage import RunStorage

__all__ = ["CURVE_NAME", "LossPoint", "mean_by_epoch", "read_curve", "write_curve"]

CURVE_NAME: Final = "loss.jsonl"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The mean loss of one step.

    Attributes:
        samples: Consumed of the epoch, when the step was done.
        count: Samples (or label tokens) that it is the mean of.
    """

    step: int
    epoch: int
    samples: int
    loss: float
    count: float


def read_curve(storage: RunStorage, step_ranges: Iterable[StepRange]) -> list[LossPoint]:
    """The losses of the steps that count; a file that can't be read leaves its part out, and is logged."""
    sums: dict[int, float] = {}
    facts: dict[int, StepEntry] = {}
    for step_range in step_ranges:
        for part, entries, error in read_books(storage, step_range, with_index=False):
            if error is not None:
                logger.warning("%s can't be read: %s", part.name, error)
            for entry in entries:
                sums[entry.step] = sums.get(entry.step, 0.0) + entry.loss_sum
                facts[entry.step] = entry
    return [
        LossPoint(step, e.epoch, e.stop, sums[step] / e.count if e.count else math.nan, e.count)
        for step, e in sorted(facts.items())
    ]


def mean_by_epoch(curve: Sequence[LossPoint]) -> list[float]:
    """The mean loss of each epoch, in order, each sample (or token) counting the same."""
    sums: dict[int, tuple[float, float]] = {}
    for point in curve:
        total, count = sums.get(point.epoch, (0.0, 0.0))
        sums[point.epoch] = (total + point.loss * point.count, count + point.count)
    return [total / count if count else math.nan for _, (total, count) in sorted(sums.items())]


def write_curve(storage: RunStorage, curve: Sequence[LossPoint]) -> None:
    """Write it beside the model, a JSON line a step; a loss that is no number is null.

    Raises:
        StorageUnwritableError: It can't be written.
    """
    lines = []
    for point in curve:
        fields = asdict(point)
        del fields["count"]
        fields["loss"] = point.loss if math.isfinite(point.loss) else None
        lines.append(json.dumps(fields) + "\n")
    storage.write(CURVE_NAME, "".join(lines).encode())
