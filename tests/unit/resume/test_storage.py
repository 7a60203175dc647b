"""The storage: only what isn't there is absent, every other error is tried again and then told."""

from __future__ import annotations

import errno
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stamina

from evenload.ray_trainer.recipes.preparation import find_preparation
from evenload.ray_trainer.training.run_record import RunRecord, create_run, new_run, read_finished, read_run
from evenload.ray_trainer.training.testing import interposed_storage
from evenload.resume.attempts import AttemptStart, read_starts, write_start
from evenload.resume.checkpoint import INDEX_NAME, CheckpointStore
from evenload.resume.errors import (
    RunDamagedError,
    RunError,
    StorageUnreadableError,
    StorageUnwritableError,
    UnknownRunError,
)
from evenload.resume.fence import claim_run
from evenload.resume.storage import RunStorage

TROUBLES = [OSError(errno.EIO, "I/O error"), PermissionError(errno.EACCES, "denied"), OSError("SlowDown")]
TRIES = 3


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=TRIES):
        yield


@contextmanager
def failing(operation: str, error: OSError, *, times: int) -> Iterator[list[str]]:
    """The first `times` operations of that kind fail; gives the paths of those that were tried."""
    tried: list[str] = []

    def before(kind: str, path: str) -> None:
        if kind == operation:
            tried.append(path)
            if len(tried) <= times:
                raise error

    with interposed_storage(lambda: before):
        yield tried


READS: dict[str, tuple[str, Callable[[RunStorage], Any]]] = {
    "read": ("read", lambda storage: storage.read("file")),
    "checksum": ("read", lambda storage: storage.checksum("file")),
    "exists": ("stat", lambda storage: storage.exists("file")),
    "size": ("stat", lambda storage: storage.size_of("file")),
    "list": ("list", lambda storage: storage.list_names()),
    "other runs": ("list", lambda storage: storage.other_runs("file")),
}


@pytest.mark.parametrize("error", TROUBLES, ids=str)
@pytest.mark.parametrize("read", READS)
def test_an_error_while_reading_is_tried_again_and_then_told_but_never_taken_for_absence(
    tmp_path: Path, read: str, error: OSError
) -> None:
    operation, ask = READS[read]
    plain = RunStorage(tmp_path, "run")
    plain.write("file", b"content")
    expected = ask(plain)

    with failing(operation, error, times=TRIES - 1):
        assert ask(RunStorage(tmp_path, "run")) == expected
    with failing(operation, error, times=10**6) as tried:
        with pytest.raises(StorageUnreadableError, match=r"can't be read: .*Nothing was begun anew"):
            ask(RunStorage(tmp_path, "run"))
        assert len(tried) == TRIES
        with pytest.raises(StorageUnreadableError):
            ask(RunStorage(tmp_path, "run", patience_s=0))
        assert len(tried) == TRIES + 1


def test_what_is_not_there_is_absent_at_once(tmp_path: Path) -> None:
    with failing("read", FileNotFoundError("gone"), times=10**6) as tried:
        storage = RunStorage(tmp_path, "run")
        with pytest.raises(FileNotFoundError):
            storage.read("file")
        assert len(tried) == 1
    storage = RunStorage(tmp_path, "run")
    assert storage.list_names("nowhere") == []
    assert storage.size_of("nothing") is None
    with pytest.raises(FileNotFoundError), storage.local_file("nothing"):
        pass


def test_a_file_of_another_machine_is_read_once_into_a_temporary_one(tmp_path: Path) -> None:
    content = os.urandom(10_000_000)
    RunStorage(tmp_path, "run").write("file", content)

    with failing("read", TROUBLES[0], times=1) as tried:
        storage = RunStorage(tmp_path, "run")
        with storage.local_file("file") as (path, record):
            assert path.read_bytes() == content
            assert record == RunStorage(tmp_path, "run").checksum("file")
            assert len(tried) == 3  # one that failed, one that is held, one of the line above
        assert not path.exists()


@pytest.mark.parametrize("error", TROUBLES, ids=str)
def test_an_error_while_writing_is_tried_again_and_then_told(tmp_path: Path, error: OSError) -> None:
    with failing("write", error, times=TRIES - 1):
        RunStorage(tmp_path, "run").write("file", b"content")
    assert RunStorage(tmp_path, "run").read("file") == b"content"
    with failing("write", error, times=10**6):
        with pytest.raises(StorageUnwritableError, match="can't be written"):
            RunStorage(tmp_path, "run").write("file", b"other")
        with pytest.raises(type(error)):
            RunStorage(tmp_path, "run").write_once("file", b"other")
    assert RunStorage(tmp_path, "run").read("file") == b"content"


QUESTIONS: dict[str, Callable[[RunStorage], Any]] = {
    "run": read_run,
    "finished": read_finished,
    "preparation": find_preparation,
    "starts": read_starts,
    "create": lambda storage: create_run(storage, record_of("run")),
    "checkpoints": lambda storage: CheckpointStore(storage, None).newest_valid(),
    "listed": lambda storage: CheckpointStore(storage, None).newest_listed(),
    "old": lambda storage: CheckpointStore(storage, None).delete_old(keep=2),
    "index": lambda storage: CheckpointStore(storage, None).read_index("attempt-000001/any"),
    "claim": claim_run,
}


