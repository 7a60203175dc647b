"""The books: what is written is read back, and what counts follows from the starts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evenload.ray_trainer.training.audit import covered_steps
from evenload.ray_trainer.training.books.ledger import (
    StepEntry,
    StepRange,
    lineage,
    read_parts,
    write_entries,
)
from evenload.ray_trainer.training.books.loss_curve import mean_by_epoch, read_curve, write_curve
from evenload.resume.attempts import AttemptStart, ResumedFrom, list_attempts, read_starts, write_start
from evenload.resume.storage import RunStorage

NO_CHECKPOINT = "the run has no valid checkpoint yet, so nothing that it did counts"


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path, "run")


def start_of(attempt: int, *, after: tuple[int, int] | None = None, world_size: int = 2) -> AttemptStart:
    origin = None
    if after is not None:
        origin = ResumedFrom(folder="f", attempt=after[0], step=after[1], epoch=0, samples_consumed=after[1])
    return AttemptStart(
        run_id="r", attempt=attempt, resumed_from=origin, world_size=world_size, started_at_s=1.0
    )


def entry_of(step: int, index: list[int], *, loss_sum: float = 1.0, count: float = 4) -> StepEntry:
    return StepEntry(step, 0, 4 * step - 4, 4 * step, count, loss_sum, np.array(index, dtype=np.int64))


def test_entries_come_back_as_they_were_written(storage: RunStorage) -> None:
    entries = [entry_of(3, [7, 5], loss_sum=0.1), entry_of(4, []), entry_of(5, [2**40])]

    write_entries(storage, entries, attempt=2, rank=1, world_size=2)
    (part,) = read_parts(storage, StepRange(2, 0, 9))

    assert part[:4] == (2, 1, 3, 5)
    for read, written in zip(part.read(storage), entries, strict=True):
        assert (read.step, read.epoch, read.start, read.stop, read.count, read.loss_sum) == (
            written.step,
            written.epoch,
            written.start,
            written.stop,
            written.count,
            written.loss_sum,
        )
        assert read.index.tolist() == written.index.tolist()


def test_only_files_that_overlap_a_segment_are_read(storage: RunStorage) -> None:
    for first in (1, 3, 5):
        entries = [entry_of(first, [first]), entry_of(first + 1, [first + 1])]
        write_entries(storage, entries, attempt=1, rank=0, world_size=1)

    parts = read_parts(storage, StepRange(1, 2, 5))

    assert [(part.first_step, part.last_step) for part in parts] == [(3, 4), (5, 6)]


def test_a_truncated_file_is_an_error_and_never_less_entries(storage: RunStorage) -> None:
    name = write_entries(storage, [entry_of(s, [s]) for s in range(1, 50)], attempt=1, rank=0, world_size=1)
    content = storage.read(name)
    (part,) = read_parts(storage, StepRange(1, 0, 99))

    for length in range(0, len(content), 7):
        storage.write(name, content[:length])
        with pytest.raises((OSError, ValueError)):
            part.read(storage)


def test_starts_are_listed_and_unreadable_ones_with_books_are_named(storage: RunStorage) -> None:
    write_start(storage, start_of(1))
    write_start(storage, start_of(2, after=(1, 10)))
    storage.write("ledger/attempt-000003/start.json", b"{")  # killed here, it has done no step
    assert covered_steps(storage, "r")[1] == [NO_CHECKPOINT]
    write_entries(storage, [entry_of(11, [1])], attempt=3, rank=0, world_size=1)

    starts, _ = read_starts(storage)
    notes = covered_steps(storage, "r")[1]

    assert list_attempts(storage) == [1, 2, 3]
    assert starts[2].resumed_from is not None
    assert starts[2].resumed_from.step == 10
    assert notes[1:] == [NO_CHECKPOINT]
    assert "attempt-000003" in notes[0]


def test_a_lineage_goes_back_through_the_checkpoints_that_were_resumed_from() -> None:
    starts = {1: start_of(1), 2: start_of(2, after=(1, 20)), 3: start_of(3, after=(2, 25))}

    assert lineage(starts, attempt=3, step=40) == [
        StepRange(1, 0, 20),
        StepRange(2, 20, 25),
        StepRange(3, 25, 40),
    ]


def test_what_a_failed_attempt_did_past_its_last_checkpoint_does_not_count() -> None:
    # Attempt 2 fell back from a bad checkpoint to step 10, and died before a checkpoint of its own.
    starts = {1: start_of(1), 2: start_of(2, after=(1, 10)), 3: start_of(3, after=(1, 20))}

    assert lineage(starts, attempt=3, step=30) == [StepRange(1, 0, 20), StepRange(3, 20, 30)]


def test_a_run_that_began_anew_forgets_what_was_before() -> None:
    starts = {1: start_of(1), 2: start_of(2)}

    assert lineage(starts, attempt=2, step=30) == [StepRange(2, 0, 30)]


def test_a_lineage_with_a_missing_or_impossible_start_is_refused() -> None:
    with pytest.raises(ValueError, match="attempt 2 has no start record"):
        lineage({3: start_of(3, after=(2, 5))}, attempt=3, step=30)
    with pytest.raises(ValueError, match="attempt 3 says it resumed from"):
        lineage({3: start_of(3, after=(3, 5))}, attempt=3, step=30)
    with pytest.raises(ValueError, match="is followed from step 4"):
        lineage({1: start_of(1), 2: start_of(2, after=(1, 5))}, attempt=2, step=4)


def test_the_loss_of_a_step_is_over_all_ranks_and_an_epochs_over_its_steps(storage: RunStorage) -> None:
    write_start(storage, start_of(1))
    for rank, losses in enumerate(([2.0, 3.0], [4.0, 5.0])):
        entries = [entry_of(step, [step], loss_sum=loss) for step, loss in enumerate(losses, 1)]
        write_entries(storage, entries, attempt=1, rank=rank, world_size=2)

    curve = read_curve(storage, [StepRange(1, 0, 2)])

    assert [(point.step, point.loss) for point in curve] == [(1, 1.5), (2, 2.0)]
    assert mean_by_epoch(curve) == [1.75]
    write_curve(storage, curve)
    lines = storage.read("loss.jsonl").decode().splitlines()
    assert json.loads(lines[1]) == {"step": 2, "epoch": 0, "samples": 8, "loss": 2.0}


def test_a_loss_that_is_no_number_is_null_in_the_curve(storage: RunStorage) -> None:
    write_entries(storage, [entry_of(1, [1], loss_sum=float("nan"))], attempt=1, rank=0, world_size=1)

    curve = read_curve(storage, [StepRange(1, 0, 1)])
    write_curve(storage, curve)

    assert json.loads(storage.read("loss.jsonl"))["loss"] is None
