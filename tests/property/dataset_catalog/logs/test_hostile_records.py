"""Whatever stands in a record, a decoder gives a value or its own error, in bounded memory."""

from __future__ import annotations

import base64
import json
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from evenload.dataset_catalog.errors import CorruptManifestError, CorruptProgressError
from evenload.dataset_catalog.extents import Extent
from evenload.dataset_catalog.foreign_content import printable
from evenload.dataset_catalog.logs.damaged_records import find_damaged
from evenload.dataset_catalog.logs.manifest_log import CatalogContents, fold_manifests, manifest_records
from evenload.dataset_catalog.logs.progress_log import ProgressContents
from evenload.dataset_catalog.manifest import (
    DatasetManifest,
    PartitionExtents,
    encode_schema,
    parse_dataset_id,
)
from evenload.dataset_catalog.parts import DOCUMENT_BYTES_MAX, join_parts, split_document
from evenload.dataset_catalog.progress import LoadProgress, fold_progress
from evenload.dataset_catalog.testing import make_batch, make_manifest, make_progress

DEEP = b"[" * 50_000 + b"]" * 50_000
HUGE = 10**400
WILD_NUMBERS = [-1, -(2**63), 2**31, 2**53, 2**61, 2**62, 2**63 - 1, 2**64, HUGE, 1e308, 0.5, True, None, "1"]
PROGRESS_KEY, PROGRESS_VALUE = make_progress(
    sequence=3, num_samples=9, num_records=3, extents={0: [Extent(0, 3, 3)]}, facts={"encoding": "packed"}
).to_record()


