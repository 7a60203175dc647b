from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest, Extent, PartitionExtents, parse_dataset_id
from evenload.dataset_catalog.testing import PlacedRecord, make_batch, make_manifest, make_records


def _manifest(**overrides: Any) -> DatasetManifest:
    batch = make_batch(12)
    placed = [PlacedRecord(number % 2, 10 + number, each) for number, each in enumerate(make_records(batch))]
    return make_manifest(batch, placed, **overrides)


def test_a_last_record_with_fewer_samples_is_an_extent_of_its_own() -> None:
    assert [p.extents for p in _manifest().partitions] == [
        (Extent(10, 1, 5), Extent(12, 1, 2)),
        (Extent(11, 1, 5),),
    ]


def test_a_manifest_knows_its_schema_and_its_id() -> None:
    manifest = _manifest()
    assert manifest.arrow_schema.equals(make_batch(1).schema, check_metadata=True)
    assert manifest.id == "flowers@1"


def test_a_manifest_survives_pickling_and_json() -> None:
    manifest = _manifest()
    assert pickle.loads(pickle.dumps(manifest)) == manifest
    assert DatasetManifest.from_json(manifest.to_json()) == manifest
    assert '"partitions":[{"partition":0,"runs":[[10,1,5],[12,1,2]]}' in manifest.to_json()


def test_the_fingerprint_depends_on_where_which_sample_is_and_on_nothing_else() -> None:
    manifest = _manifest()
    renamed = _manifest(name="roses", version=3, created_at_s=5.0, source={}, features={})
    assert manifest.fingerprint == renamed.fingerprint
    moved = (PartitionExtents(0, [Extent(10, 1, 5), Extent(13, 1, 2)]), manifest.partitions[1])
    others = [
        _manifest(topic_id="another"),
        _manifest(checksum="1" * 32),
        _manifest(load_id="1" * 16),
        _manifest(value_format="json"),
        _manifest(partitions=moved),
    ]
    assert len({each.fingerprint for each in [manifest, *others]}) == 6
    assert len(manifest.fingerprint) == 32


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"num_samples": 13}, "12 samples, but the totals say 3 and 13"),
        ({"num_records": 4}, "totals say 4 and 12"),
        ({"name": "a b"}, "can't name a dataset"),
        ({"name": "a@1"}, "can't name a dataset"),
        ({"version": 0}, "greater than or equal to 1"),
        ({"checksum": "XYZ"}, "pattern"),
        ({"load_id": "12"}, "pattern"),
        ({"created_at_s": float("nan")}, "finite|greater"),
        ({"encoding": "zip"}, "packed"),
        ({"partitions": (PartitionExtents(1, [Extent(0, 12, 1)]), PartitionExtents(1, []))}, "ascend"),
        ({"colour": "red"}, "extra"),
    ],
)
def test_a_manifest_that_contradicts_itself_cannot_be_made(overrides: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){complaint}"):
        _manifest(**overrides)


def test_a_manifest_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        _manifest().num_samples = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [("cola", "cola", None), ("cola@12", "cola", 12), ("a.b_c-d@1", "a.b_c-d", 1)],
)
def test_a_dataset_is_named_with_or_without_a_version(text: str, name: str, version: int | None) -> None:
    assert parse_dataset_id(text) == (name, version)


@pytest.mark.parametrize("text", ["", "@1", "a@", "a@0", "a@x", "a@1@2", "a/b", "ü", "a" * 201, "-a", "a@²"])
def test_what_cannot_name_a_dataset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name a dataset|whole number"):
        parse_dataset_id(text)


def _many_extents(num_extents: int) -> PartitionExtents:
    chance = np.random.default_rng(0)
    records = chance.integers(1, 50, num_extents)
    first = np.cumsum(records + chance.integers(0, 3, num_extents)) - records
    return PartitionExtents.from_arrays(0, first, records, np.full(num_extents, 87))


def test_a_million_runs_take_no_loop_and_are_small(
    count_lines: Callable[[Callable[[], object]], int],
) -> None:
    parts: list[bytes] = []

    def there_and_back(partition: PartitionExtents) -> None:
        manifest = _manifest(
            partitions=(partition,), num_records=partition.num_records, num_samples=partition.num_samples
        )
        parts[:] = manifest.to_parts()
        back = DatasetManifest.from_parts(parts)
        arrays = back.extent_arrays()
        assert back.partitions == manifest.partitions
        assert arrays.first_sample[-1] == partition.num_samples - arrays.num_samples[-1]

    few, many = (_many_extents(num_extents) for num_extents in (10_000, 1_000_000))
    there_and_back(few)  # what is done once is done
    # A turn for each extent would be a hundred times as many.
    assert count_lines(lambda: there_and_back(many)) < 2 * count_lines(lambda: there_and_back(few))
    there_and_back(many)
    assert len(parts) > 1
    assert sum(map(len, parts)) < 1_200_000  # about a byte an extent, where 24 were
