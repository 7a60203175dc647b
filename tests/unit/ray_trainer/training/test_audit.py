"""The audit: exact runs are exact, and nothing can be taken from or added to the books unseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evenload.ray_trainer.training.audit import AuditReport, audit_run
from evenload.ray_trainer.training.books.ledger import StepEntry, StepRange, read_parts, write_entries
from evenload.ray_trainer.training.run_record import FinishedRecord, RunRecord, write_finished
from evenload.resume.attempts import AttemptStart, ResumedFrom, attempt_folder, write_start
from evenload.resume.checkpoint import CheckpointIndex, CheckpointStore, checkpoint_name
from evenload.resume.storage import RunStorage

NUM_SAMPLES, BATCH = 20, 4  # 5 steps an epoch
RECORD = RunRecord(
    run_id="r",
    dataset="digits@1",
    dataset_fingerprint="d",
    num_samples=NUM_SAMPLES,
    plan_fingerprint="p",
    plan_facts={},
    created_at_s=1.0,
)


class Books:
    """Writes what a run of `world_size` ranks would."""

    def __init__(self, storage: RunStorage) -> None:
        self.storage = storage

    def start(self, attempt: int, *, after: tuple[int, int] | None = None, world_size: int = 2) -> None:
        origin = None
        if after:
            origin = ResumedFrom(folder="f", attempt=after[0], step=after[1], epoch=0, samples_consumed=0)
        start = AttemptStart(
            run_id="r", attempt=attempt, resumed_from=origin, world_size=world_size, started_at_s=1.0
        )
        write_start(self.storage, start)

    def steps(self, attempt: int, first: int, last: int, *, world_size: int = 2) -> None:
        for rank in range(world_size):
            entries = [entry_of(step, rank, world_size) for step in range(first, last + 1)]
            write_entries(self.storage, entries, attempt=attempt, rank=rank, world_size=world_size)

    def checkpoint(self, attempt: int, step: int) -> None:
        index = CheckpointIndex(
            run_id="r",
            attempt=attempt,
            step=step,
            epoch=0,
            samples_consumed=0,
            position={},
            identity={"dataset": "digits@1"},
            world_size=2,
            torch_threads=1,
            files={},
            created_at_s=1.0,
        )
        folder = f"{attempt_folder(attempt)}/{checkpoint_name(attempt, step)}"
        CheckpointStore(self.storage, "r").finish(folder, index)

    def audit(self) -> AuditReport:
        return audit_run(self.storage, RECORD, num_samples=NUM_SAMPLES)


def entry_of(step: int, rank: int, world_size: int) -> StepEntry:
    epoch, place = divmod((step - 1) * BATCH, NUM_SAMPLES)
    order = np.random.default_rng(epoch).permutation(NUM_SAMPLES)
    index = order[place : place + BATCH][rank::world_size].astype(np.int64)
    return StepEntry(step, epoch, place, place + BATCH, BATCH, 1.0, index)


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(RunStorage(tmp_path, "run"))


@pytest.fixture
def exact(books: Books) -> Books:
    """Two epochs in three attempts: killed after step 4, then after step 8, each time some steps again."""
    books.start(1)
    books.steps(1, 1, 2)
    books.checkpoint(1, 2)
    books.steps(1, 3, 4)  # written, but the checkpoint was never finished
    books.start(2, after=(1, 2), world_size=1)
    books.steps(2, 3, 6, world_size=1)
    books.checkpoint(2, 6)
    books.start(3, after=(2, 6), world_size=3)
    books.steps(3, 7, 10, world_size=3)
    books.checkpoint(3, 10)
    return books


def test_a_run_through_crashes_and_other_world_sizes_is_exact(exact: Books) -> None:
    report = exact.audit()

    assert report.notes == ()
    assert [(e.epoch, e.samples, e.missing, e.repeated, e.is_complete) for e in report.epochs] == [
        (0, NUM_SAMPLES, 0, 0, True),
        (1, NUM_SAMPLES, 0, 0, True),
    ]
    assert report.exactly_once


def test_an_unfinished_epoch_is_never_called_exact(books: Books) -> None:
    books.start(1)
    books.steps(1, 1, 8)
    books.checkpoint(1, 8)

    report = books.audit()

    assert [(e.is_complete, e.missing, e.is_exact) for e in report.epochs] == [
        (True, 0, True),
        (False, 8, False),
    ]
    assert not report.exactly_once


def test_without_a_valid_checkpoint_nothing_counts(books: Books) -> None:
    books.start(1)
    books.steps(1, 1, 5)

    report = books.audit()

    assert report.epochs == ()
    assert not report.exactly_once
    assert "no valid checkpoint" in report.notes[0]


def test_a_finished_run_counts_though_its_checkpoints_were_deleted(exact: Books) -> None:
    write_finished(exact.storage, FinishedRecord(epochs=2, attempt=3, step=10, result={}))
    for folder in CheckpointStore(exact.storage, "r").folders():
        exact.storage.delete_folder(folder.name)

    assert exact.audit().exactly_once


def counted_parts(books: Books) -> list[str]:
    step_ranges = [StepRange(1, 0, 2), StepRange(2, 2, 6), StepRange(3, 6, 10)]
    return [part.name for step_range in step_ranges for part in read_parts(books.storage, step_range)]


def test_removing_any_file_of_the_books_makes_the_audit_fail(exact: Books) -> None:
    names = counted_parts(exact)
    assert len(names) == 6
    for name in names:
        content = exact.storage.read(name)
        exact.storage.delete_file(name)
        report = exact.audit()
        assert not report.exactly_once
        assert sum(epoch.missing for epoch in report.epochs) > 0
        exact.storage.write(name, content)
    assert exact.audit().exactly_once


@pytest.mark.parametrize("change", ["remove", "repeat", "drop a sample", "repeat a sample", "swap a sample"])
def test_changing_any_entry_of_the_books_makes_the_audit_fail(exact: Books, change: str) -> None:
    for step_range in (StepRange(1, 0, 2), StepRange(2, 2, 6), StepRange(3, 6, 10)):
        for part in read_parts(exact.storage, step_range):
            content = exact.storage.read(part.name)
            entries = part.read(exact.storage)
            for at in range(len(entries)):
                changed = changed_entries(entries, at, change)
                exact.storage.delete_file(part.name)
                rewrite(exact.storage, part.name, changed)
                report = exact.audit()
                assert not report.exactly_once, (part.name, at, change)
                wrong = sum(epoch.missing + epoch.repeated for epoch in report.epochs)
                assert wrong > 0, (part.name, at, change)
            exact.storage.write(part.name, content)
    assert exact.audit().exactly_once


def changed_entries(entries: list[StepEntry], at: int, change: str) -> list[StepEntry]:
    entry = entries[at]
    if change == "remove":
        return entries[:at] + entries[at + 1 :]
    if change == "repeat":
        return [*entries[: at + 1], *entries[at:]]
    index = {
        "drop a sample": entry.index[1:],
        "repeat a sample": np.append(entry.index, entry.index[0]),
        "swap a sample": np.append(entry.index[1:], (entry.index[0] + 1) % NUM_SAMPLES),
    }[change]
    changed = StepEntry(entry.step, entry.epoch, entry.start, entry.stop, entry.count, entry.loss_sum, index)
    return [*entries[:at], changed, *entries[at + 1 :]]


def rewrite(storage: RunStorage, name: str, entries: list[StepEntry]) -> None:
    """Put entries under the name that the file had, whatever steps they are of."""
    if not entries:
        return
    scratch = RunStorage(f"{storage.root}-scratch", "run")
    written = write_entries(scratch, entries, attempt=1, rank=0, world_size=1)
    storage.write(name, scratch.read(written))


def test_an_unreadable_file_is_named(exact: Books) -> None:
    name = counted_parts(exact)[0]
    exact.storage.write(name, exact.storage.read(name)[:-20])

    report = exact.audit()

    assert not report.exactly_once
    assert any(name in note for note in report.notes)


def test_a_lost_start_record_makes_the_audit_fail(exact: Books) -> None:
    exact.storage.delete_file("ledger/attempt-000002/start.json")

    report = exact.audit()

    assert not report.exactly_once
    assert any("attempt 2 has no start record" in note or "attempt-000002" in note for note in report.notes)


def test_a_run_on_a_part_of_its_dataset_is_compared_with_that_part(books: Books) -> None:
    books.start(1)
    books.steps(1, 1, 4)
    books.checkpoint(1, 4)
    expected = np.zeros(NUM_SAMPLES, dtype=np.bool_)
    for rank in range(2):
        for step in range(1, 5):
            expected[entry_of(step, rank, 2).index] = True

    assert audit_run(books.storage, RECORD, num_samples=NUM_SAMPLES, expected=expected).exactly_once
    expected[int(np.flatnonzero(expected)[0])] = False
    assert not audit_run(books.storage, RECORD, num_samples=NUM_SAMPLES, expected=expected).exactly_once


NOT_THERE = [NUM_SAMPLES, -1, 2**62, -(2**62)]


@pytest.mark.parametrize("field", ["index", "number"])
@pytest.mark.parametrize("wrong", NOT_THERE)
def test_a_damaged_entry_is_a_finding_and_its_samples_are_missing(
    exact: Books, field: str, wrong: int
) -> None:
    name = counted_parts(exact)[0]
    entries = read_parts(exact.storage, StepRange(1, 0, 2))[0].read(exact.storage)
    damaged = replace(entries[0], **{field: np.array([wrong, 3], dtype=np.int64)})
    exact.storage.delete_file(name)
    rewrite(exact.storage, name, [damaged, *entries[1:]])

    report = exact.audit()

    assert not report.exactly_once
    assert any(f"{name}: the entry of step 1" in note and str(wrong) in note for note in report.notes)
    assert report.epochs[0].missing == len(entries[0].index)


@pytest.mark.parametrize(
    "wrong",
    [{"epoch": 2**31 - 1}, {"epoch": -1}, {"start": -5}, {"stop": NUM_SAMPLES + 1}, {"start": 4, "stop": 0}],
)
def test_an_entry_that_names_an_impossible_place_is_a_finding(exact: Books, wrong: dict[str, int]) -> None:
    name = counted_parts(exact)[0]
    entries = read_parts(exact.storage, StepRange(1, 0, 2))[0].read(exact.storage)
    exact.storage.delete_file(name)
    rewrite(exact.storage, name, [replace(entries[0], **wrong), *entries[1:]])

    report = exact.audit()

    assert not report.exactly_once
    assert any(f"{name}: the entry of step 1" in note for note in report.notes)


def test_an_epoch_with_samples_missing_is_over_and_not_complete(exact: Books) -> None:
    exact.storage.delete_file(counted_parts(exact)[0])

    epoch = exact.audit().epochs[0]

    assert (epoch.is_over, epoch.is_complete, epoch.is_exact) == (True, False, False)
    assert epoch.missing > 0


def test_books_without_numbers_are_not_taken_for_proof(exact: Books) -> None:
    names = counted_parts(exact)
    for name in names[:-1]:
        table = pa.ipc.open_file(pa.py_buffer(exact.storage.read(name))).read_all().drop_columns("number")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        exact.storage.delete_file(name)
        exact.storage.write(name, sink.getvalue().to_pybytes())

    report = exact.audit()

    assert [epoch.is_exact for epoch in report.epochs] == [True, True]
    assert not report.exactly_once
    (note,) = report.notes
    assert f"written by an earlier version ({len(names) - 1} of them, the first {names[0]})" in note


def test_flipped_bytes_in_the_books_are_findings_and_no_other_errors(exact: Books) -> None:
    name = counted_parts(exact)[0]
    content = exact.storage.read(name)
    random = np.random.default_rng(5)
    for _ in range(150):
        at = int(random.integers(len(content)))
        damaged = bytearray(content)
        damaged[at] ^= int(random.integers(1, 256))
        exact.storage.delete_file(name)
        exact.storage.write(name, bytes(damaged))
        report = exact.audit()  # a byte of padding, or of a loss, may have no consequence
        assert report.exactly_once == (not report.notes and all(e.is_exact for e in report.epochs))