def sealed(compressed: bytes, *, num_parts: int = 1) -> list[bytes]:
    """Parts with right checksums, whatever is in them."""
    digest = xxhash.xxh3_128_digest(compressed)
    step = -(-len(compressed) // num_parts)
    parts = []
    for number in range(num_parts):
        payload = compressed[number * step : (number + 1) * step]
        checksum = xxhash.xxh3_64_intdigest(struct.pack(">HH16s", number, num_parts, digest) + payload)
        head = struct.pack(">4sBHH16sQ", b"EVLM", 1, number, num_parts, digest, checksum)
        parts.append(head + payload)
    return parts


def document_of(header: bytes, extents: bytes = b"") -> list[bytes]:
    return sealed(zlib.compress(struct.pack(">I", len(header)) + header + extents))


def manifest_with_runs() -> DatasetManifest:
    extents = (PartitionExtents(0, [(0, 3, 5), (4, 1, 2)]), PartitionExtents(2, [(7, 2, 5)]))
    totals = {"num_records": 6, "num_samples": 27}
    return make_manifest(make_batch(0), [], partitions=extents, **totals)


def header_and_extents() -> tuple[dict[str, Any], bytes]:
    document = bytes(join_parts(manifest_with_runs().to_parts()))
    (length,) = struct.unpack_from(">I", document)
    return json.loads(document[4 : 4 + length]), document[4 + length :]


def decoded_or_refused(parts: list[bytes]) -> DatasetManifest | None:
    """A manifest that holds what it promises; None when it was refused."""
    try:
        manifest = DatasetManifest.from_parts(parts)
    except CorruptManifestError as error:
        said(error)
        return None
    assert sum(part.num_samples for part in manifest.partitions) == manifest.num_samples < 2**62
    assert (manifest.extent_arrays().first_sample >= 0).all()
    assert DatasetManifest.from_parts(manifest.to_parts()) == manifest
    assert len(manifest.fingerprint) == 32
    return manifest


def said(error: Exception) -> None:
    """An error's sentence can be printed."""
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def zipped_zeros(num_bytes: int) -> bytes:
    """What zlib makes of so many zeros, put together from one block: compressing 4 GiB takes many seconds."""
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    block = compressor.compress(bytes(1 << 20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    last = compressor.compress(bytes(num_bytes % (1 << 20))) + compressor.flush()
    checksum = (num_bytes % 65521) << 16 | 1  # Adler-32
    return b"\x78\xda" + block * (num_bytes >> 20) + last + struct.pack(">I", checksum)


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        DEEP,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"1" * 10_000,
        b'{"a": NaN}',
        b"\xff\xfe",
        b"[]",
        b"null",
        b"",
    ],
)
def test_a_header_that_is_no_plain_json_object_is_refused(header: bytes) -> None:
    with pytest.raises(CorruptManifestError):
        DatasetManifest.from_parts(document_of(header))


def test_zipped_zeros_unfold_to_zeros() -> None:
    assert zlib.decompress(zipped_zeros((3 << 20) + 7)) == bytes((3 << 20) + 7)


@pytest.mark.parametrize("num_bytes", [DOCUMENT_BYTES_MAX + 1, 4 << 30])
def test_a_document_that_unfolds_to_gigabytes_is_refused_before_it_does(num_bytes: int) -> None:
    bomb = zipped_zeros(num_bytes)

    def read() -> None:
        with pytest.raises(CorruptManifestError, match="decompressed it has more than"):
            DatasetManifest.from_parts(sealed(bomb, num_parts=3))

    assert peak_bytes(read) < 200 << 20


def test_a_header_of_millions_of_empty_lists_is_refused_before_they_are_made() -> None:
    header = b'{"source":[' + b"[]," * 4_000_000 + b"[]]}"

    def read() -> None:
        with pytest.raises(CorruptManifestError, match="values"):
            DatasetManifest.from_parts(document_of(header))

    assert peak_bytes(read) < 100 << 20


def test_the_largest_manifest_that_is_published_can_be_read() -> None:
    num_extents = 4_000_000
    chance = np.random.default_rng(0)
    records = chance.integers(1, 9, num_extents)
    first = np.cumsum(records + chance.integers(0, 3, num_extents)) - records
    extents = PartitionExtents.from_arrays(0, first, records, chance.integers(1, 200, num_extents))
    totals = {"num_records": extents.num_records, "num_samples": extents.num_samples}
    manifest = make_manifest(make_batch(0), [], partitions=(extents,), **totals)
    parts = manifest.to_parts()
    assert DatasetManifest.from_parts(parts) == manifest
    assert peak_bytes(lambda: DatasetManifest.from_parts(parts)) < 350 << 20


def test_what_can_not_be_read_again_is_not_published() -> None:
    with pytest.raises(ValueError, match="can be read again"):
        split_document(bytes(DOCUMENT_BYTES_MAX + 1), 1 << 20)
    with pytest.raises(ValueError, match="can be read again"):
        split_document(os.urandom(33 << 20), 1 << 20)


@given(st.data())
def test_a_manifest_with_any_field_changed_is_sound_or_refused(data: st.DataObject) -> None:
    header, extents = header_and_extents()
    key = data.draw(st.sampled_from(sorted(header)))
    wild = st.one_of(st.sampled_from(WILD_NUMBERS), st.text(max_size=50), st.just("\x1b]0;owned\x07\n"))
    header[key] = data.draw(
        st.one_of(wild, st.lists(wild, max_size=3), st.dictionaries(st.text(max_size=9), wild, max_size=3))
    )
    decoded_or_refused(document_of(json.dumps(header).encode(), extents))


@given(st.data())
def test_a_manifest_with_any_run_changed_is_sound_or_refused(data: st.DataObject) -> None:
    header, _ = header_and_extents()
    counts = data.draw(
        st.lists(st.lists(st.sampled_from([-1, 0, 1, 2, 2**31, 2**63, HUGE]), max_size=3), max_size=3)
        | st.sampled_from([[[0, 2], [2, 1]], [[0, 3], [1, -2], [2, 2]]])
    )
    header["partitions"] = counts
    extents = data.draw(st.binary(min_size=72, max_size=72) | st.binary(max_size=100))
    decoded_or_refused(document_of(json.dumps(header).encode(), extents))


@pytest.mark.parametrize(
    "extent", [(0, 2**62, 1), (2**62, 1, 1), (0, 2**40, 2**40), (0, 1, 2**60), (0, 2**60, 9)]
)
def test_extents_whose_sums_overflow_are_refused(extent: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"too large|more than"):
        PartitionExtents(0, [extent])


@given(st.data())
def test_a_manifest_with_flipped_cut_or_spliced_bytes_is_sound_or_refused(data: st.DataObject) -> None:
    document = bytearray(join_parts(manifest_with_runs().to_parts()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(document) - 1))
        harm = data.draw(st.sampled_from(["flip", "cut", "splice", "length"]))
        if harm == "flip":
            document[at] ^= data.draw(st.integers(1, 255))
        elif harm == "cut":
            del document[max(at, 5) :]
        elif harm == "splice":
            document[at:at] = document[data.draw(st.integers(0, len(document) - 1)) :][:64]
        else:
            document[at : at + 4] = b"\xff\xff\xff\x7f"
    decoded_or_refused(sealed(zlib.compress(bytes(document))))


def test_a_schema_that_no_loader_writes_is_refused() -> None:
    kinds = [
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.run_end_encoded(pa.int32(), pa.int64())),
        pa.string_view(),
        pa.dense_union([pa.field("a", pa.int64())]),
    ]
    for kind in kinds:
        header, extents = header_and_extents()
        header["schema_ipc"] = encode_schema(pa.schema([("x", kind)]))
        assert decoded_or_refused(document_of(json.dumps(header).encode(), extents)) is None
    twice = pa.schema([("x", pa.int64()), ("x", pa.int64())])
    with pytest.raises(CorruptManifestError, match="same name"):
        _ = make_manifest(make_batch(0), [], schema_ipc=encode_schema(twice)).arrow_schema


