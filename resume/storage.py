"""Where a run keeps its files: one folder, on any file system that pyarrow knows.

    STORAGE/RUN/
      run.json                             what the run is; later, how it finished
      claims/                              who has taken the run, and when (fence.py)
      attempt-000003/                      one driver's life (Ray's experiment folder)
        checkpoint-000004-000000000123/    taken by attempt 4 after step 123
      ledger/attempt-000004/               with what an attempt began, and its books (attempts.py)
      metrics/                             how good the model was after each epoch
      model/                               the trained model
      loss.jsonl                           its loss curve

An *attempt* is one life of a group of workers, numbered 1, 2, ... over the run; a driver's folder
bears the number of its first one. Only here are paths made of names, and only here does an error
of the file system become one of ours. Nothing is ever renamed: object stores can't. What counts is
decided by what a file says, not by what it is called (checkpoint.py).

Only `FileNotFoundError` means that a file is absent. Every other error of the file system (a network that
is away, throttling, rights that a server has lost for a moment) is tried again for `patience_s` seconds and
then raised: were it taken for absence, a run would begin anew beside its own good checkpoints.

Invariants, checked in tests/unit/resume/test_storage.py:
1. No error but FileNotFoundError is ever taken for absence.
2. On a local file system, a file is on the disk before the one that is written after it, and so are its
   folders where the file system can say so.

Read next: attempts.py, checkpoint.py.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs
import stamina
import xxhash

from evenload.resume.errors import StorageUnreadableError, StorageUnwritableError

__all__ = ["PATIENCE_S", "FileRecord", "HashingWriter", "RunStorage", "checksum_of"]

PATIENCE_S: Final = 30.0

T = TypeVar("T")

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_PROBE = ".evenload-can-write"
_PROBE_PATIENCE_S = 2.0
_PIECE_BYTES = 1 << 22
# An object store may be silent for so long, in seconds, before it is asked again.
_CONNECT_S = 5.0
_SILENCE_S = 15.0

# Or Python prints the names of stamina's events on stderr, where nobody has configured logging.
logging.getLogger("stamina").addHandler(logging.NullHandler())


class FileRecord(NamedTuple):
    """What a file has to be for its folder to count: bytes and xxh3-128, 32 hex digits."""

    size_bytes: int
    checksum: str


def checksum_of(content: bytes | memoryview) -> FileRecord:
    """The record that `content` has to match."""
    return FileRecord(memoryview(content).nbytes, xxhash.xxh3_128_hexdigest(content))


class RunStorage:
    """The folder of one run. Cheap to make, holds no handle; any thread may use it.

    Args:
        storage: A local path, or a URI of a file system that pyarrow knows (`s3://bucket/runs`).
        run: Letters, digits, `.`, `_`, `-`; begins with a letter or digit, at most 150.
        patience_s: For how long an operation that the file system refuses is tried again, 0 or more.

    Raises:
        ValueError: The name can't be a folder's.
        StorageUnwritableError: pyarrow knows no such file system.
    """

    def __init__(self, storage: str | Path, run: str, *, patience_s: float = PATIENCE_S) -> None:
        if not _RUN_NAME.fullmatch(run):
            raise ValueError(
                f"{run!r} can't name a run: 1 to 150 letters, digits, '.', '_' or '-', beginning with a "
                "letter or digit"
            )
        self.storage = str(storage)
        self.run = run
        self.patience_s = patience_s
        try:
            if "://" not in self.storage:
                self.storage = str(Path(self.storage).expanduser().absolute())
            self.filesystem, base = _open_filesystem(self.storage)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageUnwritableError(_shown(self.storage), _sentence(error)) from error
        self.root = f"{base.rstrip('/')}/{run}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.storage, self.run, self.patience_s)

    @property
    def is_local(self) -> bool:
        """Whether paths are those of this machine's own file system (a mounted one included)."""
        return isinstance(self.filesystem, pyarrow.fs.LocalFileSystem)

    def path(self, name: str) -> str:
        """The path of `name` (relative to the run) in the file system's own words."""
        return f"{self.root}/{name}" if name else self.root

    def place(self, name: str = "") -> str:
        """The same as a person would write it, with the storage's scheme; without what is secret in it."""
        return f"{_shown(self.storage).rstrip('/')}/{self.run}" + (f"/{name}" if name else "")

    def require_writable(self) -> None:
        """Make the run's folder and write into it, once, before anything depends on it.

        Raises:
            StorageUnwritableError: It can't be made or written, with the file system's reason.
        """

        def probe() -> None:
            self.write_once(_PROBE, b"evenload")
            with contextlib.suppress(FileNotFoundError):  # another rank or driver tries at the same moment
                self.delete_file(_PROBE)

        # A folder that can't be written is mostly a slip of whoever named it, who should hear of it soon.
        self._write_patiently("", probe, patience_s=min(self.patience_s, _PROBE_PATIENCE_S))

    # -- reading -----------------------------------------------------------------------------------

    def exists(self, name: str = "") -> bool:
        """Raises:
        StorageUnreadableError: The file system does not say.
        """
        return self.size_of(name) is not None

    def size_of(self, name: str) -> int | None:
        """Bytes of a file (0 of a folder); None when there is none.

        Raises:
            StorageUnreadableError: The file system does not say.
        """
        info: Any = self._read_patiently(name, lambda: self.filesystem.get_file_info(self.path(name)))
        return None if info.type == pyarrow.fs.FileType.NotFound else int(info.size or 0)

    def list_names(self, folder: str = "") -> list[str]:
        """Names of what is directly in a folder, ascending; empty when there is no such folder.

        Raises:
            StorageUnreadableError: It can't be listed.
        """
        return sorted(info.base_name for info in self._list(self.path(folder), folder))

    def other_runs(self, marker: str) -> list[str]:
        """Runs in the same storage: folders that hold a file named `marker`."""
        folders = [info for info in self._list(self.root.rpartition("/")[0], "") if not info.is_file]
        names = [f"{folder.path}/{marker}" for folder in folders]
        markers = self._read_patiently("", lambda: self.filesystem.get_file_info(names))
        return sorted(folder.base_name for folder, info in zip(folders, markers, strict=True) if info.is_file)

    def read(self, name: str) -> bytes:
        """The whole content of a small file.

        Raises:
            FileNotFoundError: There is none.
            StorageUnreadableError: It can't be read.
        """

        def read() -> bytes:
            with self.filesystem.open_input_file(self.path(name)) as source:
                content: bytes = source.read()
            return content

        return self._read_patiently(name, read)

    def read_range(self, name: str, start: int, size_bytes: int) -> bytes:
        """So many bytes from `start` on; fewer where the file ends before.

        Raises:
            FileNotFoundError: There is no such file.
            StorageUnreadableError: It can't be read.
        """

        def read() -> bytes:
            with self.filesystem.open_input_file(self.path(name)) as source:
                content: bytes = source.read_at(size_bytes, start)
            return content

        return self._read_patiently(name, read)

    def checksum(self, name: str) -> FileRecord:
        """What a file of any size is, read once, a piece at a time.

        Raises:
            FileNotFoundError: There is none.
            StorageUnreadableError: It can't be read.
        """
        return self._read_patiently(name, lambda: self._pass_through(name, len))

    @contextmanager
    def local_file(self, name: str) -> Iterator[tuple[Path, FileRecord]]:
        """A file of any size as one of this machine's own, and what it is; never held in memory.

        From another machine's storage it is fetched once. One that lies here is read for its checksum, and
        stays where it is.

        Raises:
            FileNotFoundError: There is none.
            StorageUnreadableError: It can't be read.
            OSError: There is no room for a temporary copy of it (where the storage isn't local).
        """
        if self.is_local:
            yield Path(self.path(name)), self.checksum(name)
            return
        with tempfile.NamedTemporaryFile(prefix="evenload-") as copy:

            def fetch() -> FileRecord:
                copy.seek(0)
                copy.truncate()
                return self._pass_through(name, copy.write)

            record = self._read_patiently(name, fetch)
            copy.flush()
            yield Path(copy.name), record

    # -- writing -----------------------------------------------------------------------------------

    def write(self, name: str, content: bytes) -> FileRecord:
        """Write a whole small file, making its folders; tried again while the file system refuses.

        Raises:
            StorageUnwritableError: It can't be written.
        """
        return self._write_patiently(name, lambda: self.write_once(name, content))

    def write_once(self, name: str, content: bytes) -> FileRecord:
        """The same for who has a better moment to try again.

        Raises:
            OSError: It can't be written now.
        """
        with self.open_writer(name) as writer:
            writer.write(content)
        return writer.record

    @contextmanager
    def open_writer(self, name: str) -> Iterator[HashingWriter]:
        """A file to be written front to back; after the block, `record` says what was written.

        Raises:
            OSError: It can't be written now.
        """
        path = self.path(name)
        folder = path.rpartition("/")[0]
        is_new = self.is_local and not os.path.isdir(folder)
        self.filesystem.create_dir(folder, recursive=True)
        with self.filesystem.open_output_stream(path) as sink:
            writer = HashingWriter(sink)
            yield writer
        writer.close()
        if self.is_local:
            # Else a power failure may leave an index whose checkpoint is not on the disk yet.
            _sync(path)
            _sync_folder(folder)
            if is_new:
                self._sync_above(folder)

    def delete_file(self, name: str) -> None:
        self.filesystem.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        self.filesystem.delete_dir(self.path(name))

    def upload_folder(self, local: Path, name: str) -> None:
        """Replace folder `name` by the files of a local one (its sub-folders too).

        Raises:
            StorageUnwritableError: It can't be replaced.
        """

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.delete_folder(name)

        self._write_patiently(name, delete)
        for source in sorted(path for path in local.rglob("*") if path.is_file()):
            self.write(f"{name}/{source.relative_to(local).as_posix()}", source.read_bytes())

    # -- leaves ------------------------------------------------------------------------------------

    def _list(self, path: str, name: str) -> list[Any]:
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=False)
        found: list[Any] = self._read_patiently(name, lambda: self.filesystem.get_file_info(selector))
        return found

    def _pass_through(self, name: str, take: Callable[[bytes], object]) -> FileRecord:
        digest, size_bytes = xxhash.xxh3_128(), 0
        with self.filesystem.open_input_stream(self.path(name)) as source:
            while piece := source.read(_PIECE_BYTES):
                digest.update(piece)
                take(piece)
                size_bytes += len(piece)
        return FileRecord(size_bytes, digest.hexdigest())

    def _read_patiently(self, name: str, read: Callable[[], T]) -> T:
        try:
            return _retried(read, _may_pass, self.patience_s)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageUnreadableError(self.place(name), _sentence(error)) from error

    def _write_patiently(self, name: str, write: Callable[[], T], *, patience_s: float | None = None) -> T:
        try:
            return _retried(write, OSError, self.patience_s if patience_s is None else patience_s)
        except OSError as error:
            raise StorageUnwritableError(self.place(name), _sentence(error)) from error

    def _sync_above(self, folder: str) -> None:
        """A new folder is an entry of the one above, up to the storage's own."""
        while folder.startswith(self.root):
            folder = folder.rpartition("/")[0]
            _sync_folder(folder)


