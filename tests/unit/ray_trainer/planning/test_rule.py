"""The rule of a run: size of blocks, number of lanes, what is held whole, what the fingerprint covers."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest, Extent, PartitionExtents, encode_schema
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.rule import (
    PlanRule,
    choose_rule,
    earlier_rule,
    plan_facts,
    plan_fingerprint,
    target_block_bytes,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def make_manifest(
    *, num_records: int, samples_per_record: int = 1, record_bytes: int = 256 * KIB, encoding: str = "packed"
) -> DatasetManifest:
    extents = [Extent(0, num_records, samples_per_record)] if num_records else []
    return DatasetManifest(
        name="d",
        version=1,
        topic="d-1",
        topic_id="id",
        encoding=encoding,
        value_format="arrow",
        schema_ipc=encode_schema(pa.schema([("x", pa.int64())])),
        features={"x": "int64"},
        samples_per_record=samples_per_record,
        partitions=(PartitionExtents(0, extents),),
        num_samples=num_records * samples_per_record,
        num_records=num_records,
        num_bytes=num_records * record_bytes,
        checksum="0" * 32,
        shuffle_seed=None,
        load_id="0" * 16,
        source={},
        created_at_s=0.0,
    )


@pytest.mark.parametrize(
    ("dataset_bytes", "block_bytes"),
    [
        (0, 16 * KIB),
        (400_000, 16 * KIB),  # CoLA
        (16_384_000, 16 * KIB),
        (100_000_000, 100_000),
        (256 * MIB, 256 * KIB),
        (100 * GIB, 256 * KIB),
        (1_000_000 * 256 * KIB, 256 * KIB),
        (1_000_000 * MIB, MIB),
        (100_000 * GIB, 4 * MIB),
    ],
)
def test_blocks_grow_with_the_dataset_within_limits(dataset_bytes: int, block_bytes: int) -> None:
    assert target_block_bytes(dataset_bytes) == block_bytes


def test_a_dataset_of_128_mib_is_held_whole_and_a_larger_one_is_not() -> None:
    assert choose_rule(make_manifest(num_records=512)).whole
    assert not choose_rule(make_manifest(num_records=513)).whole


def test_whole_can_be_asked_for_and_refused() -> None:
    assert choose_rule(make_manifest(num_records=5000), whole=True).whole
    assert not choose_rule(make_manifest(num_records=5), whole=False).whole


@pytest.mark.parametrize(
    ("max_workers", "num_lanes"), [(1, 384), (384, 384), (385, 768), (768, 768), (1000, 1152)]
)
def test_lanes_are_384_or_the_multiple_that_serves_the_workers(max_workers: int, num_lanes: int) -> None:
    manifest = make_manifest(num_records=5000, samples_per_record=85)
    assert choose_rule(manifest, max_workers=max_workers).num_lanes == num_lanes


@pytest.mark.parametrize(
    ("record_bytes", "num_lanes"), [(MIB, 384), (2 * MIB, 192), (4 * MIB, 128), (5 * MIB, 96), (600 * MIB, 1)]
)
def test_open_blocks_stay_within_512_mib_with_a_divisor_of_the_lanes(
    record_bytes: int, num_lanes: int
) -> None:
    rule = choose_rule(make_manifest(num_records=5000, samples_per_record=85, record_bytes=record_bytes))
    assert 384 % rule.num_lanes == 0
    assert rule.num_lanes * record_bytes <= max(512 * MIB, record_bytes)
    assert rule.num_lanes == num_lanes


def test_lanes_that_would_hold_next_to_nothing_are_not_made() -> None:
    assert choose_rule(make_manifest(num_records=1), whole=False).num_lanes == 1
    assert choose_rule(make_manifest(num_records=0), whole=False).num_lanes == 1
    assert choose_rule(make_manifest(num_records=25), whole=False).num_lanes == 24
    assert choose_rule(make_manifest(num_records=1, samples_per_record=300), whole=False).num_lanes == 16
    assert choose_rule(make_manifest(num_records=27, samples_per_record=317), whole=False).num_lanes == 384


def test_records_of_one_sample_are_counted_in_blocks_of_many() -> None:
    manifest = make_manifest(num_records=10_000, record_bytes=KIB, encoding="record")  # 10 MB: 16 KiB blocks
    rule = choose_rule(manifest, whole=False)
    assert rule.block_bytes == 16 * KIB
    assert rule.num_lanes == 384  # of 625 blocks


@pytest.mark.parametrize(("whole", "shuffle"), [(True, True), (False, False), (True, False)])
def test_held_whole_or_unshuffled_there_is_one_lane(whole: bool, shuffle: bool) -> None:
    rule = choose_rule(make_manifest(num_records=5000), whole=whole, shuffle=shuffle)
    assert (rule.num_lanes, rule.whole, rule.shuffle) == (1, whole, shuffle)
    with pytest.raises(ValueError, match="has one lane"):
        dataclasses.replace(rule, num_lanes=2)


def test_a_rule_survives_json_and_another_plan_version_is_refused() -> None:
    rule = choose_rule(make_manifest(num_records=5000))
    assert PlanRule.from_dict(rule.to_dict()) == rule
    with pytest.raises(ValueError, match="plan version 99"):
        PlanRule.from_dict({**rule.to_dict(), "plan_version": 99})


def test_the_fingerprint_covers_everything_that_decides_the_order() -> None:
    rule = choose_rule(make_manifest(num_records=5000))
    facts = plan_facts("abc", 7, rule)
    others = [
        plan_facts("abd", 7, rule),
        plan_facts("abc", 8, rule),
        plan_facts("abc", 7, dataclasses.replace(rule, num_lanes=192)),
        plan_facts("abc", 7, dataclasses.replace(rule, block_bytes=5)),
        plan_facts("abc", 7, dataclasses.replace(rule, num_lanes=1, whole=True)),
        plan_facts("abc", 7, dataclasses.replace(rule, num_lanes=1, shuffle=False)),
        {**facts, "plan_version": 2},
    ]
    fingerprints = {plan_fingerprint(each) for each in (facts, *others)}
    assert len(fingerprints) == len(others) + 1
    assert plan_fingerprint(facts) == plan_fingerprint(dict(reversed(facts.items())))


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="max_workers is 0"):
        choose_rule(make_manifest(num_records=1), max_workers=0)


FACTS = {"manifest_fingerprint": "f", "seed": 7}
RULE = PlanRule(num_lanes=12, block_bytes=5000, whole=False, shuffle=True)


@pytest.mark.parametrize(
    "stored",
    [
        {"num_lanes": -1},
        {"num_lanes": 10**12},
        {"num_lanes": True},
        {"num_lanes": 2.0},
        {"num_lanes": "384"},
        {"num_lanes": None},
        {"block_bytes": 0},
        {"block_bytes": 10**30},
        {"whole": 1},
        {"whole": True},
        {"shuffle": "no"},
        {"plan_version": 2},
        {"plan_version": [1]},
    ],
)
def test_a_stored_rule_that_makes_no_sense_is_refused(stored: dict[str, object]) -> None:
    fields = RULE.to_dict() | stored
    with pytest.raises(ValueError):
        PlanRule.from_dict(fields)
    assert earlier_rule(FACTS | fields, FACTS | RULE.to_dict(), asked={"shuffle": True}) is None


def test_a_stored_rule_without_all_its_fields_is_refused() -> None:
    for name in RULE.to_dict():
        fields = RULE.to_dict()
        del fields[name]
        with pytest.raises(ValueError, match=f"without {name}"):
            PlanRule.from_dict(fields)


def test_an_earlier_rule_is_gone_on_with_where_only_the_program_chose_otherwise() -> None:
    then = FACTS | RULE.to_dict()
    for chosen in ({"num_lanes": 384}, {"block_bytes": 7}, {"num_lanes": 1, "whole": True}):
        assert earlier_rule(then, FACTS | RULE.to_dict() | chosen, asked={"shuffle": True}) == RULE
    asked = {"shuffle": True, "whole": True}
    assert earlier_rule(then, FACTS | RULE.to_dict() | {"num_lanes": 1, "whole": True}, asked=asked) is None
    for other in ({"seed": 8}, {"manifest_fingerprint": "g"}, {"split": [0.5, 1]}, {"shuffle": False}):
        assert earlier_rule(then, then | other, asked={"shuffle": True}) is None


def batches_manifest(num_batches: int, records_per_batch: int, last: int) -> DatasetManifest:
    """Single samples of 1,000 bytes in batches that touch each other, of which each is an extent."""
    lengths = [records_per_batch] * num_batches + [last]
    extents = [Extent(sum(lengths[:at]), length, 1) for at, length in enumerate(lengths)]
    manifest = make_manifest(num_records=sum(lengths), record_bytes=1000, encoding="record")
    return manifest.model_copy(update={"partitions": (PartitionExtents(0, extents),)})


@pytest.mark.parametrize("records_per_batch", [200, 240, 262, 300, 400, 4000])
def test_no_block_cuts_a_batch_of_single_samples(records_per_batch: int) -> None:
    manifest = batches_manifest(1500, records_per_batch, 7)

    table = BlockTable.from_manifest(manifest, block_bytes=choose_rule(manifest, whole=False).block_bytes)

    assert table.num_records.tolist() == [records_per_batch] * 1500 + [7]


def test_long_runs_of_single_samples_are_cut_into_blocks() -> None:
    manifest = make_manifest(num_records=400_000, record_bytes=1000, encoding="record")
    assert choose_rule(manifest, whole=False).block_bytes == target_block_bytes(400_000_000)
