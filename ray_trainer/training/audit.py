"""Was every sample used exactly once per epoch? Said from the books, not from the plan.

The ledger says what each rank's loop was really handed (ledger.py); which of its entries the model has
seen follows from the chain of checkpoints. Per epoch, these entries are compared with the manifest: a
sample of the dataset that no entry names is missing, one named again is repeated. An epoch is complete
when the run went past its end; one that is not is never called exact, however good it looks so far.

Invariants, checked in tests/unit/test_audit.py:
1. Removing or repeating any entry, or any file, of a run whose audit was exact makes the audit fail.
2. Steps that were done again after a failure count once.

Read next: ledger.py, for what is in the books.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataset_catalog.catalog import Catalog
from kafka_connection.connection import Connection
from kafka_connection.environment import resolve_connection
from ray_trainer.errors import RunMismatchError
from ray_trainer.reading.sample_split import SampleSplit
from ray_trainer.training.checkpoint import CheckpointStore
from ray_trainer.training.ledger import Segment, StepEntry, lineage, read_parts, read_starts
from ray_trainer.training.run_record import RunRecord, read_finished, read_run
from ray_trainer.training.storage import RunStorage

__all__ = ["AuditReport", "EpochAudit", "audit", "audit_run", "counted_entries", "covered_segments"]


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """What became of one epoch.

    Attributes:
        epoch: From 0.
        samples: Samples handed out, repeated ones counted each time.
        missing: Samples of the dataset that were not handed out (of an unfinished epoch: not yet).
        repeated: Samples handed out beyond their first time.
        is_complete: The run went past the end of this epoch.
        unaccounted: Samples that the covered steps had, by their place in the order, but that no entry
            names; 0 unless books are lost. (Of a complete epoch they are missing, too.)
    """

    epoch: int
    samples: int
    missing: int
    repeated: int
    is_complete: bool
    unaccounted: int

    @property
    def is_exact(self) -> bool:
        return self.is_complete and not (self.missing or self.repeated or self.unaccounted)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the audit found.

    Attributes:
        exactly_once: There is at least one epoch, and all are complete and exact.
        notes: What could not be read or known, a sentence each; empty in a sound run.
    """

    run: str
    dataset: str
    num_samples: int
    epochs: tuple[EpochAudit, ...]
    exactly_once: bool
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def audit(run: str, storage: str | Path, connection: Connection | None = None) -> AuditReport:
    """Compare a run's books with its dataset's manifest. May be done while the run goes on.

    Args:
        run: The run's name.
        storage: Where its folder is.
        connection: To the cluster that holds the dataset; None: as everywhere (`resolve_connection`).

    Raises:
        UnknownRunError: There is no such run.
        RunMismatchError: The catalog's dataset is not the one that the run was trained on.
        CatalogError, KafkaConnectionError: The manifest can't be had.
    """
    place = RunStorage(storage, run)
    record = read_run(place)
    manifest = Catalog(connection or resolve_connection()).get(record.dataset)
    if manifest.fingerprint != record.dataset_fingerprint:
        raise RunMismatchError(run, {"dataset": (record.dataset_fingerprint, manifest.fingerprint)})
    expected = None
    if split := record.plan_facts.get("split"):
        expected = SampleSplit(*split).selects(np.arange(manifest.num_samples))
    return audit_run(place, record, num_samples=manifest.num_samples, expected=expected)


def audit_run(
    storage: RunStorage,
    record: RunRecord,
    *,
    num_samples: int,
    expected: npt.NDArray[np.bool_] | None = None,
) -> AuditReport:
    """The audit proper, against a dataset of `num_samples` samples.

    Args:
        expected: [num_samples], which samples an epoch has, of a run on a part of its dataset; None: all.
    """
    segments, notes = covered_segments(storage, record.run_id)
    books: dict[int, _EpochBook] = {}
    for entry in counted_entries(storage, segments, notes):
        book = books.setdefault(entry.epoch, _EpochBook(entry.epoch, num_samples, expected))
        book.add(entry)
    epochs = tuple(books[epoch].close(is_last=epoch == max(books)) for epoch in sorted(books))
    gaps = [epoch for epoch in range(max(books, default=-1) + 1) if epoch not in books]
    if gaps:
        notes.append(f"no entry of epochs {', '.join(map(str, gaps))} is left")
    exact = bool(epochs) and not notes and all(epoch.is_exact for epoch in epochs)
    return AuditReport(storage.run, record.dataset, num_samples, epochs, exact, tuple(notes))