class HashingWriter:
    """A file-like object that knows the size and checksum of what passed through it.

    `torch.save` writes into it piece by piece, so a checkpoint is never in memory a second time.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._hash = xxhash.xxh3_128()
        self._size_bytes = 0

    def write(self, content: bytes | memoryview) -> int:
        self._sink.write(content)
        self._hash.update(content)
        length = memoryview(content).nbytes
        self._size_bytes += length
        return length

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        """Nothing more may be written; the file belongs to whoever opened it."""
        self._sink = None

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._size_bytes, self._hash.hexdigest())


def _shown(storage: str) -> str:
    """A storage without account and settings, which a URI may hold."""
    if "://" not in storage:
        return storage
    parts = urlsplit(storage)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _open_filesystem(storage: str) -> tuple[Any, str]:
    """The file system of a storage, and the storage's path in it."""
    if "://" in storage:
        filesystem, base = pyarrow.fs.FileSystem.from_uri(storage)
        return _impatient(filesystem), base
    return pyarrow.fs.LocalFileSystem(), storage


def _impatient(filesystem: Any) -> Any:
    """The same file system; of S3, one that doesn't wait for minutes for a server that says nothing.

    A URI can't say how long, so it is made anew with its own settings, as a copy in another process is.
    """
    if not isinstance(filesystem, getattr(pyarrow.fs, "S3FileSystem", ())):
        return filesystem
    copy: Any = filesystem.__reduce__()
    make, (settings,) = copy
    return make(settings | {"connect_timeout": _CONNECT_S, "request_timeout": _SILENCE_S})


def _reopen(storage: str, run: str, patience_s: float) -> RunStorage:
    return RunStorage(storage, run, patience_s=patience_s)


def _retried(call: Callable[[], T], on: Any, patience_s: float) -> T:
    if patience_s <= 0:
        return call()
    for attempt in stamina.retry_context(
        on=on, attempts=None, timeout=patience_s, wait_initial=0.1, wait_max=3.0, wait_jitter=0.2
    ):
        with attempt:
            return call()
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: Exception) -> bool:
    """Whether another try may succeed: of what isn't there, no."""
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(path: str) -> None:
    try:
        _sync(path)
    except OSError as error:
        # Some network file systems know no fsync of a folder. They are not to be refused for that: what is in
        # their folders is the server's to keep.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sentence(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__
