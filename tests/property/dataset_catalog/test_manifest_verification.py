from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.dataset_catalog import verification
from evenload.dataset_catalog.manifest import DatasetManifest, Encoding, ValueFormat
from evenload.dataset_catalog.records.encoding import encode_records, encode_samples, record_header
from evenload.dataset_catalog.testing import LOAD_ID, PlacedRecord, make_batch, make_manifest, make_records
from evenload.dataset_catalog.verification import SampleSet, Verification, VerifyReport

NUM_ROWS = 43
Topic = list[tuple[int, int, bytes | None, bytes | None]]  # partition, offset, header, value
Formats = tuple[Encoding, ValueFormat]
FORMATS: list[Formats] = [("packed", "arrow"), ("record", "arrow"), ("record", "json")]


def _dataset(formats: Formats, seed: int) -> tuple[DatasetManifest, list[PlacedRecord]]:
    """Records over three partitions, in turn, with gaps."""
    chance, batch = random.Random(seed), make_batch(NUM_ROWS, seed=seed)
    records = make_records(batch, encoding=formats[0], value_format=formats[1])
    offsets, placed = dict.fromkeys(range(3), 0), []
    for record in records:
        partition = chance.randrange(3)
        offsets[partition] += chance.choice([1, 1, 1, 2])
        placed.append(PlacedRecord(partition, offsets[partition], record))
    fields = {"encoding": formats[0], "value_format": formats[1]}
    return make_manifest(batch, placed, **fields), placed


def _topic(placed: Sequence[PlacedRecord]) -> Topic:
    return [(each.partition, each.offset, each.record.header, each.record.value) for each in placed]


def _verify(manifest: DatasetManifest, topic: Topic) -> VerifyReport:
    checked = Verification(manifest)
    for partition, offset, header, value in sorted(topic, key=lambda at: at[:2]):
        checked.add(partition, offset, header, value)
    return checked.report()


def _clean(manifest: DatasetManifest) -> VerifyReport:
    return VerifyReport(manifest.id, NUM_ROWS, 0, 0, 0, 0, True)


