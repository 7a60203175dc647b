"""Two processes that train together, epoch by epoch, on whatever dataset they are told.

Each has one thread for computing. They average their gradients after each step, as PyTorch's DDP does, but in
shared memory: over loopback, whose packets are small and counted here, that would take longer than reading.
They live for the whole benchmark; a model is made anew for each epoch.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection

if TYPE_CHECKING:
    from torch import nn

NUM_RANKS: Final = 2
# What is open or on its way is a small part of the dataset, as with one that is larger than memory.
NUM_LANES: Final = 24
_PARAMETERS_MAX: Final = 12_000_000  # ResNet-18 has 11.2 million
_STEP_TIMEOUT_S: Final = 300.0
_END_TIMEOUT_S: Final = 30.0


class Epoch(NamedTuple):
    """What to train on."""

    workload: str
    manifest: DatasetManifest
    connection: Connection


class Trained(NamedTuple):
    """What an epoch took, and what it read of brokers in all."""

    seconds: float
    num_wire_bytes: int


class Ranks:
    """The processes; a context manager that starts and ends them."""

    def __enter__(self) -> Self:
        spawning = multiprocessing.get_context("spawn")
        # Kept, as what a process is given has to be there until it has begun.
        self._gradients = spawning.RawArray("f", NUM_RANKS * _PARAMETERS_MAX)
        self._barrier = spawning.Barrier(NUM_RANKS, timeout=_STEP_TIMEOUT_S)
        self._pipes: list[Pipe] = []
        self._processes = []
        for rank in range(NUM_RANKS):
            ours, theirs = spawning.Pipe()
            process = spawning.Process(
                target=_run_rank, args=(rank, theirs, self._gradients, self._barrier), daemon=True
            )
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

    def train(self, epoch: Epoch) -> Trained:
        """Train an epoch, from before its first step to after its last.

        Raises:
            RuntimeError: A rank failed; it has said why on the terminal.
        """
        try:
            for pipe in self._pipes:
                pipe.send(epoch)
            trained: list[Trained] = [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError) as error:
            raise RuntimeError("a rank ended before its epoch did") from error
        return Trained(max(each.seconds for each in trained), sum(each.num_wire_bytes for each in trained))


class _SharedGradients:
    """The gradients of all ranks, in memory that they share."""

    def __init__(self, rank: int, memory: Any, barrier: Barrier) -> None:
        import numpy as np
        import torch

        self._rank = rank
        self._all = torch.from_numpy(np.frombuffer(memory, dtype=np.float32)).view(NUM_RANKS, -1)
        self._barrier = barrier

    def wait_for_all(self) -> None:
        """Go on when all ranks have come so far."""
        self._barrier.wait()

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give each parameter the mean of what all ranks have as its gradient."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        at = 0
        for gradient in gradients:
            self._all[self._rank, at : at + gradient.numel()] = gradient.flatten()
            at += gradient.numel()
        self._barrier.wait()
        mean = self._all[:, :at].mean(0)
        self._barrier.wait()
        at = 0
        for gradient in gradients:
            gradient.copy_(mean[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()


def _run_rank(rank: int, pipe: Pipe, memory: Any, barrier: Barrier) -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    gradients = _SharedGradients(rank, memory, barrier)
    while True:
        try:
            epoch: Epoch = pipe.recv()
        except EOFError:  # there is nothing more to train
            return
        pipe.send(_train(epoch, rank, gradients))


def _train(epoch: Epoch, rank: int, gradients: _SharedGradients) -> Trained:
    import torch

    from benchmarks.training_time.workloads import WORKLOADS
    from evenload.ray_trainer.reading.reader import DatasetReader

    workload = WORKLOADS[epoch.workload]
    torch.manual_seed(0)
    model = workload.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reader = DatasetReader(
        epoch.manifest,
        global_batch_size=workload.batch_size,
        rank=rank,
        world_size=NUM_RANKS,
        connection=epoch.connection,
        hold_whole=False,
    )
    reader.adopt_plan({**reader.state_dict()["plan"], "num_lanes": NUM_LANES})
    assert reader.state_dict()["plan"]["num_lanes"] == NUM_LANES
    gradients.wait_for_all()
    begun_s = time.perf_counter()
    for batch in reader:
        optimizer.zero_grad()
        workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        gradients.average(model.parameters())
        optimizer.step()
    gradients.wait_for_all()
    seconds = time.perf_counter() - begun_s
    reader.close()
    return Trained(seconds, reader.num_wire_bytes)
