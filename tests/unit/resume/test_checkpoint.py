"""The index of checkpoints: what counts, what is passed over, what is deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenload.resume.attempts import attempt_folder
from evenload.resume.checkpoint import (
    INDEX_NAME,
    STATE_NAME,
    Checkpoint,
    CheckpointIndex,
    CheckpointStore,
    checkpoint_name,
)
from evenload.resume.errors import InvalidCheckpointError, StorageUnwritableError
from evenload.resume.storage import HashingWriter, RunStorage

STATE = bytes(range(256)) * 4


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return RunStorage(tmp_path, "digits-run")


def take_checkpoint(
    storage: RunStorage, *, attempt: int = 1, step: int = 10, run_id: str = "run-a", finish: bool = True
) -> str:
    store = CheckpointStore(storage, run_id)
    folder = f"{attempt_folder(attempt)}/{checkpoint_name(attempt, step)}"

    def write(writer: HashingWriter) -> None:
        writer.write(STATE[:100])
        writer.write(memoryview(STATE)[100:])

    record = store.write_file(folder, STATE_NAME, write)
    if finish:
        store.finish(folder, index_of(attempt=attempt, step=step, run_id=run_id, files={STATE_NAME: record}))
    return folder


def index_of(**facts: object) -> CheckpointIndex:
    return CheckpointIndex.model_validate(
        {
            "run_id": "run-a",
            "attempt": 1,
            "step": 10,
            "epoch": 0,
            "samples_consumed": 320,
            "position": {"cursor": {"epoch": 0, "samples_consumed": 320}},
            "identity": {"dataset": "digits@1", "plan": "p"},
            "world_size": 2,
            "torch_threads": 1,
            "files": {},
            "created_at_s": 1.5,
            **facts,
        }
    )


def damage(storage: RunStorage, name: str, *, keep: int | None = None) -> None:
    path = Path(storage.path(name))
    content = bytearray(path.read_bytes())
    if keep is None:
        content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content[:keep]))


def test_a_finished_checkpoint_is_found_and_its_content_comes_back(storage: RunStorage) -> None:
    folder = take_checkpoint(storage, step=10)

    found = CheckpointStore(storage, "run-a").newest_valid()

    assert found.rejected == ()
    assert found.checkpoint is not None
    assert found.checkpoint.folder == folder
    assert found.checkpoint.index.samples_consumed == 320
    with CheckpointStore(storage, "run-a").open_file(found.checkpoint, STATE_NAME) as path:
        assert path.read_bytes() == STATE


def test_a_run_without_checkpoints_has_none_and_nothing_to_say(storage: RunStorage) -> None:
    assert CheckpointStore(storage, "run-a").newest_valid() == (None, ())


def test_the_newest_is_of_the_latest_attempt_and_then_of_the_highest_step(storage: RunStorage) -> None:
    # Attempt 2 fell back to step 10 because step 30 could not be read then; its step 20 is what came after.
    take_checkpoint(storage, attempt=1, step=10)
    take_checkpoint(storage, attempt=1, step=30)
    newest = take_checkpoint(storage, attempt=2, step=20)

    found = CheckpointStore(storage, "run-a").newest_valid()

    assert found.checkpoint is not None
    assert found.checkpoint.folder == newest


@pytest.mark.parametrize(
    "harm", ["no index", "no file", "short file", "flipped bit", "foreign run", "no json", "deep json"]
)
def test_a_bad_newest_checkpoint_falls_back_to_the_one_before_and_says_why(
    storage: RunStorage, harm: str
) -> None:
    good = take_checkpoint(storage, step=10)
    bad = take_checkpoint(storage, step=20, run_id="run-b" if harm == "foreign run" else "run-a")
    if harm == "no index":
        storage.delete_file(f"{bad}/{INDEX_NAME}")
    elif harm == "no file":
        storage.delete_file(f"{bad}/{STATE_NAME}")
    elif harm == "short file":
        damage(storage, f"{bad}/{STATE_NAME}", keep=200)
    elif harm == "flipped bit":
        damage(storage, f"{bad}/{STATE_NAME}")
    elif harm == "no json":
        storage.write(f"{bad}/{INDEX_NAME}", b'{"anything": 1}')
    elif harm == "deep json":
        storage.write(f"{bad}/{INDEX_NAME}", b"[" * 100_000)

    found = CheckpointStore(storage, "run-a").newest_valid()

    assert found.checkpoint is not None
    assert found.checkpoint.folder == good
    assert [rejected.folder for rejected in found.rejected] == [bad]
    assert {
        "no index": "never finished",
        "no file": "can't be read",
        "short file": "has 200 bytes",
        "flipped bit": "checksum",
        "foreign run": "belongs to run id run-b, this run is run-a",
        "no json": "not one of evenload's",
        "deep json": "truncated or not JSON",
    }[harm] in found.rejected[0].reason


def test_a_deleted_newest_checkpoint_leaves_the_one_before(storage: RunStorage) -> None:
    good = take_checkpoint(storage, step=10)
    storage.delete_folder(take_checkpoint(storage, step=20))

    found = CheckpointStore(storage, "run-a").newest_valid()

    assert found.checkpoint is not None
    assert found.checkpoint.folder == good


def test_an_index_cut_off_anywhere_or_with_any_byte_changed_is_refused() -> None:
    text = index_of(files={STATE_NAME: (3, "0" * 32)}).to_json()

    assert CheckpointIndex.from_json(text).files[STATE_NAME].size_bytes == 3
    for length in range(len(text)):
        with pytest.raises(ValueError, match=INDEX_NAME):
            CheckpointIndex.from_json(text[:length])
    for at in range(len(text)):
        changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        try:
            same = CheckpointIndex.from_json(changed) == CheckpointIndex.from_json(text)
        except ValueError:
            continue
        assert same  # white space: nothing that it says has changed


def test_of_two_after_one_step_the_later_is_the_newer(storage: RunStorage) -> None:
    store = CheckpointStore(storage, "run-a")
    names = [f"attempt-000001/{checkpoint_name(1, 10, again=again)}" for again in (0, 1, 2)]
    for name in [*names, "attempt-000001/checkpoint-000001-000000000009"]:
        store.finish(name, index_of())
    assert [folder.name for folder in store.folders()][:3] == names[::-1]


def test_an_index_of_a_later_format_is_refused_by_name() -> None:
    content = json.loads(index_of().to_json())["content"]
    newer = index_of().model_copy(update={"format": 3}).to_json()

    assert content["format"] == 2
    with pytest.raises(ValueError, match="of another format: format"):
        CheckpointIndex.from_json(newer)


def test_deleting_keeps_the_newest_and_drops_leftovers_that_are_older(storage: RunStorage) -> None:
    for step in (10, 20, 30):
        take_checkpoint(storage, step=step)
    take_checkpoint(storage, step=25, finish=False)
    begun = take_checkpoint(storage, attempt=2, step=40, finish=False)

    deleted = CheckpointStore(storage, "run-a").delete_old(keep=2)

    names = [folder.name for folder in CheckpointStore(storage, "run-a").folders()]
    assert deleted == 2
    assert names == [begun, *(f"attempt-000001/{checkpoint_name(1, step)}" for step in (30, 20))]


def test_deleting_leaves_checkpoints_of_other_runs_and_other_folders_alone(storage: RunStorage) -> None:
    foreign = take_checkpoint(storage, step=5, run_id="run-b")
    storage.write("attempt-000001/notes/keep.txt", b"mine")
    for step in (10, 20):
        take_checkpoint(storage, step=step)

    CheckpointStore(storage, "run-a").delete_old(keep=1)

    assert storage.exists(f"{foreign}/{INDEX_NAME}")
    assert storage.exists("attempt-000001/notes/keep.txt")
    assert len(CheckpointStore(storage, "run-a").folders()) == 2


def test_looking_from_outside_accepts_any_runs_checkpoint(storage: RunStorage) -> None:
    take_checkpoint(storage, run_id="run-b")

    assert CheckpointStore(storage, None).newest_valid().checkpoint is not None


def test_verifying_names_the_folder_and_what_is_wrong(storage: RunStorage) -> None:
    folder = take_checkpoint(storage)
    damage(storage, f"{folder}/{STATE_NAME}", keep=1)

    store = CheckpointStore(storage, "run-a")
    checkpoint = Checkpoint(folder, store.read_index(folder))
    with pytest.raises(InvalidCheckpointError, match=r"has 1 bytes .* listed are 1024 bytes") as caught:
        store.verify(checkpoint)
    assert folder in caught.value.place


def test_storage_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageUnwritableError, match=r"can't be written: .*Choose another --storage"):
        RunStorage(tmp_path / "file" / "runs", "a").require_writable()
    with pytest.raises(StorageUnwritableError, match="nosuch"):
        RunStorage("nosuch://bucket/runs", "a")


def test_a_uri_of_any_file_system_of_pyarrow_works(tmp_path: Path) -> None:
    by_uri = RunStorage(f"file://{tmp_path}/runs", "a")
    by_uri.require_writable()
    folder = take_checkpoint(by_uri)

    assert by_uri.place(folder).startswith("file://")
    assert CheckpointStore(RunStorage(tmp_path / "runs", "a"), "run-a").newest_valid().checkpoint is not None


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 151])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="can't name a run"):
        RunStorage(tmp_path, name)