@pytest.mark.parametrize("error", TROUBLES, ids=str)
@pytest.mark.parametrize("question", QUESTIONS)
def test_whatever_is_asked_of_a_storage_that_fails_the_answer_is_a_sentence(
    tmp_path: Path, question: str, error: OSError
) -> None:
    create_run(RunStorage(tmp_path, "run"), record_of("run"))
    before = tree(tmp_path)

    def refuse(operation: str, _: str) -> None:
        if operation in ("read", "list", "stat"):
            raise error

    with interposed_storage(lambda: refuse), pytest.raises(StorageUnreadableError) as caught:
        QUESTIONS[question](RunStorage(tmp_path, "run"))

    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == before


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def record_of(run: str, *, seed: int = 1) -> RunRecord:
    return new_run(
        run,
        dataset="digits@1",
        dataset_fingerprint="d",
        num_samples=10,
        plan_fingerprint=f"p{seed}",
        plan_facts={"seed": seed},
    )


def test_a_runs_id_is_the_same_whoever_begins_it_and_another_for_another_run(tmp_path: Path) -> None:
    one, other = record_of("run"), record_of("run")
    assert one.run_id == other.run_id
    assert len({one.run_id, record_of("run2").run_id, record_of("run", seed=2).run_id}) == 3
    created = create_run(RunStorage(tmp_path, "run"), one)
    assert create_run(RunStorage(tmp_path, "run"), other) == created


@pytest.mark.parametrize("harm", [None, b"", b"{", b'{"run_id": 3}'])
def test_a_run_whose_record_is_gone_or_damaged_keeps_the_id_of_its_books(
    tmp_path: Path, harm: bytes | None
) -> None:
    # The run is of an older version, whose ids were random.
    storage = RunStorage(tmp_path, "run")
    create_run(storage, record_of("run").model_copy(update={"run_id": "random"}))
    start = AttemptStart(run_id="random", attempt=1, resumed_from=None, world_size=1, started_at_s=1.0)
    write_start(storage, start)
    if harm is None:
        storage.delete_file("run.json")
    else:
        storage.write("run.json", harm)
    with pytest.raises((UnknownRunError, RunDamagedError)):
        read_run(storage)

    assert create_run(storage, record_of("run")).run_id == "random"
    assert read_run(storage).run_id == "random"


def test_a_run_that_lost_what_it_was_prepared_with_does_not_find_it_out_anew_unasked(tmp_path: Path) -> None:
    storage = RunStorage(tmp_path, "run")
    assert find_preparation(storage) is None
    storage.write("preparation/recipe.json", b"{")  # killed here, before the first attempt
    assert find_preparation(storage) is None
    write_start(
        storage, AttemptStart(run_id="r", attempt=1, resumed_from=None, world_size=1, started_at_s=1.0)
    )

    with pytest.raises(RunDamagedError, match=r"is damaged.*--begin-anew"):
        find_preparation(storage)
    storage.delete_file("preparation/recipe.json")
    with pytest.raises(RunDamagedError, match="is gone, though the run has trained"):
        find_preparation(storage)
    assert find_preparation(storage, begin_anew=True) is None


def test_each_file_is_on_the_disk_with_its_folders_before_the_next_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    storage = RunStorage(tmp_path / "runs", "run")
    with storage.open_writer("attempt-000001/c/state.pt") as writer:
        writer.write(b"state")
        assert synced == []
    root = str(tmp_path / "runs" / "run")
    folder = f"{root}/attempt-000001/c"
    assert synced == [f"{folder}/state.pt", folder, f"{root}/attempt-000001", root, str(tmp_path / "runs")]
    synced.clear()
    storage.write(f"attempt-000001/c/{INDEX_NAME}", b"index")
    assert synced == [f"{folder}/{INDEX_NAME}", folder]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_folders_can_hold_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some network file systems sync files only."""
    real, synced = os.fsync, []

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        real(handle)
        synced.append(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    RunStorage(tmp_path / "runs", "run").write("deep/file", b"content")
    assert len(synced) == 1


def test_a_folder_that_cannot_be_synced_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageUnwritableError, match="I/O error"):
        RunStorage(tmp_path / "runs", "run").write("deep/file", b"content")


def test_a_storage_keeps_its_patience_on_the_way_to_another_process(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(RunStorage(tmp_path, "run", patience_s=7.0)))
    assert (copy.root, copy.patience_s) == (RunStorage(tmp_path, "run").root, 7.0)


def test_a_claim_is_not_made_where_nothing_can_be_written(tmp_path: Path) -> None:
    with failing("write", TROUBLES[0], times=10**6), pytest.raises(RunError, match="can't be written"):
        claim_run(RunStorage(tmp_path, "run"))


def test_a_folder_is_replaced_by_another_or_made(tmp_path: Path) -> None:
    storage = RunStorage(tmp_path / "runs", "run")
    for number in (1, 2):
        local = tmp_path / str(number)
        (local / "deep").mkdir(parents=True)
        (local / "deep" / f"{number}.txt").write_text(str(number))
        storage.upload_folder(local, "model")
        assert storage.list_names("model/deep") == [f"{number}.txt"]


def test_a_probe_that_somebody_else_has_deleted_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunStorage.delete_file

    def delete_twice(storage: RunStorage, name: str) -> None:
        real(storage, name)
        real(storage, name)

    monkeypatch.setattr(RunStorage, "delete_file", delete_twice)
    RunStorage(tmp_path, "run").require_writable()


def test_a_run_that_begins_does_not_look_at_all_other_runs(tmp_path: Path) -> None:
    for number in range(3):
        create_run(RunStorage(tmp_path, f"other{number}"), record_of(f"other{number}"))
    asked: list[str] = []

    with interposed_storage(lambda: lambda operation, path: asked.append(f"{operation} {path}")):
        create_run(RunStorage(tmp_path, "run"), record_of("run"))

    assert asked
    assert not [what for what in asked if not what.split()[1].startswith(f"{tmp_path}/run")]
    with pytest.raises(UnknownRunError, match="other0"):
        read_run(RunStorage(tmp_path, "another"))
