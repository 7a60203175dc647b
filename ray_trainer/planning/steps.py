"""How an epoch is cut into steps, and a step into microbatches.

A step is the next G samples of the order (G: the global batch size), except that the last two share what is
left evenly: a last step of three samples has no right answer on four ranks. The size of a step depends only
on how many samples are left, so a run that goes on from any step cuts the rest as it would have been cut.

Invariants, checked in tests/property/ray_trainer/planning/test_steps.py:
1. Steps cover the rest of the epoch once, in order.
2. With R samples left, no step has fewer than min(R, ceil(G / 2)) samples.
3. All ranks of a step run the same number of microbatches, none of them empty.

Read next: ranks.py, which divides a step among ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from evenload.ray_trainer.errors import TooManyWorkersError


class Step(NamedTuple):
    """Samples start (inclusive) to stop (exclusive) of an epoch's order."""

    start: int
    stop: int

    @property
    def num_samples(self) -> int:
        return self.stop - self.start


def step_size(num_left: int, global_batch_size: int) -> int:
    """Samples in the next step, with `num_left` (at least 0) left in the epoch."""
    if global_batch_size < 1 or num_left < 0:
        raise ValueError(
            f"global_batch_size {global_batch_size} must be at least 1, {num_left} left at least 0"
        )
    if num_left >= 2 * global_batch_size:
        return global_batch_size
    if num_left > global_batch_size:
        return -(-num_left // 2)
    return num_left


def num_steps(num_left: int, global_batch_size: int) -> int:
    """Steps left in an epoch with `num_left` samples left."""
    step_size(num_left, global_batch_size)
    return -(-num_left // global_batch_size)


def steps(num_samples: int, global_batch_size: int, start: int = 0) -> Iterator[Step]:
    """The steps of an epoch of `num_samples` from sample `start` of its order on."""
    if not 0 <= start <= num_samples:
        raise ValueError(f"start is {start}; the epoch has samples 0 to {num_samples}")
    while start < num_samples:
        stop = start + step_size(num_samples - start, global_batch_size)
        yield Step(start, stop)
        start = stop


def num_full_steps(num_left: int, global_batch_size: int) -> int:
    """How many of the next steps have exactly G samples and are not one of the last two (or the last)."""
    step_size(num_left, global_batch_size)
    return max(0, num_left // global_batch_size - 1)


def smallest_step(num_left: int, global_batch_size: int) -> int:
    """Samples in the smallest step still to come; 0 when none is."""
    full = num_full_steps(num_left, global_batch_size)
    rest = num_left - full * global_batch_size
    return rest - step_size(rest, global_batch_size) or rest


def check_world_size(world_size: int, *, num_samples: int, global_batch_size: int) -> None:
    """Refuse more workers than can take part in whole epochs.

    Raises:
        TooManyWorkersError: more than half the global batch, or more than the samples of an epoch that is
            a single step.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; it must be at least 1")
    if world_size > global_batch_size // 2 and world_size > 1:
        raise TooManyWorkersError(
            world_size=world_size,
            largest_world_size=max(1, global_batch_size // 2),
            reason="the last two steps of an epoch share what is left of it evenly, so that none is tiny, "
            f"and then each can have as few as half the {global_batch_size} samples of a global batch",
            needed_batch_size=2 * world_size,
        )
    check_rest_of_epoch(world_size, num_left=num_samples, global_batch_size=global_batch_size)


def check_rest_of_epoch(world_size: int, *, num_left: int, global_batch_size: int) -> None:
    """Refuse more workers than the smallest step still to come in this epoch has samples.

    Raises:
        TooManyWorkersError: with the size of that step.
    """
    smallest = smallest_step(num_left, global_batch_size)
    if num_left and world_size > smallest:
        raise TooManyWorkersError(
            world_size=world_size,
            largest_world_size=smallest,
            reason=f"with {num_left} samples left in the epoch and a global batch of {global_batch_size}, "
            f"the smallest step has {smallest}",
        )


def num_microbatches(num_samples_step: int, world_size: int, max_size: int) -> int:
    """How many microbatches every rank runs in a step: ceil(ceil(n / W) / m), but never more than the rank
    with the fewest samples has.

    The bound matters only for max_size 1 and shares that differ: then one microbatch of the larger ranks
    has two samples, as an empty one has no right answer.
    """
    if not 1 <= world_size <= num_samples_step or max_size < 1:
        raise ValueError(
            f"a step of {num_samples_step} samples can't be divided among {world_size} ranks in microbatches "
            f"of at most {max_size}"
        )
    largest_share = -(-num_samples_step // world_size)
    return min(-(-largest_share // max_size), num_samples_step // world_size)


def microbatch_bounds(
    num_samples_rank: int, *, num_samples_step: int, world_size: int, max_size: int
) -> list[tuple[int, int]]:
    """The microbatches of one rank's share of a step, sizes equal to within one sample.

    Args:
        num_samples_rank: samples of this rank in the step: floor or ceil of num_samples_step / world_size.
        num_samples_step: samples of the step over all ranks.
        world_size: number of ranks, at most num_samples_step.
        max_size: most samples in a microbatch, at least 1 (see num_microbatches for the one exception).

    Returns:
        (start, stop) within the rank's share; as many on every rank of the step.
    """
    count = num_microbatches(num_samples_step, world_size, max_size)
    if not num_samples_step // world_size <= num_samples_rank <= -(-num_samples_step // world_size):
        raise ValueError(f"no rank of {world_size} has {num_samples_rank} of {num_samples_step} samples")
    bounds = [num_samples_rank * part // count for part in range(count + 1)]
    return list(itertools.pairwise(bounds))
