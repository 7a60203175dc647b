"""The order in which a dataset's samples are written: shuffled once, by seed.

A sample's place is decided by an integer hash of (seed, sample), sorted. The hash is our own (splitmix64),
not NumPy's random streams: those are promised only for one build of NumPy, and a loader that is killed and
started again after an upgrade has to write the rest of the same order.

Invariants, checked in tests/unit/kafka_plugin/sources/test_order.py:
1. The order is a permutation of 0 .. num_samples - 1.
2. The same seed gives the same order for ever (golden values).

Source of the constants: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014),
as in java.util.SplittableRandom.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash each value: what splitmix64 gives as its first number when seeded with it."""
    hashed = values + _GOLDEN_GAMMA
    hashed = (hashed ^ (hashed >> np.uint64(30))) * _MIX_1
    hashed = (hashed ^ (hashed >> np.uint64(27))) * _MIX_2
    return hashed ^ (hashed >> np.uint64(31))


def written_order(num_samples: int, seed: int | None) -> npt.NDArray[np.int64]:
    """The source position of each sample, in the order in which samples are written.

    Args:
        num_samples: At least 0. Sorting takes 16 bytes a sample for a moment.
        seed: Any integer, taken modulo 2**64; None keeps the source's order.

    Returns:
        Positions, [num_samples] int64.
    """
    positions = np.arange(num_samples, dtype=np.int64)
    if seed is None:
        return positions
    key = splitmix64(np.array([seed % 2**64], dtype=np.uint64))
    return np.argsort(splitmix64(positions.view(np.uint64) ^ key), kind="stable").astype(np.int64, copy=False)