@given(st.data())
def test_a_manifest_with_a_damaged_schema_is_sound_or_refused(data: st.DataObject) -> None:
    schema = bytearray(make_batch(0).schema.serialize().to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(schema) - 1))
        schema[at : at + 1] = data.draw(st.sampled_from([b"\xff", b"\x00", b"\x7f", b"\x80", b""]))
    header, extents = header_and_extents()
    header["schema_ipc"] = base64.b64encode(schema).decode()
    decoded_or_refused(document_of(json.dumps(header).encode(), extents))


def test_a_topic_of_evenload_or_kafka_itself_is_no_datasets_topic() -> None:
    for topic in ("evenload.datasets", "__consumer_offsets", "a/b", "", "a" * 250):
        with pytest.raises(ValueError, match="topic of a dataset"):
            make_manifest(make_batch(0), [], topic=topic)
        key, value = make_progress(topic=topic).to_record()
        with pytest.raises(CorruptProgressError):
            LoadProgress.from_record(key, value)


@given(st.data())
def test_progress_with_any_field_changed_is_sound_or_refused(data: st.DataObject) -> None:
    content = json.loads(PROGRESS_VALUE)
    key = data.draw(st.sampled_from(sorted(content)))
    wild = st.one_of(st.sampled_from(WILD_NUMBERS), st.text(max_size=50))
    content[key] = data.draw(
        wild
        | st.lists(wild, max_size=3)
        | st.dictionaries(st.just("0"), st.lists(st.lists(wild, max_size=3)))
    )
    try:
        record = LoadProgress.from_record(PROGRESS_KEY, json.dumps(content).encode())
        assert record.host.isprintable()
        fold_progress([record])
    except CorruptProgressError as error:
        said(error)


@given(
    st.binary(max_size=300) | st.sampled_from([DEEP, b"1" * 9999, b'{"format": NaN}', b'{"format":1e999}'])
)
def test_whatever_stands_in_a_progress_record_is_read_or_refused(value: bytes) -> None:
    with pytest.raises(CorruptProgressError):
        LoadProgress.from_record(PROGRESS_KEY, value)


