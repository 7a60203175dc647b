"""Was every sample used exactly once per epoch? Said from the books, not from the plan.

The books say what each rank's loop was really handed (books/ledger.py). Which of their entries the present
model has seen follows from the run's end, or from its newest checkpoint, backwards. Per epoch, these entries
are compared with the manifest: a sample of the dataset whose number no entry names is missing, one named
again is repeated. Numbers are those in the records' own headers, so a record that lies in another's place
makes its samples repeated and the other's missing; where two have changed places, every sample is still
there, and placement.py notices that. An epoch that the run has not gone past is never called exact, however
good it looks so far.

This stands above books, checkpoints and the run's record, which don't know each other: only here are all
three read.

Invariants, checked in tests/unit/ray_trainer/training/test_audit.py:
1. Removing or repeating any entry, or any file, of a run whose audit was exact makes the audit fail.
2. Steps that were done again after a failure count once.
3. Whatever a damaged entry says, it is a note and no exception, and its samples count as missing.

Read next: books/ledger.py, for what is in the books.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.catalog import Catalog
from evenload.kafka_connection.connection import Connection
from evenload.kafka_connection.environment import resolve_connection
from evenload.ray_trainer.reading.sample_split import SampleSplit
from evenload.ray_trainer.training.books.ledger import StepEntry, StepRange, lineage, read_parts
from evenload.ray_trainer.training.books.part_files import read_books
from evenload.ray_trainer.training.books.placement import Placement
from evenload.ray_trainer.training.run_record import RunRecord, read_finished, read_run
from evenload.resume.attempts import began_anew_at, read_starts
from evenload.resume.checkpoint import CheckpointStore
from evenload.resume.errors import RunMismatchError
from evenload.resume.storage import RunStorage

__all__ = ["AuditReport", "EpochAudit", "audit", "audit_run", "counted_entries", "covered_steps"]


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """What became of one epoch.

    Attributes:
        epoch: From 0.
        samples: Samples handed out, repeated ones counted each time.
        missing: Samples of the dataset that were not handed out (of an unfinished epoch: not yet).
        repeated: Samples handed out beyond their first time.
        is_over: The run went past the end of this epoch.
        is_complete: It did, and every sample was handed out.
        unaccounted: Samples that the covered steps had, by their place in the order, but that no entry
            names; 0 unless books are lost. (Of a complete epoch they are missing, too.)
    """

    epoch: int
    samples: int
    missing: int
    repeated: int
    is_over: bool
    is_complete: bool
    unaccounted: int

    @property
    def is_exact(self) -> bool:
        return self.is_complete and not (self.repeated or self.unaccounted)


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
    return audit_run(
        place,
        record,
        num_samples=manifest.num_samples,
        expected=expected,
        placement=Placement(manifest.extent_arrays()),
    )


def audit_run(
    storage: RunStorage,
    record: RunRecord,
    *,
    num_samples: int,
    expected: npt.NDArray[np.bool_] | None = None,
    placement: Placement | None = None,
) -> AuditReport:
    """The audit proper, against a dataset of `num_samples` samples.

    Args:
        expected: [num_samples], which samples (by position in manifest order) an epoch has, of a run on a
            part of its dataset; None: all.
        placement: Of the dataset, to notice records that have changed places; None: that isn't looked at.
    """
    step_ranges, notes = covered_steps(storage, record.run_id)
    books: dict[int, _EpochBook] = {}
    for entry in counted_entries(storage, step_ranges, notes, num_samples=num_samples):
        if entry.epoch not in books:
            books[entry.epoch] = _EpochBook(entry.epoch, num_samples, expected)
        books[entry.epoch].add(entry)
        if placement is not None and entry.number is not None:
            placement.add(entry.index, entry.number)
    notes.extend(placement.close() if placement is not None else ())
    epochs = tuple(books[epoch].close(is_last=epoch == max(books)) for epoch in sorted(books))
    gaps = [epoch for epoch in range(max(books, default=-1) + 1) if epoch not in books]
    if gaps:
        more = f" and {len(gaps) - 10} more" if len(gaps) > 10 else ""
        notes.append(f"no entry of epochs {', '.join(map(str, gaps[:10]))}{more} is left")
    exact = bool(epochs) and not notes and all(epoch.is_exact for epoch in epochs)
    return AuditReport(storage.run, record.dataset, num_samples, epochs, exact, tuple(notes))


def covered_steps(storage: RunStorage, run_id: str) -> tuple[list[tuple[StepRange, int]], list[str]]:
    """The steps that the model has seen, from the run's end or its last valid checkpoint backwards.

    Returns:
        Ranges of steps, oldest first, each with its number of ranks; and a sentence for each thing that can't
        be known.
    """
    starts, unread = read_starts(storage)
    # Killed while it was written, an attempt has no books either, and nothing is missing.
    notes = [why for attempt, why in unread.items() if read_parts(storage, StepRange.all_of(attempt))]
    ends = []
    since = began_anew_at(starts)
    finished = read_finished(storage)
    if finished is not None and finished.attempt >= since:
        ends.append((finished.attempt, finished.step))
    # Its index is enough: the model isn't needed to know what it has seen, and may be large.
    if found := CheckpointStore(storage, run_id).newest_listed(since=since):
        ends.append((found.index.attempt, found.index.step))
    if not ends:
        return [], [*notes, "the run has no valid checkpoint yet, so nothing that it did counts"]
    attempt, step = max(ends)
    try:
        step_ranges = lineage(starts, attempt=attempt, step=step)
    except ValueError as error:
        return [], [*notes, str(error)]
    begun = [starts[step_range.attempt] for step_range in step_ranges]
    num_parts = [start.num_parts or start.world_size for start in begun]
    return list(zip(step_ranges, num_parts, strict=True)), notes


def counted_entries(
    storage: RunStorage,
    step_ranges: Iterable[tuple[StepRange, int]],
    notes: list[str],
    *,
    num_samples: int,
) -> Iterator[StepEntry]:
    """The entries that count and that can be true; what is wrong with the books is added to `notes`."""
    unnumbered: list[str] = []  # one note for all: a long run of an earlier version has thousands
    for step_range, world_size in step_ranges:
        steps_by_rank = dict.fromkeys(range(world_size), 0)
        for part, entries, error in read_books(storage, step_range):
            if error is not None:
                notes.append(f"{part.name} can't be read: {error}")
                continue
            steps_by_rank[part.rank] = steps_by_rank.get(part.rank, 0) + len(entries)
            reasons = [_impossible(entry, num_samples) for entry in entries]
            wrong = [(entry.step, reason) for entry, reason in zip(entries, reasons, strict=True) if reason]
            if wrong:
                step, reason = wrong[0]
                others = f", and {len(wrong) - 1} more entries are as wrong" if wrong[1:] else ""
                notes.append(f"{part.name}: the entry of step {step} {reason}{others}; they don't count")
            if any(entry.number is None for entry in entries):
                unnumbered.append(part.name)
            yield from (entry for entry, reason in zip(entries, reasons, strict=True) if not reason)
        wanted = step_range.until_step - step_range.after_step
        odd = {rank: steps for rank, steps in steps_by_rank.items() if steps != wanted}
        if odd:
            counts = ", ".join(f"{steps} of rank {rank}" for rank, steps in odd.items())
            notes.append(
                f"attempt {step_range.attempt} did the {wanted} steps {step_range.after_step + 1} to "
                f"{step_range.until_step} with {world_size} ranks, but the books have {counts}"
            )
    if unnumbered:
        notes.append(
            f"files of the books were written by an earlier version ({len(unnumbered)} of them, the first "
            f"{unnumbered[0]}): they say which samples were asked for, and not which were found"
        )


def _impossible(entry: StepEntry, num_samples: int) -> str | None:
    """What can't be true of an entry; None when it can."""
    # There is at least one step in an epoch.
    if not 0 <= entry.epoch < entry.step:
        return f"says that it was of epoch {entry.epoch}"
    if not 0 <= entry.start <= entry.stop <= num_samples:
        return f"says that it had samples {entry.start} to {entry.stop} of an epoch of {num_samples}"
    named = {"position": entry.index, "number": entry.index if entry.number is None else entry.number}
    if len(named["number"]) != len(entry.index):
        return f"names {len(entry.index)} positions and {len(named['number'])} numbers"
    for what, values in named.items():
        outside = values[(values < 0) | (values >= num_samples)]
        if len(outside):
            return f"names {what} {outside[0]} of a dataset of {num_samples} samples"
    return None


