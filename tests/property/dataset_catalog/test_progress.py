from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog.errors import CorruptProgressError
from evenload.dataset_catalog.manifest import Extent, PartitionExtents, extents_of_records
from evenload.dataset_catalog.progress import LoadProgress, ProgressKey, fold_progress
from evenload.dataset_catalog.testing import make_progress

BEGIN = make_progress(
    version=2,
    load_id="00ff00ff00ff00ff",
    topic="flowers-2",
    updated_at_s=1000.0,
    facts={"seed": 0, "paths": ["a.csv"]},
)

# Partition and number of samples of each record, and after which records a transaction ends.
loads = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), st.booleans()), max_size=30)


def extents_at(num_samples: Mapping[int, int]) -> tuple[Extent, ...]:
    """Of records by offset, with so many samples each."""
    return extents_of_records(list(num_samples), list(num_samples.values()))


def _story(load: list[tuple[int, int, bool]]) -> tuple[list[LoadProgress], dict[int, dict[int, int]]]:
    """Progress records as a loader writes them, with a marker's gap after each transaction."""
    story, offsets = [BEGIN], dict.fromkeys(range(4), 0)
    placed: dict[int, dict[int, int]] = {}
    added: dict[int, dict[int, int]] = {}
    for number, (partition, num_samples, ends) in enumerate(load):
        added.setdefault(partition, {})[offsets[partition]] = num_samples
        placed.setdefault(partition, {})[offsets[partition]] = num_samples
        offsets[partition] += 1
        if ends or number == len(load) - 1:
            last = story[-1]
            story.append(
                replace(
                    last,
                    sequence=last.sequence + 1,
                    num_samples=last.num_samples + sum(sum(new.values()) for new in added.values()),
                    num_records=last.num_records + sum(map(len, added.values())),
                    extents={p: extents_at(new) for p, new in added.items()},
                    updated_at_s=last.updated_at_s + 1,
                    is_complete=number == len(load) - 1,
                )
            )
            offsets.update({p: offsets[p] + 1 for p in added})
            added = {}
    return story, placed


@given(loads)
def test_deltas_add_up_to_all_records_that_were_written(load: list[tuple[int, int, bool]]) -> None:
    story, placed = _story(load)
    state = fold_progress([LoadProgress.from_record(*record.to_record()) for record in story])
    assert state is not None
    assert state.last == story[-1]
    assert state.next_sequence == len(story)
    assert state.partitions == tuple(PartitionExtents(p, extents_at(at)) for p, at in sorted(placed.items()))


@given(loads.filter(lambda load: len(load) > 1), st.data())
def test_a_missing_delta_is_noticed_unless_it_is_the_last(
    load: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    story, _ = _story(load)
    gone = data.draw(st.integers(0, len(story) - 2))
    with pytest.raises(CorruptProgressError, match=f"record {gone} is missing"):
        fold_progress(story[:gone] + story[gone + 1 :])


@given(loads)
def test_what_stands_before_another_begin_was_dropped(load: list[tuple[int, int, bool]]) -> None:
    story, _ = _story(load)
    older = [replace(record, load_id="1" * 16, topic_id="other") for record in story]
    # Compaction may have taken the older begin away: the newer one has its key.
    assert fold_progress(older[1:] + story) == fold_progress(older + story) == fold_progress(story)


def test_no_records_are_no_load() -> None:
    assert fold_progress([]) is None


def test_records_of_another_load_are_refused() -> None:
    foreign = replace(BEGIN, sequence=1, load_id="2" * 16)
    with pytest.raises(CorruptProgressError, match="load_id '2222222222222222', the one before '00ff"):
        fold_progress([BEGIN, foreign])


def test_nothing_may_follow_a_complete_load() -> None:
    with pytest.raises(CorruptProgressError, match="after the load was complete"):
        fold_progress([replace(BEGIN, is_complete=True), replace(BEGIN, sequence=1)])


def test_totals_that_runs_do_not_give_are_refused() -> None:
    lying = replace(BEGIN, sequence=1, num_samples=9, num_records=1, extents={0: (Extent(0, 1, 8),)})
    with pytest.raises(CorruptProgressError, match="1 records and 8 samples, but its totals say 1 and 9"):
        fold_progress([BEGIN, lying])


def test_overlapping_runs_are_refused() -> None:
    one = replace(BEGIN, sequence=1, num_samples=2, num_records=2, extents={0: (Extent(0, 2, 1),)})
    two = replace(BEGIN, sequence=2, num_samples=3, num_records=3, extents={0: (Extent(1, 1, 1),)})
    with pytest.raises(CorruptProgressError, match="overlaps"):
        fold_progress([BEGIN, one, two])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"flowers", b"{}"),
        (b"\xff\xfe", b"{}"),
        (b"flowers@2/0", b"not json"),
        (b"flowers@2/0", b"[]"),
        (b"flowers@2/0", b'{"format": 2}'),
        (b"flowers@2/0", b'{"format": 1, "runs": {}}'),
        (b"flowers@2/1", BEGIN.to_record()[1]),
    ],
)
def test_what_is_no_progress_record_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(CorruptProgressError):
        LoadProgress.from_record(key, value)


def test_a_key_names_load_version_and_sequence() -> None:
    assert BEGIN.key.to_bytes() == b"flowers@2/0"
    assert ProgressKey.from_bytes(b"a.b@12/345") == ProgressKey("a.b", 12, 345)


def test_a_clock_behind_the_loaders_gives_no_negative_age() -> None:
    state = fold_progress([BEGIN])
    assert state is not None
    assert state.age_s(1002.5) == 2.5
    assert state.age_s(900.0) == 0.0
