"""The order in which a dataset's samples are written: shuffled once, by seed.

A sample's place is decided by an integer hash of (seed, sample), sorted. The hash is our own, not NumPy's
random streams: a loader that is killed and started again after an upgrade has to write the rest of the same
order (dataset_catalog/splitmix64.py).

Invariants, checked in tests/unit/kafka_plugin/sources/test_order.py:
1. The order is a permutation of 0 .. num_samples - 1.
2. The same seed gives the same order for ever (golden values).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.splitmix64 import INCREMENT, mix_in_place, next_output


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
    keys = positions.view(np.uint64) ^ np.uint64(next_output(seed))
    keys += np.uint64(INCREMENT)
    return np.argsort(mix_in_place(keys), kind="stable").astype(np.int64, copy=False)
