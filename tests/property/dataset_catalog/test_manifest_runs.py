from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog.manifest import PartitionRuns, Run, merge_runs, runs_of_records
from evenload.dataset_catalog.runs import concatenate_runs


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    made, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 12))):
        run = Run(offset + draw(st.integers(0, 2)), draw(st.integers(1, 5)), draw(st.integers(1, 3)))
        made.append(run)
        offset = run.end_offset
    return made


def _records(runs: list[Run] | tuple[Run, ...]) -> dict[int, int]:
    """Samples by offset: what runs stand for."""
    return {run.first_offset + i: run.samples_per_record for run in runs for i in range(run.num_records)}


@given(runs())
def test_merging_keeps_every_record_and_leaves_no_two_runs_that_could_be_one(runs: list[Run]) -> None:
    merged = merge_runs(runs)
    assert _records(merged) == _records(runs)
    assert merge_runs(merged) == merged
    for a, b in itertools.pairwise(merged):
        assert a.end_offset < b.first_offset or a.samples_per_record != b.samples_per_record


@given(runs(), st.randoms(use_true_random=False))
def test_records_in_any_order_give_the_shortest_runs(runs: list[Run], random: object) -> None:
    records = list(_records(runs).items())
    random.shuffle(records)  # type: ignore[attr-defined]
    assert runs_of_records([o for o, _ in records], [k for _, k in records]) == merge_runs(runs)


@given(runs())
def test_runs_survive_arrays_pickling_and_tuples(runs: list[Run]) -> None:
    made = PartitionRuns(3, runs)
    assert made.runs == tuple(runs)
    assert made == PartitionRuns.from_arrays(3, *made.columns) == pickle.loads(pickle.dumps(made))
    assert hash(made) == hash(PartitionRuns(3, runs))
    assert made.num_samples == sum(_records(runs).values())
    assert made.num_records == len(_records(runs))
    assert made.end_offset == max(_records(runs), default=-1) + 1


@given(st.lists(runs(), max_size=4))
def test_positions_in_manifest_order_count_through_partitions_runs_and_rows(many: list[list[Run]]) -> None:
    arrays = concatenate_runs([PartitionRuns(2 * number, each) for number, each in enumerate(many)])
    flat = [(2 * number, run) for number, each in enumerate(many) for run in each]
    assert arrays.partition.tolist() == [partition for partition, _ in flat]
    assert arrays.num_samples.tolist() == [run.num_samples for _, run in flat]
    expected = np.cumsum([0] + [run.num_samples for _, run in flat])[:-1]
    assert arrays.first_sample.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "bad",
    [
        [Run(-1, 1, 1)],
        [Run(0, 0, 1)],
        [Run(0, 1, 0)],
        [Run(0, 2, 1), Run(1, 1, 1)],
        [Run(5, 1, 1), Run(0, 1, 1)],
    ],
)
def test_impossible_runs_are_refused(bad: list[Run]) -> None:
    with pytest.raises(ValueError, match="ascend without overlap"):
        PartitionRuns(0, bad)


def test_an_offset_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        runs_of_records([4, 4], [1, 1])


def test_runs_cannot_be_changed() -> None:
    made = PartitionRuns(0, [Run(0, 1, 1)])
    with pytest.raises(AttributeError, match="immutable"):
        made.partition = 1
    with pytest.raises(ValueError, match="read-only"):
        made.first_offset[0] = 7
