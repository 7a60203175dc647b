"""Two processes that train together, epoch by epoch, on whatever dataset they are told.

Each has one thread for computing, and they add up their gradients after each step (PyTorch's DDP over gloo).
They live for the whole benchmark; a model is made once for each workload.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection

NUM_RANKS: Final = 2
# What is open or on its way is a small part of the dataset, as with one that is larger than memory.
NUM_LANES: Final = 12
AHEAD_OF_DATASET: Final = 1 / 16
_END_TIMEOUT_S: Final = 30.0


class Epoch(NamedTuple):
    """What to train on."""

    workload: str
    manifest: DatasetManifest
    connection: Connection


class Ranks:
    """The processes; a context manager that starts and ends them."""

    def __enter__(self) -> Self:
        spawning = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="evenload-ranks-")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Pipe] = []
        self._processes = []
        for rank in range(NUM_RANKS):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(target=_run_rank, args=(rank, theirs, store), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()

    def train(self, epoch: Epoch) -> float:
        """Train an epoch; the seconds from before its first step to after its last.

        Raises:
            RuntimeError: A rank failed; it has said why on the terminal.
        """
        try:
            for pipe in self._pipes:
                pipe.send(epoch)
            seconds: Sequence[float] = [pipe.recv() for pipe in self._pipes]
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError("a rank ended before its epoch did") from error
        return max(seconds)


def _run_rank(rank: int, pipe: Pipe, store: str) -> None:
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.training_time.workloads import WORKLOADS

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS)
    models = {}
    try:
        while True:
            epoch: Epoch = pipe.recv()
            if epoch.workload not in models:
                torch.manual_seed(0)
                models[epoch.workload] = DistributedDataParallel(WORKLOADS[epoch.workload].make_model())
            pipe.send(_train(epoch, rank, models[epoch.workload]))
    except EOFError:  # there is nothing more to train
        distributed.destroy_process_group()


def _train(epoch: Epoch, rank: int, model: object) -> float:
    import torch
    from torch import distributed, nn

    from benchmarks.training_time.workloads import WORKLOADS
    from evenload.ray_trainer.reading.reader import DatasetReader

    assert isinstance(model, nn.Module)
    workload = WORKLOADS[epoch.workload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reader = DatasetReader(
        epoch.manifest,
        global_batch_size=workload.batch_size,
        rank=rank,
        world_size=NUM_RANKS,
        connection=epoch.connection,
        hold_whole=False,
        prefetch_bytes=max(1, int(epoch.manifest.num_bytes * AHEAD_OF_DATASET)),
    )
    reader.adopt_plan({**reader.state_dict()["plan"], "num_lanes": NUM_LANES})
    distributed.barrier()
    begun_s = time.perf_counter()
    for batch in reader:
        optimizer.zero_grad()
        workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    distributed.barrier()
    seconds = time.perf_counter() - begun_s
    reader.close()
    return seconds
