"""Epochs of a map-style dataset in orders that a seed decides, begun anywhere, shared by any number of ranks.

An epoch's order is that of keyed hashes of (seed, epoch), so nothing has to be remembered of it but how many
samples of it are done. Each step takes the next samples for all ranks together; rank r of W takes every W-th
of them, from number r on. So an epoch that was begun by two ranks is gone on with by three, and no sample
comes twice or not at all.

Where ranks share an epoch, its last step would leave some of them with fewer samples than others, or with
none, and they have to take as many steps as the others: what doesn't fill a step of all is left out.

Invariants, checked in tests/property/resume/test_epoch_sampler.py:
1. Over all ranks, an epoch gives each sample once, but for those that are left out at its end.
2. Wherever and with however many ranks it is gone on with: what was done and what follows are the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog import keyed_order

__all__ = ["EpochSampler"]


class EpochSampler:
    """A batch sampler for `torch.utils.data.DataLoader`: one rank's part of one epoch. For one thread.

    Args:
        num_samples: Of the dataset, at least 1.
        batch_size: Samples of a batch of one rank, at least 1.
        seed: 0 to 2**64 - 1.
        rank: Whose part, from 0.
        world_size: How many share an epoch.

    Raises:
        ValueError: A number is out of its range, or no step could be filled.
    """

    def __init__(
        self, num_samples: int, batch_size: int, *, seed: int, rank: int = 0, world_size: int = 1
    ) -> None:
        if batch_size < 1 or num_samples < 1:
            raise ValueError(f"{num_samples} samples in batches of {batch_size}: both have to be at least 1")
        if world_size > 1 and num_samples < batch_size * world_size:
            raise ValueError(
                f"{num_samples} samples don't fill one step of {world_size} ranks with {batch_size} each; "
                "use a smaller batch or fewer ranks"
            )
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self._rank = rank
        self._world_size = world_size
        keyed_order.stream_state(keyed_order.SAMPLE_ORDER, seed, 0)  # refuses a seed out of range now
        self._epoch: int | None = None  # until it is said which
        self._num_done = 0

    @property
    def step_samples(self) -> int:
        """Samples of a whole step, over all ranks."""
        return self.batch_size * self._world_size

    def begin(self, epoch: int, num_done: int) -> None:
        """What the next iteration gives: an epoch, from after so many of its samples on, over all ranks."""
        self._epoch = epoch
        self._num_done = num_done

    def samples_of(self, num_done: int) -> int:
        """How many samples the step has, over all ranks, that comes after so many of the epoch."""
        return min(self.step_samples, self.num_samples - num_done)

    def __len__(self) -> int:
        return sum(1 for _ in self._starts(0))

    def __iter__(self) -> Iterator[list[int]]:
        if self._epoch is None:
            raise RuntimeError(
                "a loader of CheckpointHook.loader is begun by CheckpointHook.steps, once for each epoch: "
                "give it the loader itself, and wrap what it gives (tqdm(hook.steps(loader)))"
            )
        epoch, self._epoch = self._epoch, None
        return self._batches(self._order_of(epoch), self._num_done)

    def _batches(self, order: npt.NDArray[np.int32], num_done: int) -> Iterator[list[int]]:
        for start in self._starts(num_done):
            step = order[start : start + self.step_samples]
            yield step[self._rank :: self._world_size].tolist()

    def _starts(self, num_done: int) -> range:
        whole = self.num_samples if self._world_size == 1 else self.num_samples - self.step_samples + 1
        return range(num_done, max(num_done, whole), self.step_samples)

    def _order_of(self, epoch: int) -> npt.NDArray[np.int32]:
        state = keyed_order.stream_state(keyed_order.SAMPLE_ORDER, self.seed, epoch)
        return keyed_order.shuffled(state, self.num_samples)
