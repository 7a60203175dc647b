"""Where a run keeps its files: one folder, on any file system that pyarrow knows.

    STORAGE/RUN/
      run.json                             what the run is; later, how it finished
      attempt-000003/                      one driver's life (Ray's experiment folder)
        checkpoint-000004-000000000123/    taken by attempt 4 after step 123
      ledger/attempt-000004/               who was handed what (ledger.py)
      model/                               the trained model
      loss.jsonl                           its loss curve

An *attempt* is one life of a group of workers, numbered 1, 2, ... over the run; a driver's folder
bears the number of its first one. Only here are paths made of names, and only here does an error
of the file system become one of ours. Nothing is ever renamed: object stores can't. What counts is
decided by what a file says, not by what it is called (checkpoint.py).

Read next: checkpoint.py, ledger.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs
import xxhash

from ray_trainer.errors import StorageUnwritableError

__all__ = ["FileRecord", "RunStorage", "checksum_of"]

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_PROBE = ".evenload-can-write"


class FileRecord(NamedTuple):
    """What a file has to be for its folder to count: bytes and xxh3-128, 32 hex digits."""

    size_bytes: int
    checksum: str


def checksum_of(content: bytes) -> FileRecord:
    """The record that `content` has to match."""
    return FileRecord(len(content), xxhash.xxh3_128_hexdigest(content))


class RunStorage:
    """The folder of one run. Cheap to make, holds no handle; any thread may use it.

    Args:
        storage: A local path, or a URI of a file system that pyarrow knows (`s3://bucket/runs`).
        run: Letters, digits, `.`, `_`, `-`; begins with a letter or digit, at most 150.

    Raises:
        ValueError: The name can't be a folder's.
        StorageUnwritableError: pyarrow knows no such file system.
    """

    def __init__(self, storage: str | Path, run: str) -> None:
        if not _RUN_NAME.fullmatch(run):
            raise ValueError(
                f"{run!r} can't name a run: 1 to 150 letters, digits, '.', '_' or '-', beginning with a "
                "letter or digit"
            )
        self.storage = str(storage)
        self.run = run
        try:
            if "://" in self.storage:
                self.filesystem, base = pyarrow.fs.FileSystem.from_uri(self.storage)
            else:
                self.storage = str(Path(self.storage).expanduser().absolute())
                self.filesystem, base = pyarrow.fs.LocalFileSystem(), self.storage
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StorageUnwritableError(self.storage, _sentence(error)) from error
        self.root = f"{base.rstrip('/')}/{run}"

    def __reduce__(self) -> tuple[type[RunStorage], tuple[str, str]]:
        return RunStorage, (self.storage, self.run)

    def path(self, name: str) -> str:
        """The path of `name` (relative to the run) in the file system's own words."""
        return f"{self.root}/{name}" if name else self.root

    def place(self, name: str = "") -> str:
        """The same as a person would write it, with the storage's scheme."""
        return f"{self.storage.rstrip('/')}/{self.run}" + (f"/{name}" if name else "")

    def require_writable(self) -> None:
        """Make the run's folder and write into it, once, before anything depends on it.

        Raises:
            StorageUnwritableError: It can't be made or written, with the file system's reason.
        """
        try:
            self.write(_PROBE, b"evenload")
            self.delete_file(_PROBE)
        except OSError as error:
            raise StorageUnwritableError(self.place(), _sentence(error)) from error

    def exists(self, name: str = "") -> bool:
        info: Any = self.filesystem.get_file_info(self.path(name))
        return bool(info.type != pyarrow.fs.FileType.NotFound)

    def list_names(self, folder: str = "") -> list[str]:
        """Names of what is directly in a folder, ascending; empty when there is no such folder."""
        selector = pyarrow.fs.FileSelector(self.path(folder), allow_not_found=True, recursive=False)
        return sorted(info.base_name for info in self.filesystem.get_file_info(selector))

    def other_runs(self, marker: str) -> list[str]:
        """Runs in the same storage: folders that hold a file named `marker`."""
        base = self.root.rpartition("/")[0]
        selector = pyarrow.fs.FileSelector(base, allow_not_found=True, recursive=False)
        folders = [info for info in self.filesystem.get_file_info(selector) if not info.is_file]
        markers = self.filesystem.get_file_info([f"{folder.path}/{marker}" for folder in folders])
        return sorted(folder.base_name for folder, info in zip(folders, markers, strict=True) if info.is_file)

    def read(self, name: str) -> bytes:
        """The whole content.

        Raises:
            OSError: It is not there, or can't be read.
        """
        with self.filesystem.open_input_file(self.path(name)) as source:
            content: bytes = source.read()
        return content

    def write(self, name: str, content: bytes) -> FileRecord:
        """Write a whole file, making its folders.

        Raises:
            OSError: It can't be written.
        """
        with self.open_writer(name) as writer:
            writer.write(content)
        return writer.record

    @contextmanager
    def open_writer(self, name: str) -> Iterator[HashingWriter]:
        """A file to be written front to back; after the block, `record` says what was written."""
        path = self.path(name)
        self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with self.filesystem.open_output_stream(path) as sink:
            writer = HashingWriter(sink)
            yield writer
        writer.close()

    def delete_file(self, name: str) -> None:
        self.filesystem.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        self.filesystem.delete_dir(self.path(name))

    def upload_folder(self, local: Path, name: str) -> None:
        """Replace folder `name` by the files of a local one (its sub-folders too)."""
        if self.exists(name):
            self.delete_folder(name)
        for source in sorted(path for path in local.rglob("*") if path.is_file()):
            self.write(f"{name}/{source.relative_to(local).as_posix()}", source.read_bytes())


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


def _sentence(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else type(error).__name__
