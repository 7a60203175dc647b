from __future__ import annotations

import random
import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog.errors import CorruptManifestError
from evenload.dataset_catalog.manifest import DatasetManifest, Extent, PartitionExtents
from evenload.dataset_catalog.parts import MIN_PART_BYTES, join_parts, split_document
from evenload.dataset_catalog.testing import make_batch, make_manifest


def _manifest(num_partitions: int, num_extents: int, seed: int) -> DatasetManifest:
    chance, partitions = random.Random(seed), []
    for partition in range(num_partitions):
        extents, offset = [], 0
        for _ in range(num_extents):
            extent = Extent(offset + chance.randrange(1000), chance.randrange(1, 9), chance.randrange(1, 99))
            extents.append(extent)
            offset = extent.end_offset + 1
        partitions.append(PartitionExtents(partition * 3, extents))
    return make_manifest(
        make_batch(0),
        [],
        partitions=tuple(partitions),
        num_samples=sum(p.num_samples for p in partitions),
        num_records=sum(p.num_records for p in partitions),
        source={"paths": ["ü/ö.csv"], "nested": {"a": [1, 2.5, None, True]}},
        created_at_s=chance.random() * 1e9,
    )


@given(
    st.integers(0, 3), st.integers(0, 40), st.integers(0, 99), st.integers(MIN_PART_BYTES, 4096), st.randoms()
)
def test_a_manifest_comes_back_from_its_parts_in_any_order(
    num_partitions: int, num_extents: int, seed: int, max_bytes: int, chance: random.Random
) -> None:
    manifest = _manifest(num_partitions, num_extents, seed)
    parts = manifest.to_parts(max_bytes)
    assert max(map(len, parts)) <= max_bytes
    chance.shuffle(parts)
    back = DatasetManifest.from_parts(parts + parts[:1])
    assert back == manifest
    assert back.fingerprint == manifest.fingerprint
    assert DatasetManifest.from_json(manifest.to_json()) == manifest


@given(st.binary(min_size=300, max_size=2000), st.data())
def test_any_changed_byte_or_missing_part_is_refused(document: bytes, data: st.DataObject) -> None:
    parts = split_document(document, MIN_PART_BYTES)
    assert join_parts(parts) == document
    which = data.draw(st.integers(0, len(parts) - 1))
    harm = data.draw(st.sampled_from(["drop", "cut", "flip"]))
    if harm == "drop":
        broken = parts[:which] + parts[which + 1 :]
    else:
        at = data.draw(st.integers(0, len(parts[which]) - 1))
        part = bytearray(parts[which])
        part[at] ^= data.draw(st.integers(1, 255))
        changed = parts[which][:at] if harm == "cut" else bytes(part)
        broken = [*parts[:which], changed, *parts[which + 1 :]]
    with pytest.raises(CorruptManifestError):
        join_parts(broken)


def test_parts_of_two_manifests_are_never_joined() -> None:
    one, other = _manifest(2, 300, 1).to_parts(1000), _manifest(2, 300, 2).to_parts(1000)
    assert len(one) == len(other) > 1
    with pytest.raises(CorruptManifestError, match="different manifests"):
        DatasetManifest.from_parts([one[0], *other[1:]])


def test_parts_that_are_whole_but_not_of_this_document_are_refused() -> None:
    digest = xxhash.xxh3_128_digest(b"another document")
    checked = struct.pack(">HH16s", 0, 1, digest) + b"payload"
    header = struct.pack(">4sBHH16sQ", b"EVLM", 1, 0, 1, digest, xxhash.xxh3_64_intdigest(checked))
    with pytest.raises(CorruptManifestError, match="checksum over all parts"):
        join_parts([header + b"payload"])


def test_a_newer_format_says_so() -> None:
    part = bytearray(make_manifest(make_batch(0), []).to_parts()[0])
    part[4] = 2
    with pytest.raises(CorruptManifestError, match=r"format is 2.* newer evenload"):
        DatasetManifest.from_parts([bytes(part)])


def test_a_document_that_contradicts_itself_is_refused() -> None:
    lying = make_manifest(make_batch(0), []).model_copy(update={"num_samples": 5})
    with pytest.raises(CorruptManifestError, match="0 samples, but the totals say 0 and 5"):
        DatasetManifest.from_parts(lying.to_parts())
