from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog.extents import concatenate_extents
from evenload.dataset_catalog.manifest import Extent, PartitionExtents, extents_of_records, merge_extents


@st.composite
def extents(draw: st.DrawFn) -> list[Extent]:
    made, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 12))):
        extent = Extent(offset + draw(st.integers(0, 2)), draw(st.integers(1, 5)), draw(st.integers(1, 3)))
        made.append(extent)
        offset = extent.end_offset
    return made


def _records(extents: list[Extent] | tuple[Extent, ...]) -> dict[int, int]:
    """Samples by offset: what extents stand for."""
    return {
        extent.first_offset + i: extent.samples_per_record
        for extent in extents
        for i in range(extent.num_records)
    }


@given(extents())
def test_merging_keeps_every_record_and_leaves_no_two_that_could_be_one(
    extents: list[Extent],
) -> None:
    merged = merge_extents(extents)
    assert _records(merged) == _records(extents)
    assert merge_extents(merged) == merged
    for a, b in itertools.pairwise(merged):
        assert a.end_offset < b.first_offset or a.samples_per_record != b.samples_per_record


@given(extents(), st.randoms(use_true_random=False))
def test_records_in_any_order_give_the_shortest_extents(extents: list[Extent], random: object) -> None:
    records = list(_records(extents).items())
    random.shuffle(records)  # type: ignore[attr-defined]
    assert extents_of_records([o for o, _ in records], [k for _, k in records]) == merge_extents(extents)


@given(extents())
def test_extents_survive_arrays_pickling_and_tuples(extents: list[Extent]) -> None:
    made = PartitionExtents(3, extents)
    assert made.extents == tuple(extents)
    assert made == PartitionExtents.from_arrays(3, *made.columns) == pickle.loads(pickle.dumps(made))
    assert hash(made) == hash(PartitionExtents(3, extents))
    assert made.num_samples == sum(_records(extents).values())
    assert made.num_records == len(_records(extents))
    assert made.end_offset == max(_records(extents), default=-1) + 1


@given(st.lists(extents(), max_size=4))
def test_positions_in_manifest_order_count_through_partitions_and_extents(
    many: list[list[Extent]],
) -> None:
    arrays = concatenate_extents([PartitionExtents(2 * number, each) for number, each in enumerate(many)])
    flat = [(2 * number, extent) for number, each in enumerate(many) for extent in each]
    assert arrays.partition.tolist() == [partition for partition, _ in flat]
    assert arrays.num_samples.tolist() == [extent.num_samples for _, extent in flat]
    expected = np.cumsum([0] + [extent.num_samples for _, extent in flat])[:-1]
    assert arrays.first_sample.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "bad",
    [
        [Extent(-1, 1, 1)],
        [Extent(0, 0, 1)],
        [Extent(0, 1, 0)],
        [Extent(0, 2, 1), Extent(1, 1, 1)],
        [Extent(5, 1, 1), Extent(0, 1, 1)],
    ],
)
def test_impossible_extents_are_refused(bad: list[Extent]) -> None:
    with pytest.raises(ValueError, match="ascend without overlap"):
        PartitionExtents(0, bad)


def test_an_offset_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        extents_of_records([4, 4], [1, 1])


def test_runs_cannot_be_changed() -> None:
    made = PartitionExtents(0, [Extent(0, 1, 1)])
    with pytest.raises(AttributeError, match="immutable"):
        made.partition = 1
    with pytest.raises(ValueError, match="read-only"):
        made.first_offset[0] = 7
