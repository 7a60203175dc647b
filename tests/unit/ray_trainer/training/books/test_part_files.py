"""Books in few files: joins that are cut off anywhere, read while they happen, and the audit exact."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from evenload.ray_trainer.training.audit import audit_run
from evenload.ray_trainer.training.books.ledger import LedgerPart, StepEntry, StepRange, read_parts
from evenload.ray_trainer.training.books.loss_curve import read_curve
from evenload.ray_trainer.training.books.part_files import JOINED, RankFiles, read_books
from evenload.ray_trainer.training.run_record import RunRecord
from evenload.ray_trainer.training.testing import interposed_storage
from evenload.resume.attempts import AttemptStart, attempt_folder, write_start
from evenload.resume.checkpoint import CheckpointIndex, CheckpointStore, checkpoint_name
from evenload.resume.storage import RunStorage

WORLD_SIZE, BATCH = 2, 4
RECORD = RunRecord(
    run_id="r",
    dataset="digits@1",
    dataset_fingerprint="d",
    num_samples=1,
    plan_fingerprint="p",
    plan_facts={},
    created_at_s=1.0,
)


class KilledError(BaseException):
    """Of the process, at a storage operation."""


def entry_of(step: int, rank: int) -> StepEntry:
    start = (step - 1) * BATCH
    index = np.arange(start, start + BATCH)[rank::WORLD_SIZE]
    return StepEntry(step, 0, start, start + BATCH, BATCH, float(step), index)


def train(folder: Path, num_checkpoints: int) -> None:
    """What the writers of two ranks do, a checkpoint each step."""
    storage = RunStorage(folder, "run", patience_s=0)
    start = AttemptStart(run_id="r", attempt=1, resumed_from=None, world_size=WORLD_SIZE, started_at_s=1.0)
    write_start(storage, start)
    ranks = [RankFiles(storage, attempt=1, rank=rank, world_size=WORLD_SIZE) for rank in range(WORLD_SIZE)]
    for step in range(1, num_checkpoints + 1):
        for rank, files in enumerate(ranks):
            files.write([entry_of(step, rank)])
        finish(storage, step)
        for files in ranks:
            files.join()


def finish(storage: RunStorage, step: int) -> None:
    index = CheckpointIndex(
        run_id="r",
        attempt=1,
        step=step,
        epoch=0,
        samples_consumed=step * BATCH,
        position={},
        identity={"dataset": "digits@1"},
        world_size=WORLD_SIZE,
        torch_threads=1,
        files={},
        created_at_s=1.0,
    )
    store = CheckpointStore(storage, "r")
    store.finish(f"{attempt_folder(1)}/{checkpoint_name(1, step)}", index)
    store.delete_old(keep=2)


def audit_is_exact(folder: Path) -> bool:
    """Of the steps up to the newest checkpoint, as if they were the epoch."""
    storage = RunStorage(folder, "run")
    found = CheckpointStore(storage, "r").newest_valid().checkpoint
    if found is None:
        return True
    num_steps = found.index.step
    report = audit_run(storage, RECORD, num_samples=num_steps * BATCH)
    curve = read_curve(storage, [StepRange(1, 0, num_steps)])
    losses = [(step, step * WORLD_SIZE / BATCH) for step in range(1, num_steps + 1)]
    is_whole = [(point.step, point.loss) for point in curve] == losses
    # Entries of before numbers were kept are noted; nothing else is.
    noted = [note for note in report.notes if "earlier version" not in note]
    return is_whole and not noted and all(epoch.is_exact for epoch in report.epochs)


@contextmanager
def killed_at(number: int, tried: list[str]) -> Iterator[None]:
    def before(operation: str, path: str) -> None:
        tried.append(f"{operation} {path}")
        if len(tried) > number:
            raise KilledError

    with interposed_storage(lambda: before):
        yield


def test_files_stay_few_and_every_entry_comes_back_once(tmp_path: Path) -> None:
    num_checkpoints = JOINED * JOINED * 2 + 3
    train(tmp_path, num_checkpoints)
    storage = RunStorage(tmp_path, "run")

    parts = read_parts(storage, StepRange.all_of(1))
    levels = math.ceil(math.log(num_checkpoints, JOINED))
    assert len(parts) <= WORLD_SIZE * levels * JOINED
    assert len(parts) == WORLD_SIZE * (2 + 3)
    pages = list(read_books(storage, StepRange(1, 5, num_checkpoints - 2)))
    assert [(page.part.rank, entry.step) for page in pages for entry in page.entries] == [
        (rank, step) for rank in range(WORLD_SIZE) for step in range(6, num_checkpoints - 1)
    ]
    assert audit_is_exact(tmp_path)


def test_killed_at_any_operation_of_a_join_the_audit_is_exact(tmp_path: Path) -> None:
    counted: list[str] = []
    with killed_at(10**6, counted):
        train(tmp_path / "counted", JOINED + 1)
    first = next(at for at, what in enumerate(counted) if f"{1:012d}-{JOINED:012d}" in what) - JOINED - 2
    assert any(what.startswith("delete") and "rank-" in what for what in counted)
    for number in range(first, len(counted)):
        folder = tmp_path / str(number)
        with killed_at(number, []), pytest.raises(KilledError):
            train(folder, JOINED + 1)
        assert audit_is_exact(folder), counted[number]


def test_a_join_cut_off_in_the_middle_of_its_write_is_passed_over(tmp_path: Path) -> None:
    train(tmp_path, JOINED)
    storage = RunStorage(tmp_path, "run")
    (joined,) = (part for part in read_parts(storage, StepRange.all_of(1)) if part.rank == 0)
    content = storage.read(joined.name)
    for step in range(1, JOINED + 1):
        RankFiles(storage, attempt=1, rank=0, world_size=WORLD_SIZE).write([entry_of(step, 0)])
    for length in range(0, len(content), 97):
        storage.write(joined.name, content[:length])
        assert audit_is_exact(tmp_path)

    smaller = [
        part for part in read_parts(storage, StepRange.all_of(1)) if part.last_step == 3 and not part.rank
    ]
    storage.delete_file(smaller[0].name)
    assert not audit_is_exact(tmp_path)


def test_files_that_are_joined_while_an_audit_reads_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = RunStorage(tmp_path, "run")
    files = RankFiles(storage, attempt=1, rank=0, world_size=1)
    for step in range(1, JOINED + 1):
        files.write([entry_of(step, 0)])
    real = LedgerPart.read

    def read(part: LedgerPart, *arguments: RunStorage, with_index: bool = True) -> list[StepEntry]:
        if part.first_step == 3:
            files.join()
        return real(part, *arguments, with_index=with_index)

    monkeypatch.setattr(LedgerPart, "read", read)
    pages = list(read_books(storage, StepRange.all_of(1)))

    assert [page.error for page in pages] == [None] * len(pages)
    steps = [entry.step for page in pages for entry in page.entries]
    assert sorted(set(steps)) == list(range(1, JOINED + 1))
    assert len(steps) == JOINED, "each step once"


def test_where_nothing_may_be_deleted_files_are_joined_all_the_same_and_nothing_counts_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_allowed = False

    def before(kind: str, path: str) -> None:
        if kind == "delete" and "rank-" in path and not is_allowed:
            raise PermissionError("AccessDenied")

    num_checkpoints = JOINED * JOINED
    with interposed_storage(lambda: before), caplog.at_level(logging.WARNING):
        train(tmp_path, num_checkpoints)
        storage = RunStorage(tmp_path, "run")
        assert audit_is_exact(tmp_path)
        names = {(p.rank, p.first_step, p.last_step) for p in read_parts(storage, StepRange.all_of(1))}
        assert {(rank, 1, num_checkpoints) for rank in range(WORLD_SIZE)} <= names
        told = [line for line in caplog.messages if "AccessDenied" in line and "books" in line]
        assert len(told) == WORLD_SIZE  # once for each rank
        # Whichever of the larger files is damaged, those that it was made of are still there.
        for name in [p.name for p in read_parts(storage, StepRange.all_of(1)) if p.first_step != p.last_step]:
            content = storage.read(name)
            storage.write(name, content[:100])
            assert audit_is_exact(tmp_path), name
            storage.write(name, content)

        files = RankFiles(storage, attempt=1, rank=0, world_size=1)
        for step in range(101, 101 + JOINED):
            files.write([entry_of(step, 0)])
        files.join()
        assert len(read_parts(storage, StepRange(1, 100, 200))) == JOINED + 1
        is_allowed = True
        files.join()
        assert len(read_parts(storage, StepRange(1, 100, 200))) == 1


@pytest.mark.parametrize("operation", ["read", "write", "delete"])
def test_a_join_that_fails_is_done_the_next_time(
    tmp_path: Path, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails: list[Callable[[], bool]] = [lambda: False]

    def before(kind: str, path: str) -> None:
        if kind == operation and "rank-" in path and fails[0]():
            raise OSError("storage is away for a moment")

    plain = RunStorage(tmp_path, "run")
    with interposed_storage(lambda: before), caplog.at_level(logging.WARNING):
        storage = RunStorage(tmp_path, "run", patience_s=0)
        files = RankFiles(storage, attempt=1, rank=0, world_size=1)
        for step in range(1, JOINED + 1):
            files.write([entry_of(step, 0)])
        fails[0] = lambda: True
        files.join()
        assert "stay in more files than need be" in caplog.text
        pages = list(read_books(plain, StepRange.all_of(1)))
        assert [entry.step for page in pages for entry in page.entries] == list(range(1, JOINED + 1))
        fails[0] = lambda: False
        files.join()

    assert len(read_parts(RunStorage(tmp_path, "run"), StepRange.all_of(1))) == 1
