"""Several ranks as processes of one machine, without Ray: to test what ranks do together, and to kill one.

Processes are forked from a server that has torch imported, so a group of three is up in a second.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import runpy
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["RankProcesses", "rank_processes"]

_PRELOAD = [
    "torch",
    "torch._dynamo",
    "torch.nn.parallel",
    "ray_trainer.training.session",
    "ray_trainer.reading.testing",
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
