"""Orders that a key decides: the same on every machine, for every version of NumPy, for ever.

NumPy promises its random streams only for one build, so the order of an epoch comes from integer
arithmetic of our own: a stream is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) started at a state folded from (purpose, seed, epoch), and the key of item number
i is the stream's output number i, found without computing the ones before it. Items are put in ascending
order of their keys.

Invariants, checked in tests/unit/ray_trainer/planning/test_keyed_order.py:
1. Keys are those of the published SplitMix64, and golden orders do not change.
2. Within one stream no two items have the same key (the finalizer is a bijection and the increment is odd),
   so any sort gives the order a stable one would give.

Read next: lanes.py, which uses it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_MASK: Final = (1 << 64) - 1
_INCREMENT: Final = 0x9E3779B97F4A7C15
_FACTOR_1: Final = 0xBF58476D1CE4E5B9
_FACTOR_2: Final = 0x94D049BB133111EB

# What a stream is for; two purposes never share keys. Part of the plan version.
BLOCK_ORDER: Final = 1
SAMPLE_ORDER: Final = 2
SAMPLE_SEED: Final = 3

SEED_MAX: Final = _MASK


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
        if not 0 <= word <= _MASK:
            raise ValueError(f"{name} is {word}; it must be from 0 to 2**64 - 1")
        state = _mix((state ^ word) + _INCREMENT)
    return state


def keys_of_range(state: int, num_items: int) -> npt.NDArray[np.uint64]:
    """Keys of items 0 to num_items - 1: [num_items] uint64."""
    return _mix_in_place(np.arange(1, num_items + 1, dtype=np.uint64), state)


def keys_of(state: int, items: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Keys of the given items (each at least 0), in any order and without their predecessors."""
    keys = items.astype(np.uint64)
    keys += np.uint64(1)
    return _mix_in_place(keys, state)


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


def _mix(state: int) -> int:
    state &= _MASK
    state = ((state ^ (state >> 30)) * _FACTOR_1) & _MASK
    state = ((state ^ (state >> 27)) * _FACTOR_2) & _MASK
    return state ^ (state >> 31)


def _mix_in_place(keys: npt.NDArray[np.uint64], state: int) -> npt.NDArray[np.uint64]:
    """Turn output numbers (from 1) into outputs. In place: a million keys are 8 MB a copy."""
    keys *= np.uint64(_INCREMENT)
    keys += np.uint64(state)
    keys ^= keys >> np.uint64(30)
    keys *= np.uint64(_FACTOR_1)
    keys ^= keys >> np.uint64(27)
    keys *= np.uint64(_FACTOR_2)
    keys ^= keys >> np.uint64(31)
    return keys
