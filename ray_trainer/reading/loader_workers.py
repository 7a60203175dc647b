"""Copies of a reader in a DataLoader's worker processes, and what they may not do.

A DataLoader hands a copy of its dataset to each worker process, and the copy counts what it hands out: the
reader that it was made of learns nothing. So three things that would repeat or lose samples silently are
refused with a sentence: several workers, each of which would hand out everything; a second worker for another
epoch, which would begin where the first one began; and the question where a reader stands that a copy reads.

What the processes share is one flag in shared memory: a worker reads. Only a process that is started with the
reader can share it; a copy that is made otherwise (pickled, saved) is a reader of its own.

Invariants, checked in tests/unit/ray_trainer/reading/test_loader_workers.py and
tests/integration/ray_trainer/test_reader_loader_epochs.py:
1. Each sample comes once in each epoch that a worker reads, or a LoaderWorkersError does.

Read next: reader.py, whose every iteration asks here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any

from torch.utils.data import get_worker_info

from evenload.ray_trainer.reading.errors import LoaderWorkersError
from evenload.ray_trainer.reading.process_rank import ProcessRank, group_rank

__all__ = ["LoaderWorkers"]


class LoaderWorkers:
    """Which process reads, as a reader and its copies know it. Each has one; pickled together with it."""

    def __init__(self) -> None:
        self._is_read_by_worker: Any = RawValue(ctypes.c_bool)
        self._own_pid: int | None = None  # of the worker that this copy is in, once it reads
        self._starters_rank: ProcessRank | None = None

    def check_may_read(self, *, would_repeat: bool) -> None:
        """Ask before an iteration begins.

        Args:
            would_repeat: a copy that begins where this one begins would repeat what another has handed out.

        Raises:
            LoaderWorkersError: there are several workers, or this is a second one that would repeat samples.
        """
        worker = get_worker_info()
        if worker is None:
            return
        if worker.num_workers > 1:
            raise LoaderWorkersError(num_workers=worker.num_workers)
        # Not kept, a worker is started for each epoch, with a copy that begins where the first one began.
        if self._own_pid != os.getpid() and self._is_read_by_worker.value and would_repeat:
            raise LoaderWorkersError(num_workers=1, is_started_again=True)
        self._own_pid = os.getpid()

    def begun(self) -> None:
        """An iteration begins in this process."""
        self._is_read_by_worker.value = get_worker_info() is not None

    def check_known(self) -> None:
        """Ask before saying where the reader stands.

        Raises:
            LoaderWorkersError: a copy in a worker reads, and nobody here knows how far it is.
        """
        if self._is_read_by_worker.value and get_worker_info() is None:
            raise LoaderWorkersError(num_workers=1)

    def forget(self) -> None:
        """The reader was told where it stands: what a worker has read before doesn't matter."""
        self._is_read_by_worker.value = False

    def starters_rank(self) -> ProcessRank | None:
        """In a worker that knows of no process group: the rank of the process that started it."""
        return self._starters_rank if get_worker_info() is not None and group_rank() is None else None

    def __getstate__(self) -> dict[str, Any]:
        """For another process, or a copy in this one.

        A worker that was not forked knows nothing of the process group, so it is told the rank; it must not
        be told one that there is no group for, as who starts ranks this way has none yet.
        """
        state = {**self.__dict__, "_starters_rank": group_rank()}
        if get_spawning_popen() is None:  # only what a process is started with can share memory with it
            del state["_is_read_by_worker"]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({"_is_read_by_worker": RawValue(ctypes.c_bool), **state})
