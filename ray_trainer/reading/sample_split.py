"""A part of a dataset's samples, chosen by chance but always the same ones.

Each sample draws a number from (seed, its position in manifest order); the positions of a dataset version
never change, so neither do the parts. `split=(0.9, 7)` takes the samples that draw below 0.9, and
`split=(-0.1, 7)` exactly the others: as with indices, a negative fraction counts from the end. The size of a
part is therefore only about that fraction.

A part is planned like a dataset of its own: its table has only the chosen samples of each block (blocks
without any are left out), so each of them comes exactly once an epoch.

Invariants, checked in tests/property/ray_trainer/reading/test_sample_split.py:
1. (f, s) and (f - 1, s) are disjoint, and together they are everything.
2. Positions in the part's own order and in manifest order translate both ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog import keyed_order
from evenload.ray_trainer.planning.blocks import BlockTable

_PURPOSE: Final = 100  # of the stream of random numbers; dataset_catalog/keyed_order.py has the others
_SCALE: Final = 1 << 32
_CHUNK_SAMPLES: Final = 1 << 20

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleSplit:
    """Which samples; a value, equal when the samples are.

    Attributes:
        fraction: above 0 and below 1 for the samples that draw less; above -1 and below 0 for those that draw
            at least 1 + fraction.
        seed: 0 to 2**64 - 1.
    """

    fraction: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < abs(self.fraction) < 1:
            raise ValueError(
                f"split's fraction is {self.fraction}; it must be between 0 and 1, or between -1 and 0 for "
                "the samples that the positive fraction leaves"
            )
        if not 0 <= self.seed <= keyed_order.SEED_MAX:
            raise ValueError(f"split's seed is {self.seed}; it must be from 0 to 2**64 - 1")

    def selects(self, index: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each sample (position in manifest order) belongs to the part: [n] bool."""
        state = keyed_order.stream_state(_PURPOSE, self.seed, 0)
        draws = keyed_order.keys_of(state, index) >> np.uint64(32)
        # In integers, so that 1 - 0.8 and 0.2 meet at the same place.
        threshold = round(abs(self.fraction) * _SCALE)
        if self.fraction > 0:
            return draws < np.uint64(threshold)
        return draws >= np.uint64(_SCALE - threshold)


class SplitTable:
    """The blocks of a part: a table to plan with, and the way back to the whole dataset.

    Args:
        full: the dataset's blocks.
        split: the part.

    Attributes:
        table: of the part.
        first_index: [num_blocks of the part] int64, position in manifest order of each whole block's first
            sample.

    Raises:
        ValueError: the part has no sample.
    """

    def __init__(self, full: BlockTable, split: SampleSplit) -> None:
        self._full = full
        self._split = split
        counts = _count_selected(full, split)
        self._full_block = np.flatnonzero(counts)
        self.first_index = full.first_sample[self._full_block]
        if not len(self._full_block):
            raise ValueError(f"{split} selects none of {full.num_samples} samples")
        first_sample = np.zeros(len(self._full_block) + 1, dtype=np.int64)
        np.cumsum(counts[self._full_block], out=first_sample[1:])
        self.table = BlockTable(
            partition=full.partition[self._full_block],
            offset=full.offset[self._full_block],
            num_records=full.num_records[self._full_block],
            first_sample=first_sample,
        )

    def rows_of(self, block: int) -> Int64Array:
        """Rows, within the whole block, of the part's samples in one of its blocks."""
        first, end = self._bounds(block)
        return np.flatnonzero(self._split.selects(np.arange(first, end)))

    def num_full_rows(self, block: int) -> int:
        """Samples in the whole block."""
        first, end = self._bounds(block)
        return end - first

    def index_of(self, block: int) -> Int64Array:
        """Positions in manifest order of the part's samples in one of its blocks."""
        return self.rows_of(block) + self._bounds(block)[0]

    def all_index(self) -> Int64Array:
        """Positions in manifest order of all the part's samples; 8 bytes for each."""
        return np.flatnonzero(self._split.selects(np.arange(self._full.num_samples)))

    def _bounds(self, block: int) -> tuple[int, int]:
        full_block = self._full_block[block]
        return int(self._full.first_sample[full_block]), int(self._full.first_sample[full_block + 1])


def _count_selected(full: BlockTable, split: SampleSplit) -> Int64Array:
    """How many samples of each block belong to the part."""
    counts = np.zeros(full.num_blocks, dtype=np.int64)
    for start in range(0, full.num_samples, _CHUNK_SAMPLES):
        index = np.arange(start, min(start + _CHUNK_SAMPLES, full.num_samples))
        selected = index[split.selects(index)]
        counts += np.bincount(full.block_of(selected), minlength=full.num_blocks)
    return counts