KEYS = [
    b"flowers@" + b"9" * 5000 + b"/0",
    b"flowers@1/" + b"9" * 5000,
    b"flowers@01/0",
    b"flowers@1/00",
    b"flowers@0/0",
    "flowers@\N{ARABIC-INDIC DIGIT ONE}/0".encode(),
    b"\x1b[2J@1/0",
    b"a b@1/0",
    b"@1/0",
    b"flowers@1/0\n",
    b"\xff\xfe",
    b"",
    bytes(1000),
]


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_a_key_that_is_none_hides_nothing_and_is_listed(key: bytes) -> None:
    roses = make_manifest(make_batch(0), [], name="roses")
    contents = fold_manifests([(key, b"what"), *manifest_records(roses)])
    assert contents.manifests == {("roses", 1): roses}
    progress = ProgressContents({key: b"what", PROGRESS_KEY: PROGRESS_VALUE})
    assert [each.sequence for each in progress.records(("flowers", 1))] == [3]
    found = find_damaged(contents, progress, now_s=0)
    assert [each.keys for each in found] == [(key,), (key,)]
    assert all(f"{each.name} {each.reason}".isprintable() for each in found)


def test_a_version_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_dataset_id("flowers@" + "9" * 5000)


def test_a_manifest_is_got_without_decoding_those_of_others() -> None:
    roses = make_manifest(make_batch(0), [], name="roses")
    records = dict(manifest_records(roses))
    read: list[bytes] = []

    class Told(dict[bytes, bytes]):
        def __getitem__(self, key: bytes) -> bytes:
            read.append(key)
            return super().__getitem__(key)

    contents = CatalogContents(Told({b"flowers@1/0": b"a bomb", **records}))
    assert contents.manifest(("roses", 1)) == roses
    assert set(read) == set(records)


def test_the_progress_of_a_load_is_never_taken_without_a_record_that_cant_be_read() -> None:
    """Were the newest one passed over, its samples would be written a second time."""
    begin = make_progress()
    key, value = make_progress(
        sequence=1, num_samples=1, num_records=1, extents={0: [Extent(0, 1, 1)]}
    ).to_record()
    progress = ProgressContents(dict([begin.to_record(), (key, value[:-1])]))
    with pytest.raises(CorruptProgressError, match="record 1"):
        progress.state(("flowers", 1))
    (damaged,) = find_damaged(fold_manifests([]), progress, now_s=0)
    assert set(damaged.keys) == {key, begin.to_record()[0]}, "part of a load's progress is worse than none"


def test_what_a_newer_evenload_can_read_and_a_load_that_lives_are_kept() -> None:
    part = bytearray(manifest_with_runs().to_parts()[0])
    part[4] = 2
    key, value = make_progress(name="roses", updated_at_s=1000.0).to_record()
    newer = make_progress(name="daisies").to_record()
    progress = ProgressContents(
        {key: value, b"roses@1/1": b"?", newer[0]: newer[1].replace(b'"format":1', b'"format":2')}
    )
    found = find_damaged(fold_manifests([(b"flowers@1/0", bytes(part))]), progress, now_s=1001.0)
    assert [(each.name, each.keys) for each in found] == [
        ("flowers@1", ()),
        ("daisies@1", ()),
        ("roses@1", ()),
    ]
    assert ["newer" in str(each.kept_because) for each in found] == [True, True, False]
    later = find_damaged(fold_manifests([]), progress, now_s=2000.0)
    assert [each.keys for each in later if each.name == "roses@1"] == [(b"roses@1/1", key)]


@given(st.text(max_size=400))
def test_foreign_text_that_is_shown_has_no_control_characters_and_an_end(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= 303
    shown.encode()
    if text.isprintable() and len(text) <= 300:
        assert shown == text
