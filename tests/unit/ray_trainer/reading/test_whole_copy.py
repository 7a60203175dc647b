"""One copy of a small dataset per machine: built once, shared, and gone with its last user."""

from __future__ import annotations

import errno
import os
import threading
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from evenload.ray_trainer.reading import whole_copy
from evenload.ray_trainer.reading.whole_copy import WholeCopy

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})


class Builder:
    """Builds two batches, and counts how often."""

    def __init__(self) -> None:
        self.num_built = 0

    def __call__(self) -> Iterator[pa.RecordBatch]:
        self.num_built += 1
        for first in (0, 3):
            rows = range(first, first + 3)
            yield pa.RecordBatch.from_pydict({"n": list(rows), "text": [str(n) for n in rows]}, SCHEMA)


def open_copy(folder: Path, build: Builder, *, fingerprint: str = "f" * 32) -> WholeCopy:
    return WholeCopy.open(fingerprint, SCHEMA, build, size_bytes=1000, folders=[folder])


def numbers(copy: WholeCopy) -> list[int]:
    return [n for batch in copy.batches for n in batch.column("n").to_pylist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "copies"


def test_it_is_built_by_the_first_and_deleted_by_the_last(folder: Path) -> None:
    build = Builder()
    first, second = open_copy(folder, build), open_copy(folder, build)
    assert build.num_built == 1
    assert numbers(first) == numbers(second) == list(range(6))
    first.close()
    assert numbers(second) == list(range(6))
    assert len(list(folder.glob("*.arrow"))) == 1
    second.close()
    second.close()
    assert list(folder.iterdir()) == []


def test_many_at_once_build_it_once(folder: Path) -> None:
    build = Builder()
    begin = threading.Barrier(8)
    copies: list[WholeCopy] = []

    def use() -> None:
        begin.wait()
        copies.append(open_copy(folder, build))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [numbers(copy) for copy in copies] == [list(range(6))] * 8
    assert build.num_built == 1
    for copy in copies:
        copy.close()
    assert list(folder.iterdir()) == []


def test_who_waits_for_the_builder_goes_on_while_the_builder_still_uses_the_copy(folder: Path) -> None:
    building, go_on = threading.Event(), threading.Event()

    class SlowBuilder(Builder):
        def __call__(self) -> Iterator[pa.RecordBatch]:
            building.set()
            go_on.wait(60)
            return super().__call__()

    with ThreadPoolExecutor(2) as threads:
        builder = threads.submit(open_copy, folder, SlowBuilder())
        building.wait(60)
        waiting = threads.submit(open_copy, folder, Builder())
        go_on.set()
        copies = [builder.result(60), waiting.result(60)]  # both open at once, as the ranks of a run have it
    for copy in copies:
        copy.close()


def test_opening_and_closing_at_the_same_time_never_shows_half_a_copy(folder: Path) -> None:
    failures: list[BaseException] = []

    def use_again_and_again() -> None:
        try:
            for _ in range(30):
                copy = open_copy(folder, Builder())
                assert numbers(copy) == list(range(6))
                copy.close()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=use_again_and_again) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(folder.iterdir()) == []


def test_a_copy_that_is_dropped_without_closing_is_deleted(folder: Path) -> None:
    copy = open_copy(folder, Builder())
    del copy
    assert list(folder.iterdir()) == []


def test_a_build_that_fails_leaves_nothing_and_the_next_one_builds(folder: Path) -> None:
    class Failing(Builder):
        def __call__(self) -> Iterator[pa.RecordBatch]:
            yield next(super().__call__())
            raise ValueError("no more brokers")

    with pytest.raises(ValueError, match="no more brokers"):
        open_copy(folder, Failing())
    assert list(folder.iterdir()) == []
    copy = open_copy(folder, Builder())
    assert numbers(copy) == list(range(6))
    copy.close()


def test_other_datasets_have_copies_of_their_own(folder: Path) -> None:
    one, two = open_copy(folder, Builder()), open_copy(folder, Builder(), fingerprint="e" * 32)
    assert len(list(folder.glob("*.arrow"))) == 2
    one.close()
    assert numbers(two) == list(range(6))
    two.close()
    assert list(folder.iterdir()) == []


def test_what_killed_processes_left_is_deleted_by_the_next_user(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for name in ("dead.lock", "dead.arrow", "dead.unfinished"):
        (folder / name).write_bytes(b"x")
    copy = open_copy(folder, Builder())
    assert {path.stem for path in folder.iterdir()} == {"f" * 32}
    copy.close()


def test_without_room_the_next_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(
        whole_copy.shutil, "disk_usage", lambda path: usage(10**9 if path.name == "roomy" else 1500)
    )
    folders = [tmp_path / "small", tmp_path / "roomy"]
    copy = WholeCopy.open("f" * 32, SCHEMA, Builder(), size_bytes=1000, folders=folders)
    assert list(folders[0].iterdir()) == []
    assert len(list(folders[1].glob("*.arrow"))) == 1
    copy.close()


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    os.chmod(folder, 0o777)
    copy = open_copy(folder, Builder())
    assert numbers(copy) == list(range(6))
    assert list(folder.iterdir()) == []
    copy.close()


def test_where_no_folder_can_be_used_the_copy_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    build = Builder()
    copy = WholeCopy.open("f" * 32, SCHEMA, build, size_bytes=1000, folders=[tmp_path / "file"])
    assert numbers(copy) == list(range(6))
    assert build.num_built == 1
    copy.close()


def test_a_lock_file_that_vanished_is_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = whole_copy._SharedUse(tmp_path, "copy")
    opened = os.open
    of_others: list[int] = []

    def failing(path: str, flags: int, mode: int = 0o777) -> int:
        if of_others:
            raise OSError(errno.EMFILE, "too many open files")
        of_others.append(-1)
        return opened(path, flags, mode)

    def is_gone(_: object) -> bool:
        monkeypatch.setattr(os, "close", closing)
        return False

    close = os.close

    def closing(lock: int) -> None:
        close(lock)
        of_others[0] = opened(os.devnull, os.O_RDONLY)  # has the same number now
        monkeypatch.setattr(os, "close", close)

    monkeypatch.setattr(whole_copy._SharedUse, "_is_lock_file", is_gone)
    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(OSError, match="too many open files"):
        use.share()
    use.end()
    os.fstat(of_others[0])
    close(of_others[0])
