"""A rank's books as files: one for each checkpoint, joined to larger ones so that they stay few.

A file is named by the steps that it holds. `JOINED` files of one size are joined to one, those of that size
again, and so on: N checkpoints leave about `JOINED` times log N files of a rank, each entry is written log N
times, and a file that has become large is left alone.

A join is safe wherever it is cut off: the larger file is written whole before the first of the smaller ones
is deleted. So a reader that finds both takes the larger one, and if that can't be read, the smaller ones,
which are all still there then. Who lists the files just before some are joined looks again. Where nothing may
be deleted, files are joined all the same, so that readers have few to open; the smaller ones stay, unread.

Invariants, checked in tests/unit/ray_trainer/training/books/test_part_files.py:
1. Killed at any operation of a join, or in the middle of a write, a run's audit stays exact.
2. The number of files that are read grows with the logarithm of the number of checkpoints; so does the number
   of all files, where they may be deleted.

Read next: ledger.py (what is in them), running_attempt.py (who has them written, and when).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from evenload.ray_trainer.training.books.ledger import (
    LedgerPart,
    StepEntry,
    StepRange,
    join_parts,
    read_parts,
    write_entries,
)
from evenload.resume.errors import RunError
from evenload.resume.storage import RunStorage

__all__ = ["JOINED", "Page", "RankFiles", "read_books"]

JOINED: Final = 8
_LARGE_BYTES: Final = 32 << 20  # joining is done in memory, beside a training
_LISTINGS_MAX: Final = 10

logger = logging.getLogger(__name__)


class RankFiles:
    """The files that one rank writes in one attempt. For one thread."""

    def __init__(self, storage: RunStorage, *, attempt: int, rank: int, world_size: int) -> None:
        self._storage = storage
        self._attempt = attempt
        self._rank = rank
        self._world_size = world_size
        self._levels: list[list[LedgerPart]] = [[]]
        self._unwritten: list[Sequence[StepEntry]] = []
        self._leftover: list[LedgerPart] = []
        self._is_leftover_told = False

    def write(self, entries: Sequence[StepEntry]) -> None:
        """Write the entries of consecutive steps, if there are any, as one file.

        What can't be written is kept, and written first the next time.

        Raises:
            OSError: It can't be written.
        """
        if entries:
            self._unwritten.append(entries)
        while self._unwritten:
            # One that fails is tried again under the same name, so what is left of it is replaced.
            self._write(self._unwritten[0])
            del self._unwritten[0]

    def join(self) -> None:
        """Make one file of each `JOINED` of a size. What fails is told in the log and done the next time."""
        try:
            for level, parts in enumerate(self._levels):
                if len(parts) >= JOINED:
                    self._join(level)
        except (OSError, RunError, pa.ArrowException) as error:
            logger.warning("books of %s stay in more files than need be: %s", self._storage.place(), error)
        self._delete_leftover()

    def _write(self, entries: Sequence[StepEntry]) -> None:
        place = {"attempt": self._attempt, "rank": self._rank, "world_size": self._world_size}
        name = write_entries(self._storage, entries, **place)
        self._levels[0].append(LedgerPart(self._attempt, self._rank, entries[0].step, entries[-1].step, name))

    def _join(self, level: int) -> None:
        parts = self._levels[level][:JOINED]
        joined, size_bytes = join_parts(self._storage, parts)
        if level + 1 == len(self._levels):
            self._levels.append([])
        if size_bytes < _LARGE_BYTES:
            self._levels[level + 1].append(joined)
        del self._levels[level][:JOINED]
        self._leftover += parts

    def _delete_leftover(self) -> None:
        """Delete what was joined; the first that can't be deleted ends it until the next time."""
        try:
            while self._leftover:
                # An earlier try may have deleted it, and only its answer was lost.
                with contextlib.suppress(FileNotFoundError):
                    self._storage.delete_file(self._leftover[0].name)
                del self._leftover[0]
        except OSError as error:
            if not self._is_leftover_told:  # it may be so at every checkpoint, as nothing may be deleted here
                self._is_leftover_told = True
                logger.warning(
                    "books of %s stay in more files than need be: those joined can't be deleted: %s",
                    self._storage.place(),
                    error,
                )


class Page(NamedTuple):
    """What there is of one file: its entries, or why it can't be read.

    Attributes:
        entries: Those of the steps asked for.
        error: None: it was read.
    """

    part: LedgerPart
    entries: list[StepEntry]
    error: Exception | None = None


def read_books(storage: RunStorage, steps: StepRange, *, with_index: bool = True) -> Iterator[Page]:
    """The entries of an attempt's steps, by rank, then by step, each once, also while files are joined.

    Args:
        with_index: False leaves out the samples, which are nearly all of a file.

    Raises:
        StorageUnreadableError: The storage does not say.
    """
    parts = read_parts(storage, steps)
    for rank in sorted({part.rank for part in parts}):
        yield from _read_rank(storage, steps, rank, parts, with_index=with_index)


def _read_rank(
    storage: RunStorage, steps: StepRange, rank: int, parts: list[LedgerPart], *, with_index: bool
) -> Iterator[Page]:
    done: list[LedgerPart] = []
    failed: dict[LedgerPart, Exception] = {}
    queue, at, listings = _in_order(parts, rank), 0, 1
    reach = known = 0  # steps up to `reach` were read, up to `known` before the files were listed again
    while at < len(queue):
        part = queue[at]
        at += 1
        if part.last_step <= reach or part in failed:
            continue  # what a larger one was made of
        try:
            entries = part.read(storage, with_index=with_index)
        except FileNotFoundError as error:
            if listings == _LISTINGS_MAX:
                failed[part] = error
                continue
            # Joined with others since it was listed: there is a larger file, also of what was read already.
            queue, at, listings, known = _in_order(read_parts(storage, steps), rank), 0, listings + 1, reach
            continue
        except (OSError, pa.ArrowException, ValueError) as error:  # the last: a name that is no text
            failed[part] = error
            continue
        done.append(part)
        reach = max(reach, part.last_step)
        yield Page(part, [entry for entry in entries if steps.covers(entry.step) and entry.step > known])
    for part, reason in failed.items():
        # A join that was cut off leaves such a file, and all that it was made of.
        if not _is_covered(part, done):
            yield Page(part, [], reason)


def _in_order(parts: list[LedgerPart], rank: int) -> list[LedgerPart]:
    """A rank's files by their steps, a larger one before what it was made of."""
    own = [part for part in parts if part.rank == rank]
    return sorted(own, key=lambda part: (part.first_step, -part.last_step))


def _is_covered(part: LedgerPart, done: list[LedgerPart]) -> bool:
    """Whether smaller files hold every step of a larger one."""
    step = part.first_step
    for other in sorted(done, key=lambda other: other.first_step):
        if other.first_step == step and other.last_step <= part.last_step:
            step = other.last_step + 1
    return step > part.last_step
