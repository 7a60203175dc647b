"""How good the model was after each epoch, kept in the run: one small file for each evaluation.

    metrics/epoch-000003-attempt-000002.json

An evaluation counts when the present model went through the one that was measured: the attempt and step
after which it was made have to be in the lineage of what is gone on with (books/ledger.py). So after falling
back to an earlier checkpoint, what was measured since does not count, and nothing has to be deleted.

Read next: session.py (`Session.evaluate`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenload.ray_trainer.training.books.ledger import lineage
from evenload.resume.attempts import read_starts
from evenload.resume.storage import RunStorage

__all__ = ["EvaluationRecord", "read_evaluations", "write_evaluation"]

_FOLDER = "metrics"

logger = logging.getLogger(__name__)


class EvaluationRecord(BaseModel):
    """One evaluation of one model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epoch: int = Field(ge=0, description="The one after which it was measured, from 0.")
    attempt: int = Field(ge=1, description="The attempt that did the last step before.")
    step: int = Field(ge=0, description="Steps done since the run began.")
    metrics: dict[str, float | None] = Field(description="By name; null is no finite number.")
    measured_at_s: float = Field(ge=0, description="Seconds since 1970.")


def write_evaluation(
    storage: RunStorage, metrics: Mapping[str, float], *, epoch: int, attempt: int, step: int
) -> None:
    """Keep what was measured after `step`, which `attempt` did.

    Raises:
        StorageUnwritableError: It can't be written.
    """
    record = EvaluationRecord(
        epoch=epoch,
        attempt=attempt,
        step=step,
        metrics={name: float(value) if math.isfinite(value) else None for name, value in metrics.items()},
        measured_at_s=time.time(),
    )
    name = f"{_FOLDER}/epoch-{epoch:06d}-attempt-{attempt:06d}.json"
    storage.write(name, record.model_dump_json(indent=1).encode())


def read_evaluations(storage: RunStorage, *, attempt: int, step: int) -> dict[int, dict[str, float]]:
    """The metrics that count for the model that `attempt` had after `step`, by epoch.

    A file that was cut off is logged, and its evaluation made again.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    try:
        segments = lineage(read_starts(storage)[0], attempt=attempt, step=step)
    except ValueError:  # the audit says it; what can't be known is measured again
        return {}
    found: dict[int, dict[str, float]] = {}
    for name in storage.list_names(_FOLDER):
        try:
            record = EvaluationRecord.model_validate_json(storage.read(f"{_FOLDER}/{name}"))
        except ValidationError:
            logger.warning("%s is not what an evaluation wrote", storage.place(f"{_FOLDER}/{name}"))
            continue
        if any(each.attempt == record.attempt and each.covers(record.step) for each in segments):
            metrics = {key: math.nan if value is None else value for key, value in record.metrics.items()}
            found[record.epoch] = metrics
    return found
