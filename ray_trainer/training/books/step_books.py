"""One rank's books while an attempt lasts: the open step, steps that no file holds yet, and the files.

A step's loss may still be computed by the device when the step ends. So an entry is made when it is written,
behind the loop, and the loop waits for no device.

Read next: part_files.py (the files), ledger.py (what an entry says).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from evenload.ray_trainer.training.books.ledger import StepEntry
from evenload.ray_trainer.training.books.part_files import RankFiles
from evenload.resume.state_copy import is_sharded
from evenload.resume.storage import RunStorage

__all__ = ["OpenStep", "StepBooks"]

_Int64Array = np.ndarray[Any, np.dtype[np.int64]]


class OpenStep:
    """A step while the loop does it.

    Attributes:
        batch: What the loop was handed.
        number: Of the step over the whole run, from 1.
        count: What the sum of losses over all ranks is divided by.
        epoch, start, stop: The step's place in the order, over all ranks.
    """

    def __init__(self, batch: Any, *, number: int, device: torch.device) -> None:
        self.batch = batch
        self.number = number
        self.device = device
        self.count = float(batch.global_num_samples)
        self.epoch: int = batch.cursor.epoch
        self.stop: int = batch.cursor.samples_consumed
        self.start: int = self.stop - batch.global_num_samples
        self._loss: torch.Tensor | None = None
        self._deferred: _DeferredSum | None = None

    def add_loss(self, loss: torch.Tensor) -> None:
        loss = loss.detach()
        if is_sharded(loss):
            loss = loss.full_tensor()
        loss = loss.double()
        self._loss = loss if self._loss is None else self._loss + loss

    def defer_loss(self) -> None:
        """The step has ended: nothing is added any more."""
        zero = torch.zeros((), dtype=torch.float64)
        self._deferred = _DeferredSum(self._loss if self._loss is not None else zero)
        self._loss = None

    def loss_sum(self) -> float:
        """This rank's sum of losses, of a step that has ended; waits for the device."""
        assert self._deferred is not None
        return self._deferred.value()

    def mean_loss(self) -> float:
        """This rank's part of the step's mean loss."""
        return self.loss_sum() / max(self.count, 1.0)


class StepBooks:
    """One rank's books of one attempt. `add` and `take` are for the thread that trains.

    Args:
        rank, world_size: The part of the data that it reads, and of how many.
        is_kept: Whether they are written: another rank may read the same part.
    """

    def __init__(
        self, storage: RunStorage, *, attempt: int, rank: int, world_size: int, is_kept: bool = True
    ) -> None:
        self._files = RankFiles(storage, attempt=attempt, rank=rank, world_size=world_size)
        self._is_kept = is_kept
        self._steps: list[tuple[OpenStep, _Int64Array, _Int64Array]] = []

    def add(self, step: OpenStep) -> None:
        """A step has ended. What was planned is written down, and what the records really held."""
        step.defer_loss()
        index, number = (_int64(each) for each in (step.batch.index, step.batch.number))
        step.batch = None
        self._steps.append((step, index, number))

    def take(self) -> Callable[[], None]:
        """Close the account: what is returned writes it, on the thread that writes."""
        steps, self._steps = self._steps, []
        if not self._is_kept:
            return lambda: None
        return lambda: self._files.write(
            [
                StepEntry(s.number, s.epoch, s.start, s.stop, s.count, s.loss_sum(), index, number)
                for s, index, number in steps
            ]
        )

    def join(self) -> None:
        """Make fewer files of many; on the thread that writes."""
        if self._is_kept:
            self._files.join()


class _DeferredSum:
    """A number that the device has yet to compute, to be asked for later without stopping the device now.

    Args:
        total: A scalar tensor; not changed after this.
    """

    def __init__(self, total: torch.Tensor) -> None:
        self._event: Any = None
        self._total = total
        if total.is_cuda:
            # Copied while the device works on: until the event has passed, what lies there is no loss.
            self._total = torch.empty((), dtype=total.dtype, pin_memory=True)
            self._total.copy_(total, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def value(self) -> float:
        """The number; waits for the device to get there."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._total)


def _int64(positions: torch.Tensor) -> _Int64Array:
    return positions.cpu().numpy().astype(np.int64)