class _EpochBook:
    """Which samples of one epoch were named, in a byte a sample; of a part of a dataset, in two."""

    def __init__(self, epoch: int, num_samples: int, expected: npt.NDArray[np.bool_] | None) -> None:
        self._epoch = epoch
        self._seen = np.zeros(num_samples, dtype=np.bool_)
        self._expected = expected
        # Which numbers the samples of a part have, nobody knows beforehand, but where they lie.
        self._places = None if expected is None else np.zeros(num_samples, dtype=np.bool_)
        self._samples = 0
        self._repeated = 0
        self._covered = 0
        self._steps: set[int] = set()

    def add(self, entry: StepEntry) -> None:
        named = np.unique(entry.index if entry.number is None else entry.number)
        self._samples += len(entry.index)
        if self._places is not None:
            self._places[entry.index] = True
        self._repeated += len(entry.index) - len(named) + int(self._seen[named].sum())
        self._seen[named] = True
        if entry.step not in self._steps:
            self._steps.add(entry.step)
            self._covered += entry.stop - entry.start

    def close(self, *, is_last: bool) -> EpochAudit:
        wanted, found, stray = len(self._seen), int(self._seen.sum()), 0
        if self._expected is not None and self._places is not None:
            wanted, in_part = int(self._expected.sum()), int((self._places & self._expected).sum())
            # A sample outside of the part that was to be trained on is as wrong as one too often.
            stray = int(self._places.sum()) - in_part
            found = min(found, in_part)
        is_over = not is_last or self._covered >= wanted
        return EpochAudit(
            epoch=self._epoch,
            samples=self._samples,
            missing=wanted - found,
            repeated=self._repeated + stray,
            is_over=is_over,
            is_complete=is_over and found == wanted,
            unaccounted=max(0, self._covered - self._samples),
        )