def _drop(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    return topic[:which] + topic[which + 1 :], {"missing": placed[which].record.num_samples}


def _copy(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    partition, _, header, value = topic[which]
    return [*topic, (partition, 10_000, header, value)], {"repeated": placed[which].record.num_samples}


def _copy_without_header(
    topic: Topic, placed: list[PlacedRecord], which: int
) -> tuple[Topic, dict[str, int]]:
    return [*topic, (7, 0, None, topic[which][3])], {"extra": placed[which].record.num_samples}


def _move(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    _, _, header, value = topic[which]
    num_samples = placed[which].record.num_samples
    moved = [*topic[:which], *topic[which + 1 :], (7, 0, header, value)]
    return moved, {"missing": num_samples, "extra": num_samples}


def _damage(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    partition, offset, header, value = topic[which]
    assert value is not None
    broken = value[:-1] + bytes([value[-1] ^ 1])
    return _replaced(topic, which, (partition, offset, header, broken)), {
        "corrupt": placed[which].record.num_samples
    }


def _empty(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    partition, offset, header, _ = topic[which]
    return _replaced(topic, which, (partition, offset, header, None)), {
        "corrupt": placed[which].record.num_samples
    }


def _foreign_load(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    partition, offset, _, value = topic[which]
    assert value is not None
    header = record_header("f" * 16, placed[which].record.first_sample, value)
    return _replaced(topic, which, (partition, offset, header, value)), {
        "corrupt": placed[which].record.num_samples
    }


def _beyond_the_end(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    partition, offset, _, value = topic[which]
    assert value is not None
    header = record_header(LOAD_ID, NUM_ROWS, value)
    return _replaced(topic, which, (partition, offset, header, value)), {
        "corrupt": placed[which].record.num_samples
    }


def _stranger(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    return [*topic, (placed[which].partition, 20_000, None, b"hello")], {"extra": 1}


def _stranger_in_a_gap(topic: Topic, placed: list[PlacedRecord], which: int) -> tuple[Topic, dict[str, int]]:
    return [*topic, (placed[which].partition, 0, None, b"hello")], {"extra": 1}


def _replaced(topic: Topic, which: int, record: tuple[int, int, bytes | None, bytes | None]) -> Topic:
    return [*topic[:which], record, *topic[which + 1 :]]


Harm = Callable[[Topic, list[PlacedRecord], int], tuple[Topic, dict[str, int]]]
HARMS: list[Harm] = [
    _drop,
    _copy,
    _copy_without_header,
    _move,
    _damage,
    _empty,
    _foreign_load,
    _beyond_the_end,
    _stranger,
    _stranger_in_a_gap,
]


@pytest.mark.parametrize("formats", FORMATS)
@settings(max_examples=30)
@given(seed=st.integers(0, 999))
def test_a_topic_as_it_was_loaded_is_clean(formats: Formats, seed: int) -> None:
    manifest, placed = _dataset(formats, seed)
    report = _verify(manifest, _topic(placed))
    assert report == _clean(manifest)
    assert report.is_clean


@pytest.mark.parametrize("harm", HARMS)
@settings(max_examples=30)
@given(formats=st.sampled_from(FORMATS), seed=st.integers(0, 999), data=st.data())
def test_each_harm_is_counted_in_its_place(
    harm: Harm, formats: Formats, seed: int, data: st.DataObject
) -> None:
    manifest, placed = _dataset(formats, seed)
    which = data.draw(st.integers(0, len(placed) - 1))
    topic, counts = harm(_topic(placed), placed, which)
    report = _verify(manifest, topic)
    lost = counts.get("missing", 0) + counts.get("corrupt", 0)
    expected = replace(_clean(manifest), num_samples=NUM_ROWS - lost, checksum_matches=lost == 0, **counts)
    assert report == expected
    assert not report.is_clean


def test_records_are_read_one_by_one_where_one_of_many_cannot_be_read() -> None:
    manifest, placed = _dataset(("record", "json"), 1)
    topic = _topic(placed)
    garbage = b"no json at all"
    header = record_header(LOAD_ID, placed[20].record.first_sample, garbage)
    report = _verify(manifest, _replaced(topic, 20, (*topic[20][:2], header, garbage)))
    assert (report.corrupt, report.num_samples, report.missing) == (1, NUM_ROWS - 1, 0)


def test_a_record_with_fewer_samples_than_the_runs_say_is_corrupt() -> None:
    manifest, placed = _dataset(("packed", "arrow"), 1)
    topic = _topic(placed)
    first = placed[0].record
    value = encode_samples(make_batch(NUM_ROWS, seed=1).slice(0, first.num_samples - 1))
    header = record_header(LOAD_ID, first.first_sample, value)
    report = _verify(manifest, _replaced(topic, 0, (*topic[0][:2], header, value)))
    assert (report.corrupt, report.missing) == (first.num_samples, 0)


def test_a_sample_that_changed_on_its_way_to_kafka_fails_the_checksum() -> None:
    manifest, placed = _dataset(("record", "arrow"), 1)
    other = encode_records(make_batch(NUM_ROWS, seed=2).slice(3, 1), "arrow")[0]
    topic = _topic(placed)
    header = record_header(LOAD_ID, placed[3].record.first_sample, other)
    report = _verify(manifest, _replaced(topic, 3, (*topic[3][:2], header, other)))
    assert report == replace(_clean(manifest), checksum_matches=False)
    assert not report.is_clean


def test_the_same_samples_listed_twice_are_repeated_and_those_not_written_missing() -> None:
    batch = make_batch(10)
    records = make_records(batch)
    placed = [PlacedRecord(0, 0, records[0]), PlacedRecord(0, 1, records[0])]
    report = _verify(make_manifest(batch, placed), _topic(placed))
    assert (report.num_samples, report.repeated, report.missing, report.extra) == (5, 5, 5, 0)
    assert not report.checksum_matches


def test_more_records_than_are_held_together_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_PENDING_RECORDS", 3)
    manifest, placed = _dataset(("record", "arrow"), 5)
    assert _verify(manifest, _topic(placed)) == _clean(manifest)


@given(st.integers(0, 70), st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), max_size=12))
def test_a_sample_set_is_a_set(capacity: int, ranges: list[tuple[int, int]]) -> None:
    real: set[int] = set()
    bits, other = SampleSet(capacity), SampleSet(capacity)
    for first, count in ranges:
        added = set(range(first, first + count))
        if first + count > capacity:
            with pytest.raises(ValueError, match="not below"):
                bits.add_range(first, count)
            continue
        assert bits.add_range(first, count) == len(added & real)
        real |= added
    if capacity:
        other.add_range(0, capacity // 2)
    assert len(bits) == len(real)
    assert bits.num_common(other) == len(real & set(range(capacity // 2)))
