"""A split is always the same samples, and its two parts are the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.reading.sample_split import SampleSplit, SplitTable


def table(num_records: int, samples_per_record: int) -> BlockTable:
    return BlockTable.from_extents(
        partition=np.array([0, 1]),
        first_offset=np.array([5, 9]),
        num_records=np.array([num_records, num_records]),
        samples_per_record=np.array([samples_per_record, 1]),
        records_per_block=7,
    )


@settings(max_examples=100)
@given(st.integers(1, 99), st.integers(0, 2**64 - 1), st.integers(1, 5000))
def test_the_parts_are_disjoint_and_together_everything(percent: int, seed: int, num_samples: int) -> None:
    index = np.arange(num_samples)
    first = SampleSplit(percent / 100, seed).selects(index)
    assert np.array_equal(SampleSplit(percent / 100 - 1, seed).selects(index), ~first)
    assert np.array_equal(SampleSplit(-(100 - percent) / 100, seed).selects(index), ~first)


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 99), st.integers(0, 9))
def test_a_parts_blocks_hold_exactly_its_samples(records: int, samples: int, percent: int, seed: int) -> None:
    full, split = table(records, samples), SampleSplit(percent / 100, seed)
    selected = np.flatnonzero(split.selects(np.arange(full.num_samples)))
    if not len(selected):
        with pytest.raises(ValueError, match="selects none"):
            SplitTable(full, split)
        return
    part = SplitTable(full, split)
    assert part.table.num_samples == len(selected)
    assert np.array_equal(part.all_index(), selected)
    by_block = [part.index_of(block) for block in range(part.table.num_blocks)]
    assert np.array_equal(np.concatenate(by_block), selected)
    assert [len(index) for index in by_block] == np.diff(part.table.first_sample).tolist()
    for block, index in enumerate(by_block):
        assert (part.rows_of(block) < part.num_full_rows(block)).all()
        assert len(np.unique(full.block_of(index))) == 1


def test_a_part_has_about_its_fraction_and_never_changes() -> None:
    split = SampleSplit(0.3, 7)
    chosen = split.selects(np.arange(100_000))
    assert 0.29 < chosen.mean() < 0.31
    assert np.flatnonzero(chosen)[:8].tolist() == [1, 2, 3, 4, 6, 19, 20, 23]


@pytest.mark.parametrize(("fraction", "seed"), [(0.0, 1), (1.0, 1), (-1.0, 1), (float("nan"), 1), (0.5, -1)])
def test_a_split_that_makes_no_sense_is_refused(fraction: float, seed: int) -> None:
    with pytest.raises(ValueError, match="split's"):
        SampleSplit(fraction, seed)