def covered_segments(storage: RunStorage, run_id: str) -> tuple[list[tuple[Segment, int]], list[str]]:
    """The steps that the model has seen, from the run's end or its last valid checkpoint backwards.

    Returns:
        Segments, oldest first, each with its number of ranks; and a sentence for all that can't be known.
    """
    starts, unreadable = read_starts(storage)
    notes = list(unreadable)
    ends = []
    if finished := read_finished(storage):
        ends.append((finished.attempt, finished.step))
    if found := CheckpointStore(storage, run_id).newest_valid().checkpoint:
        ends.append((found.index.attempt, found.index.step))
    if not ends:
        return [], [*notes, "the run has no valid checkpoint yet, so nothing that it did counts"]
    attempt, step = max(ends)
    try:
        segments = lineage(starts, attempt=attempt, step=step)
    except ValueError as error:
        return [], [*notes, str(error)]
    return [(segment, starts[segment.attempt].world_size) for segment in segments], notes


def counted_entries(
    storage: RunStorage, segments: Iterable[tuple[Segment, int]], notes: list[str]
) -> Iterator[StepEntry]:
    """The entries that count; what is wrong with the books is added to `notes`."""
    for segment, world_size in segments:
        steps_by_rank = dict.fromkeys(range(world_size), 0)
        for part in read_parts(storage, segment):
            try:
                entries = [entry for entry in part.read(storage) if segment.covers(entry.step)]
            except (OSError, pa.ArrowException) as error:
                notes.append(f"{part.name} can't be read: {error}")
                continue
            steps_by_rank[part.rank] = steps_by_rank.get(part.rank, 0) + len(entries)
            yield from entries
        wanted = segment.until_step - segment.after_step
        odd = {rank: steps for rank, steps in steps_by_rank.items() if steps != wanted}
        if odd:
            counts = ", ".join(f"{steps} of rank {rank}" for rank, steps in odd.items())
            notes.append(
                f"attempt {segment.attempt} did the {wanted} steps {segment.after_step + 1} to "
                f"{segment.until_step} with {world_size} ranks, but the books have {counts}"
            )


class _EpochBook:
    """Which samples of one epoch were named, in a byte a sample."""

    def __init__(self, epoch: int, num_samples: int, expected: npt.NDArray[np.bool_] | None) -> None:
        self._epoch = epoch
        self._seen = np.zeros(num_samples, dtype=np.bool_)
        self._expected = expected
        self._samples = 0
        self._repeated = 0
        self._covered = 0
        self._steps: set[int] = set()

    def add(self, entry: StepEntry) -> None:
        named = np.unique(entry.index)
        self._samples += len(entry.index)
        self._repeated += len(entry.index) - len(named) + int(self._seen[named].sum())
        self._seen[named] = True
        if entry.step not in self._steps:
            self._steps.add(entry.step)
            self._covered += entry.stop - entry.start

    def close(self, *, is_last: bool) -> EpochAudit:
        expected = self._expected
        wanted = len(self._seen) if expected is None else int(expected.sum())
        found = self._seen if expected is None else self._seen & expected
        # A sample outside of the part that was to be trained on is as wrong as one too often.
        stray = int(self._seen.sum()) - int(found.sum())
        return EpochAudit(
            epoch=self._epoch,
            samples=self._samples,
            missing=wanted - int(found.sum()),
            repeated=self._repeated + stray,
            is_complete=not is_last or self._covered >= wanted,
            unaccounted=max(0, self._covered - self._samples),
        )
