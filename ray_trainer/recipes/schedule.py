"""The learning rate over a run: up, then down, by how much of the run is done and not by steps counted.

Where a run stands is what the reader says (epoch and samples). So a run that goes on with another global
batch, more epochs or another highest rate has at once the rate that belongs to where it stands, and an
uninterrupted run and a resumed one have the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

import torch

from evenload.ray_trainer.planning.cursor import Cursor

__all__ = ["Schedule", "rate_factor"]

_FIRST: Final = 0.1  # the factor at the very beginning: a step with none would be wasted
_LAST: Final = 0.01


class _Reader(Protocol):
    @property
    def cursor(self) -> Cursor: ...

    @property
    def num_samples(self) -> int: ...


class Schedule:
    """Sets what the optimizer is told by options: the learning rate, and each group's weight decay.

    A checkpoint holds the optimizer's settings as they were; `step` after resuming makes them what is asked
    for now.

    Args:
        optimizer: As it was made, with the weight decays asked for.
        highest: The highest learning rate, above 0.
        epochs: Of the whole run.
        warmup_share: Share of the run in which the rate rises, 0 or more, below 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        reader: _Reader,
        *,
        highest: float,
        epochs: int,
        warmup_share: float,
    ) -> None:
        self._optimizer = optimizer
        self._reader = reader
        self._highest = highest
        self._epochs = epochs
        self._warmup_share = warmup_share
        self._weight_decays = [group["weight_decay"] for group in optimizer.param_groups]
        self.step()

    def step(self) -> None:
        """Make the settings those of the next optimizer step. Doing it twice is nothing."""
        cursor = self._reader.cursor
        done = (cursor.epoch + cursor.samples_consumed / self._reader.num_samples) / self._epochs
        rate = self._highest * rate_factor(done, self._warmup_share)
        for group, weight_decay in zip(self._optimizer.param_groups, self._weight_decays, strict=True):
            group["lr"], group["weight_decay"] = rate, weight_decay

    def state_dict(self) -> dict[str, Any]:
        """Nothing: all follows from where the reader stands."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """There is nothing to load."""
        del state


def rate_factor(done: float, warmup_share: float) -> float:
    """What the highest rate is multiplied by: linearly up to 1, then as a cosine down to a hundredth.

    Args:
        done: Share of the run that is done, 0 to 1; beyond (a run cut to fewer epochs) is as 1.
    """
    if done < warmup_share:
        return _FIRST + (1 - _FIRST) * done / warmup_share
    falling = min(1.0, (done - warmup_share) / (1 - warmup_share))
    return _LAST + (1 - _LAST) * (1 + math.cos(math.pi * falling)) / 2
