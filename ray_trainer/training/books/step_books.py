"""One rank's account of steps: the one that is open, and those not yet handed to the ledger.

Read next: ledger.py, where the accounts end up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from evenload.ray_trainer.training.books.ledger import StepEntry
from evenload.ray_trainer.training.model import DeferredSum

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
        self._deferred: DeferredSum | None = None

    def add_loss(self, loss: torch.Tensor) -> None:
        loss = loss.detach().double()
        self._loss = loss if self._loss is None else self._loss + loss

    def defer_loss(self) -> None:
        """The step has ended: nothing is added any more."""
        zero = torch.zeros((), dtype=torch.float64)
        self._deferred = DeferredSum(self._loss if self._loss is not None else zero)
        self._loss = None

    def loss_sum(self) -> float:
        """This rank's sum of losses, of a step that has ended; waits for the device."""
        assert self._deferred is not None
        return self._deferred.value()

    def mean_loss(self) -> float:
        """This rank's part of the step's mean loss."""
        return self.loss_sum() / max(self.count, 1.0)


class StepBooks:
    """Steps since the last checkpoint, in order. `add` and `take`: training thread."""

    def __init__(self) -> None:
        self._steps: list[tuple[OpenStep, _Int64Array, _Int64Array]] = []

    def add(self, step: OpenStep) -> None:
        """A step has ended. What was planned is written down, and what the records really held."""
        step.defer_loss()
        index, number = (_int64(each) for each in (step.batch.index, step.batch.number))
        step.batch = None
        self._steps.append((step, index, number))

    def take(self) -> Callable[[], Sequence[StepEntry]]:
        """Close the account; the entries are made when they are asked for, on any thread."""
        steps, self._steps = self._steps, []
        return lambda: [
            StepEntry(s.number, s.epoch, s.start, s.stop, s.count, s.loss_sum(), index, number)
            for s, index, number in steps
        ]


def _int64(positions: torch.Tensor) -> _Int64Array:
    return positions.cpu().numpy().astype(np.int64)
