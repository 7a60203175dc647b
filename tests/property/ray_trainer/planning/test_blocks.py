"""Blocks hold every sample of a manifest, once, at its offset."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog.manifest import DatasetManifest, Extent, PartitionExtents, encode_schema
from evenload.ray_trainer.planning.blocks import BlockTable, records_per_block

# Gap before the extent, records, samples per record.
EXTENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.integers(1, 4)), max_size=8)


def make_manifest(
    partitions: dict[int, list[tuple[int, int, int]]], record_bytes: int, *, is_packed: bool
) -> DatasetManifest:
    parts = []
    for number, extents in sorted(partitions.items()):
        offset, placed = 0, []
        for gap, num_records, samples in extents:
            placed.append(Extent(offset + gap, num_records, samples if is_packed else 1))
            offset = placed[-1].end_offset
        parts.append(PartitionExtents(number, placed))
    num_records = sum(part.num_records for part in parts)
    return DatasetManifest(
        name="d",
        version=1,
        topic="d-1",
        topic_id="id",
        encoding="packed" if is_packed else "record",
        value_format="arrow",
        schema_ipc=encode_schema(pa.schema([("x", pa.int64())])),
        features={"x": "int64"},
        samples_per_record=4,
        partitions=tuple(parts),
        num_samples=sum(part.num_samples for part in parts),
        num_records=num_records,
        num_bytes=num_records * record_bytes,
        checksum="0" * 32,
        shuffle_seed=None,
        load_id="0" * 16,
        source={},
        created_at_s=0.0,
    )


@given(
    partitions=st.dictionaries(st.integers(0, 20), EXTENTS, max_size=4),
    record_bytes=st.integers(1, 300),
    block_bytes=st.integers(1, 5000),
    is_packed=st.booleans(),
)
def test_every_sample_is_in_one_block_at_its_record_and_row(
    partitions: dict[int, list[tuple[int, int, int]]], record_bytes: int, block_bytes: int, is_packed: bool
) -> None:
    manifest = make_manifest(partitions, record_bytes, is_packed=is_packed)
    table = BlockTable.from_manifest(manifest, block_bytes=block_bytes)
    in_manifest_order = [
        (part.partition, extent.first_offset + record, row)
        for part in manifest.partitions
        for extent in part.extents
        for record in range(extent.num_records)
        for row in range(extent.samples_per_record)
    ]
    in_blocks = []
    for block in range(table.num_blocks):
        num_samples = int(table.samples_in(np.array([block]))[0])
        one_each = int(table.num_records[block]) == num_samples
        assert one_each or table.num_records[block] == 1
        in_blocks += [
            (
                int(table.partition[block]),
                int(table.offset[block]) + (row if one_each else 0),
                0 if one_each else row,
            )
            for row in range(num_samples)
        ]
        assert num_samples >= 1
    assert in_blocks == in_manifest_order
    assert table.num_samples == manifest.num_samples
    everything = np.arange(table.num_samples)
    blocks = table.block_of(everything)
    assert np.all((table.first_sample[blocks] <= everything) & (everything < table.first_sample[blocks + 1]))


@given(num_records=st.integers(1, 10_000), limit=st.integers(1, 500))
def test_records_are_dealt_to_blocks_evenly(num_records: int, limit: int) -> None:
    one = np.ones(1, dtype=np.int64)
    table = BlockTable.from_extents(
        partition=one,
        first_offset=one,
        num_records=num_records * one,
        samples_per_record=one,
        records_per_block=limit,
    )
    assert table.num_records.max() <= limit
    assert table.num_records.max() - table.num_records.min() <= 1
    assert table.num_blocks == -(-num_records // limit)


def test_a_block_is_about_as_large_as_asked() -> None:
    assert records_per_block(16 << 10, num_records=1000, num_bytes=1_000_000) == 16
    assert records_per_block(10, num_records=1000, num_bytes=1_000_000) == 1
    assert records_per_block(1 << 30, num_records=1000, num_bytes=1_000_000) == 1000
    assert records_per_block(1, num_records=0, num_bytes=0) == 1
    with pytest.raises(ValueError, match="block_bytes is 0"):
        records_per_block(0, num_records=1, num_bytes=1)


def test_a_run_without_records_or_samples_is_refused() -> None:
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(ValueError, match="at least 1"):
        BlockTable.from_extents(partition=one, first_offset=one, num_records=0 * one, samples_per_record=one)
