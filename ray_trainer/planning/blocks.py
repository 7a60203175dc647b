"""What can be fetched: the blocks of a dataset, as arrays.

A block is an offset range of one partition, fetched, shuffled and evicted as a whole. A packed record is a
block of its own; records of one sample each are taken together, as many as make about `block_bytes`. A block
never crosses a gap in the offsets: it lies within one extent of the manifest.

Samples are counted in manifest order: partitions ascending, then extents, then records, then rows.

Invariants, checked in tests/property/ray_trainer/planning/test_blocks.py:
1. Every sample of the manifest is in exactly one block; `first_sample` ascends from 0 to num_samples.
2. A block has one record, or records of one sample each; so row r of a block is row r of its record, or
   the record at offset + r.

Read next: rule.py, which chooses the size; lanes.py, which puts blocks in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evenload.dataset_catalog.manifest import DatasetManifest

# A manifest is not believed without end: planning takes about 100 bytes a block. A dataset of 10 TB,
# loaded with the largest records that the loader makes, has 2.5 million.
BLOCKS_MAX: Final = 1 << 22
_RECORDS_PER_BLOCK_MAX: Final = 1 << 18  # of records of a single byte, 256 KiB

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """The blocks of one dataset version, one entry each, in manifest order. Immutable; any thread may read.

    Attributes:
        partition: [num_blocks] int32.
        offset: [num_blocks] int64, of the block's first record.
        num_records: [num_blocks] int32; the block's offsets are offset to offset + num_records - 1.
        first_sample: [num_blocks + 1] int64, position of the block's first sample in manifest order; the last
            entry is the number of samples.
    """

    partition: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    num_records: npt.NDArray[np.int32]
    first_sample: npt.NDArray[np.int64]

    @classmethod
    def from_manifest(cls, manifest: DatasetManifest, *, block_bytes: int) -> BlockTable:
        """The blocks of a dataset.

        Args:
            manifest: of the dataset.
            block_bytes: about how large a block of records of one sample each gets, by the mean size of a
                record; at least 1. Records of many samples are blocks of their own whatever their size.
        """
        extents = manifest.extent_arrays()
        return cls.from_extents(
            partition=extents.partition,
            first_offset=extents.first_offset,
            num_records=extents.num_records,
            samples_per_record=extents.samples_per_record,
            records_per_block=records_per_block(
                block_bytes, num_records=manifest.num_records, num_bytes=manifest.num_bytes
            ),
        )

    @classmethod
    def from_extents(
        cls,
        *,
        partition: IntArray,
        first_offset: IntArray,
        num_records: IntArray,
        samples_per_record: IntArray,
        records_per_block: int = 1,
    ) -> BlockTable:
        """Cut extents into blocks.

        Args:
            partition: [num_extents], ascending.
            first_offset: [num_extents], ascending within a partition.
            num_records: [num_extents], at least 1.
            samples_per_record: [num_extents], at least 1.
            records_per_block: the most records in a block, for extents of one sample per record; an extent is
                cut evenly, so that its blocks differ by at most one record. Other extents have one record a
                block.

        Raises:
            ValueError: a count below 1, or more than BLOCKS_MAX blocks.
        """
        extents = [
            np.asarray(a, dtype=np.int64) for a in (partition, first_offset, num_records, samples_per_record)
        ]
        partition_of, offset_of, records_of, samples_of = extents
        if records_per_block < 1 or (len(records_of) and min(records_of.min(), samples_of.min()) < 1):
            raise ValueError("records_per_block, num_records and samples_per_record must be at least 1")
        num_blocks = np.where(samples_of == 1, -(-records_of // records_per_block), records_of)
        if (total := num_blocks.sum(dtype=np.float64)) > BLOCKS_MAX:
            raise ValueError(
                f"the dataset has {total:.0f} blocks, at most {BLOCKS_MAX} can be planned; load it with "
                "larger records, or as several datasets"
            )
        extent = np.repeat(np.arange(len(num_blocks)), num_blocks)
        block_in_extent = np.arange(len(extent)) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
        first_record = block_in_extent * records_of[extent] // num_blocks[extent]
        records = (block_in_extent + 1) * records_of[extent] // num_blocks[extent] - first_record
        first_sample = np.zeros(len(extent) + 1, dtype=np.int64)
        np.cumsum(records * samples_of[extent], out=first_sample[1:])
        return cls(
            partition=partition_of[extent].astype(np.int32),
            offset=offset_of[extent] + first_record,
            num_records=records.astype(np.int32),
            first_sample=first_sample,
        )

    @property
    def num_blocks(self) -> int:
        return len(self.offset)

    @property
    def num_samples(self) -> int:
        """Samples in the dataset."""
        return int(self.first_sample[-1])

    def samples_in(self, block: IntArray) -> npt.NDArray[np.int64]:
        """Number of samples of each given block."""
        return self.first_sample[block + 1] - self.first_sample[block]

    def block_of(self, index: IntArray) -> npt.NDArray[np.int64]:
        """The block that holds each given sample (position in manifest order)."""
        return np.searchsorted(self.first_sample, index, side="right") - 1


def records_per_block(block_bytes: int, *, num_records: int, num_bytes: int) -> int:
    """How many records of mean size make a block of about `block_bytes`; at least 1."""
    if block_bytes < 1:
        raise ValueError(f"block_bytes is {block_bytes}; it must be at least 1")
    taken = block_bytes * num_records // max(1, num_bytes)
    return max(1, min(num_records, taken, _RECORDS_PER_BLOCK_MAX))
