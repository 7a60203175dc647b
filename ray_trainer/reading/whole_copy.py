"""A small dataset, held whole: one memory-mapped copy per machine, shared by all ranks there.

The first rank to come builds it under a file lock while the others wait, then all map the same file, so W
ranks cost the memory of one. It is written under another name and renamed when complete; a rank that dies
while building leaves nothing that looks like a copy.

The copy lives as long as somebody has it open: each user holds a shared lock (which the kernel releases when
a process dies), and whoever closes and gets the lock exclusively is the last, and deletes it. Users that were
killed can't; so whoever opens a copy also deletes others that nobody has open. The folder belongs to the
user: below /dev/shm where there is room, else in the folder for temporary files. Where it can't be written at
all, the rank keeps a copy of its own in memory.

Invariants, checked in tests/unit/ray_trainer/reading/test_whole_copy.py and
tests/fault/ray_trainer/test_reader_whole_copy_faults.py:
1. Many processes at once: built once, and all see the same rows.
2. A builder killed at any moment is replaced by the next; when all have closed, no file is left.

Read next: step_source.py, which builds and reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

_log = logging.getLogger(__name__)
_SHARED_MEMORY: Final = Path("/dev/shm")

_BUILD_SUFFIX: Final = ".build"

BuildBatches = Callable[[], Iterable[pa.RecordBatch]]


class WholeCopy:
    """An open copy. `close` when done; at the latest, the end of the process does.

    Attributes:
        batches: the samples in manifest order; Arrow arrays that map the file.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], use: _SharedUse | None) -> None:
        self.batches = tuple(batches)
        self._end_use = weakref.finalize(self, use.end) if use else None

    @classmethod
    def open(
        cls,
        fingerprint: str,
        schema: pa.Schema,
        build: BuildBatches,
        *,
        size_bytes: int,
        folders: Sequence[Path] | None = None,
    ) -> WholeCopy:
        """Map the copy; build it first if nobody has.

        Args:
            fingerprint: of the manifest; copies with the same are the same.
            build: makes the samples in manifest order; called at most once.
            size_bytes: about how many bytes they have.
            folders: where to keep it, first choice first; None: shared memory, then temporary files.

        Raises:
            Exception: whatever `build` raises.
        """
        for folder in _usable_folders(folders, fingerprint, size_bytes):
            use = _SharedUse(folder, fingerprint)
            try:
                return cls(_open_or_build(use, schema, build), use)
            except OSError as error:
                use.end()
                _log.warning("can't keep a copy of the dataset in %s: %s", folder, error)
            except BaseException:
                use.end()
                raise
        return cls(list(build()), None)

    def close(self) -> None:
        """Let go of the copy; the last one deletes it. Tensors made from it stay valid, they are copies."""
        self.batches = ()
        if self._end_use is not None:
            self._end_use()


class _SharedUse:
    """A file that this process uses together with others: lock file, data file, and the rules."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.data = folder / f"{fingerprint}.arrow"
        self._lock_path = folder / f"{fingerprint}.lock"
        self._lock = -1
        self._pid = os.getpid()

    def share(self) -> None:
        """Keep others from deleting."""
        while True:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self._is_lock_file():
                return
            # The last user deleted it between our two calls. What is closed is forgotten first: closed once
            # more, it may by then be somebody else's.
            lock, self._lock = self._lock, -1
            os.close(lock)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """For building, while sharing: wait until nobody else builds.

        The lock is another than the shared one: who waited to turn that into an exclusive one would wait for
        as long as the builder then uses the copy, and ranks of one run use it until all of them are done.
        """
        lock = os.open(self.data.with_suffix(_BUILD_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def end(self) -> None:
        """Stop using it; delete it when nobody else does."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        # A forked child has the same lock as its parent, and no say in whether it is still needed.
        if self._pid == os.getpid():
            _delete_if_unused(lock, self._lock_path)
        os.close(lock)

    def _is_lock_file(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._lock), os.stat(self._lock_path))
        return False


def _open_or_build(use: _SharedUse, schema: pa.Schema, build: BuildBatches) -> list[pa.RecordBatch]:
    use.share()
    _delete_unused(use.data.parent)
    if not use.data.exists():
        with use.alone():
            if not use.data.exists():
                _write(use.data, schema, build())
    return _map(use.data)


def _map(path: Path) -> list[pa.RecordBatch]:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    unfinished = path.with_suffix(".unfinished")
    try:
        with open(unfinished, "wb") as file:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            # Without it a power failure could leave the new name with nothing behind it.
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _delete_unused(folder: Path) -> None:
    """What killed processes left behind."""
    for lock_path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _delete_if_unused(lock, lock_path)
            finally:
                os.close(lock)


def _delete_if_unused(lock: int, lock_path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), os.stat(lock_path)):
            for suffix in (".arrow", ".unfinished", _BUILD_SUFFIX):
                lock_path.with_suffix(suffix).unlink(missing_ok=True)
            lock_path.unlink()  # last: whoever waits for this lock sees that it is gone, and makes another


def _usable_folders(folders: Sequence[Path] | None, fingerprint: str, size_bytes: int) -> Iterator[Path]:
    """Folders that are ours and that have the copy already, or room for it."""
    for folder in folders or [
        parent / f"evenload-{os.getuid()}" for parent in (_SHARED_MEMORY, Path(tempfile.gettempdir()))
    ]:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            _require_private(folder)
            has_room = shutil.disk_usage(folder).free > 2 * size_bytes
        except OSError as error:
            _log.info("can't keep a copy of the dataset in %s: %s", folder, error)
            continue
        if has_room or (folder / f"{fingerprint}.arrow").exists():
            yield folder


def _require_private(folder: Path) -> None:
    """In a folder that everybody writes to, somebody else may have made ours first."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder that only this user can write to")
