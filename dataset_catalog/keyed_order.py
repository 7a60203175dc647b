"""Orders that a key decides: the same on every machine, for every version of NumPy, for ever.

A stream is SplitMix64 (dataset_catalog/splitmix64.py), started at a state folded from (purpose, seed, epoch).
The key of item number i is the stream's output number i, found without computing the ones before it. Items
are put in ascending order of their keys.

Invariants, checked in tests/unit/dataset_catalog/test_keyed_order.py:
1. Keys are those of the published SplitMix64, and golden orders do not change.
2. Within one stream no two items have the same key (the finalizer is a bijection and the increment is odd),
   so any sort gives the order a stable one would give.

Read next: ray_trainer/planning/lanes.py and resume/epoch_sampler.py, which use it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.splitmix64 import INCREMENT, WORD_MAX, mix_in_place, next_output

# What a stream is for; two purposes never share keys. Part of the plan version.
BLOCK_ORDER: Final = 1
SAMPLE_ORDER: Final = 2
SAMPLE_SEED: Final = 3

SEED_MAX: Final = WORD_MAX


def stream_state(purpose: int, seed: int, epoch: int) -> int:
    """The start of the stream for one purpose, seed and epoch.

    Args:
        purpose: one of this module's constants.
        seed: 0 to 2**64 - 1.
        epoch: 0 to 2**64 - 1.

    Returns:
        A state from 0 to 2**64 - 1: each word in turn is XORed in, and the first SplitMix64 output of that
        is the next state.
    """
    state = 0
    for name, word in (("purpose", purpose), ("seed", seed), ("epoch", epoch)):
        if not 0 <= word <= WORD_MAX:
            raise ValueError(f"{name} is {word}; it must be from 0 to 2**64 - 1")
        state = next_output(state ^ word)
    return state


def keys_of_range(state: int, num_items: int) -> npt.NDArray[np.uint64]:
    """Keys of items 0 to num_items - 1: [num_items] uint64."""
    return _outputs(np.arange(1, num_items + 1, dtype=np.uint64), state)


def keys_of(state: int, items: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Keys of the given items (each at least 0), in any order and without their predecessors."""
    keys = items.astype(np.uint64)
    keys += np.uint64(1)
    return _outputs(keys, state)


def shuffled(state: int, num_items: int) -> npt.NDArray[np.int32]:
    """Items 0 to num_items - 1 in the order of their keys: [num_items] int32."""
    if num_items > np.iinfo(np.int32).max:
        raise ValueError(f"{num_items} items are too many to order; at most {np.iinfo(np.int32).max}")
    # No two keys are equal, so this is the stable order; asking for kind="stable" costs five times as much.
    return np.argsort(keys_of_range(state, num_items)).astype(np.int32)


def sample_seeds(seed: int, epoch: int, index: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A seed for the random choices that belong to a sample, such as its augmentation.

    It depends on (seed, epoch, sample) alone, so not on rank, world size or batch.

    Args:
        seed: the run's seed, 0 to 2**64 - 1.
        epoch: 0 or more.
        index: positions in manifest order, [n] int64.

    Returns:
        [n] uint64.
    """
    return keys_of(stream_state(SAMPLE_SEED, seed, epoch), index)


def _outputs(number: npt.NDArray[np.uint64], state: int) -> npt.NDArray[np.uint64]:
    """The stream's outputs of these numbers (from 1), in their place."""
    number *= np.uint64(INCREMENT)
    number += np.uint64(state)
    return mix_in_place(number)
