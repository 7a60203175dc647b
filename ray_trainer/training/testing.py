"""Several ranks as processes of one machine, without Ray, and a storage that fails or waits when told to.

Processes are forked from a server that has torch imported, so a group of three is up in a second.
"""

from __future__ import annotations

import io
import multiprocessing
import multiprocessing.context
import os
import runpy
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pyarrow as pa
import pyarrow.fs

from evenload.resume import storage

__all__ = ["Before", "RankProcesses", "interposed_storage", "rank_processes"]

# Called before each operation ("list", "stat", "read", "write", "delete") with its path; may raise, or wait.
Before: TypeAlias = Callable[[str, str], None]

_PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.nn.parallel",
    "evenload.ray_trainer.training.session",
    "evenload.ray_trainer.reading.testing",
]


class RankProcesses:
    """A running group. Killing and waiting are for the process that made it."""

    def __init__(self, processes: list[multiprocessing.context.ForkServerProcess]) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def kill(self, *ranks: int) -> None:
        """SIGKILL these ranks, or all."""
        for rank in ranks or range(len(self._processes)):
            self._processes[rank].kill()

    def wait(self, timeout_s: float = 120.0) -> list[int]:
        """Exit codes, when all have ended.

        Raises:
            TimeoutError: Some had not in time; all are killed.
        """
        deadline_s = time.monotonic() + timeout_s
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        late = [rank for rank, process in enumerate(self._processes) if process.exitcode is None]
        if late:
            self.kill()
            for process in self._processes:
                process.join()
            raise TimeoutError(f"ranks {late} did not end within {timeout_s} s")
        return [process.exitcode if process.exitcode is not None else -1 for process in self._processes]


@contextmanager
def rank_processes(
    script: Path, function: str, arguments: Mapping[str, Any], *, world_size: int
) -> Iterator[RankProcesses]:
    """Run `function(**arguments)` of a Python file on every rank of a gloo group; kill what is left after.

    Args:
        script: The file; nothing but it has to be importable.
        arguments: Has to pickle.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    port = _free_port()
    processes = [
        context.Process(
            target=_run_rank, args=(str(script), function, dict(arguments), rank, world_size, port)
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    group = RankProcesses(processes)
    try:
        yield group
    finally:
        group.kill()
        for process in processes:
            process.join()


def _run_rank(
    script: str, function: str, arguments: dict[str, Any], rank: int, world_size: int, port: int
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    runpy.run_path(script)[function](**arguments)
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def interposed_storage(make_before: Callable[[], Before]) -> Iterator[None]:
    """Let every storage that is opened within the block behave as one of objects that asks first.

    A file is there when its writer has closed it, whole; folders are there as on a local file system.

    Args:
        make_before: Called by whoever opens a storage, on that thread.
    """

    def open_filesystem(place: str) -> tuple[Any, str]:
        return pyarrow.fs.PyFileSystem(_Interposed(make_before())), place.removeprefix("file://")

    with mock.patch.object(storage, "_open_filesystem", open_filesystem):
        yield


class _Interposed(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    def __init__(self, before: Before) -> None:
        self._before = before
        self._local: Any = pyarrow.fs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return "interposed"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self._before("stat", paths[0] if paths else "")
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._before("list", selector.base_dir)
        return self._local.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        self._before("read", path)
        return pa.PythonFile(open(path, "rb"), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        del metadata
        self._before("write", path)
        return pa.PythonFile(_Put(path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._before("delete", path)
        self._local.delete_dir(path)

    def delete_file(self, path: str) -> None:
        self._before("delete", path)
        self._local.delete_file(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError("object stores can't")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError


class _Put(io.BytesIO):
    """Becomes a file when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            Path(self._path).write_bytes(self.getvalue())
        super().close()
