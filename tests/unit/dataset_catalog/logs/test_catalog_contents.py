from __future__ import annotations

from typing import Any

from evenload.dataset_catalog.logs.manifest_log import fold_manifests, manifest_records
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.parts import split_document
from evenload.dataset_catalog.testing import make_batch, make_manifest

SMALL = 300  # bytes a part, so that a manifest has several


def _manifest(**overrides: Any) -> DatasetManifest:
    return make_manifest(make_batch(0), [], **overrides)


def _records(manifest: DatasetManifest) -> list[tuple[bytes, bytes]]:
    return manifest_records(manifest, SMALL)


def test_a_dataset_exists_when_all_parts_of_its_manifest_do() -> None:
    manifest = _manifest()
    records = _records(manifest)
    assert [key for key, _ in records] == [f"flowers@1/{n}".encode() for n in range(len(records))]
    assert len(records) > 2
    for missing in range(len(records)):
        assert fold_manifests(records[:missing] + records[missing + 1 :]).manifests == {}
    assert fold_manifests(records).manifests == {("flowers", 1): manifest}
    assert fold_manifests(reversed(records)).manifests == {("flowers", 1): manifest}


def test_versions_and_names_stand_side_by_side() -> None:
    manifests = [_manifest(), _manifest(version=2), _manifest(name="roses")]
    contents = fold_manifests(record for manifest in manifests for record in _records(manifest))
    assert list(contents.manifests.values()) == manifests


def test_parts_that_are_left_of_an_older_longer_manifest_are_passed_over() -> None:
    longer = _records(_manifest(source={"paths": [f"{n}.csv" for n in range(500)]}))
    manifest = _manifest()
    newer = _records(manifest)
    left = longer[len(newer) :]
    assert left
    contents = fold_manifests(left + newer)
    assert contents.manifests == {("flowers", 1): manifest}
    assert contents.damaged == {}
    assert len(contents.keys["flowers", 1]) == len(longer)


def test_one_damaged_manifest_hides_no_other() -> None:
    roses = _manifest(name="roses")
    records = _records(_manifest())
    records[1] = (records[1][0], records[1][1][:-1] + b"?")
    contents = fold_manifests(records + _records(roses))
    assert contents.manifests == {("roses", 1): roses}
    error = contents.damaged["flowers", 1]
    assert error.dataset == "flowers@1"
    assert str(error).startswith("the manifest of dataset flowers@1 can't be used: the checksum of part 1")


def test_a_whole_document_under_the_keys_of_other_parts_hides_no_manifest() -> None:
    manifest = _manifest()
    (_, foreign), *others = manifest_records(_manifest(source={"paths": ["foreign.csv"]}))
    assert not others
    for strange in (foreign, split_document(b"no manifest", SMALL)[0]):
        contents = fold_manifests([(b"flowers@1/99", strange), *_records(manifest)])
        assert contents.manifests == {("flowers", 1): manifest}
        assert contents.damaged == {}
        alone = fold_manifests([(b"flowers@1/99", strange)])
        assert alone.manifests == {}
        assert "part 0 stands under the key of another" in str(alone.damaged["flowers", 1])


def test_a_manifest_under_another_name_is_damaged() -> None:
    renamed = [(key.replace(b"flowers", b"roses"), value) for key, value in _records(_manifest())]
    assert "flowers@1" in str(fold_manifests(renamed).damaged["roses", 1])


def test_other_records_are_passed_over() -> None:
    contents = fold_manifests([(b"what", b"ever"), (b"\xff@1/0", b"")])
    assert contents.manifests == {}
