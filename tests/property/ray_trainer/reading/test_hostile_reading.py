"""Reading for training: whatever records and manifests say, samples or one error, in bounded memory."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from evenload.dataset_catalog.errors import CorruptManifestError, UndecodableValueError
from evenload.dataset_catalog.manifest import DatasetManifest, PartitionExtents
from evenload.dataset_catalog.records.encoding import encode_samples
from evenload.dataset_catalog.testing import PlacedRecord, make_batch, make_manifest, make_records
from evenload.dataset_catalog.verification import Verification
from evenload.ray_trainer.errors import CorruptRecordError
from evenload.ray_trainer.fetching.testing import MemoryFetcher
from evenload.ray_trainer.planning.blocks import BlockTable
from evenload.ray_trainer.planning.plan import EpochPlan
from evenload.ray_trainer.planning.rule import choose_rule
from evenload.ray_trainer.reading.decoding import BatchDecoder
from evenload.ray_trainer.reading.errors import UndecodableColumnError
from evenload.ray_trainer.reading.image_decoding import PIXELS_MAX
from evenload.ray_trainer.reading.record_layout import RecordOpener
from evenload.ray_trainer.reading.step_source import build_whole
from evenload.ray_trainer.recipes.labels import class_names

ROWS = pa.record_batch(
    {
        "text": ["a", None, "ccc", "é"],
        "large": pa.array([b"", b"x", None, b"zz"], pa.large_binary()),
        "numbers": pa.array([1, 2, 3, 4], pa.int32()),
        "flags": pa.array([True, False, True, True]),
        "pair": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float32(), 2)),
        "list": pa.array([[1], [], [2, 3], None], pa.list_(pa.int16())),
        "words": pa.array([["a"], [], ["b", "c"], None]),
        "when": pa.array([1, 2, 3, 4], pa.timestamp("us")),
        "struct": pa.array([{"bytes": b"1", "path": "p"}] * 4),
    }
)


def read(batch_schema: pa.RecordBatch, value: bytes, **features: str) -> dict[str, Any]:
    """All rows of a record, decoded."""
    kinds = {field.name: str(field.type) for field in batch_schema.schema} | features
    manifest = make_manifest(batch_schema, [], features=kinds, num_samples=0)
    decoder = BatchDecoder(manifest)
    try:
        block, num_rows = RecordOpener(manifest, decoder).open([memoryview(value)])
        blocks = decoder.no_blocks()
        slot = np.full(num_rows, blocks.put(block))
        return next(decoder.decode(blocks, slot, np.arange(num_rows), sizes=[num_rows]))
    finally:
        decoder.close()


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_mutated_record_is_read_or_refused(data: st.DataObject) -> None:
    value = bytearray(encode_samples(ROWS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        if data.draw(st.booleans()):
            value[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            at -= at % 4
            value[at : at + 4] = struct.pack(
                "<i", data.draw(st.sampled_from([-1, 0, 1, 7, 2**31 - 1, -(2**31)]))
            )
    try:
        read(ROWS, bytes(value))
    except (UndecodableValueError, UndecodableColumnError) as error:
        said(error)


def said(error: Exception) -> None:
    assert str(error).isprintable()


def test_text_that_is_no_utf8_is_refused_with_its_column() -> None:
    batch = pa.record_batch({"text": ["okay", "fine"]})
    with pytest.raises(UndecodableColumnError, match="'text' can't be read: 'utf-8' codec"):
        read(batch, encode_samples(batch).replace(b"fine", b"\xff\xfe\xff\xfe"))


def png(width: int, height: int) -> bytes:
    """A valid PNG of nothing but black, in a thousandth of its size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    compressor = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(compressor.compress(row) for _ in range(height)) + compressor.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def saved(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(stream, kind)
    return stream.getvalue()


def images() -> Iterator[tuple[str, bytes, str]]:
    yield "bomb", png(PIXELS_MAX // 4096 + 1, 4096), "pixels, at most"
    yield "cut", saved("PNG")[:-30], "not an image"
    yield "cut in the head", saved("JPEG")[:25], "not an image"
    yield "postscript", saved("EPS"), "not an image"
    yield "nothing", b"", "not an image"
    yield (
        "claims",
        png(16, 16).replace(struct.pack(">II", 16, 16), struct.pack(">II", 2**31 - 1, 2**31 - 1)),
        "can't be read",
    )


@pytest.mark.parametrize(
    ("encoded", "reason"), [each[1:] for each in images()], ids=[each[0] for each in images()]
)
def test_an_image_that_is_none_or_would_fill_the_memory_is_refused(encoded: bytes, reason: str) -> None:
    batch = pa.record_batch({"x": pa.array([encoded], pa.binary())})
    value = encode_samples(batch)

    def refused() -> None:
        with pytest.raises(UndecodableColumnError, match=reason):
            read(batch, value, x="image")

    assert peak_bytes(refused) < 50 << 20


@given(st.data())
@settings(deadline=None)
def test_a_damaged_image_is_decoded_or_refused(data: st.DataObject) -> None:
    encoded = bytearray(
        saved(data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])))
    )
    for _ in range(data.draw(st.integers(1, 5))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(
            st.sampled_from([0, 1, 127, 128, 255])
        )
    batch = pa.record_batch({"x": pa.array([bytes(encoded)], pa.binary())})
    try:
        read(batch, encode_samples(batch), x="image")
    except UndecodableColumnError as error:
        said(error)


def test_a_feature_that_is_not_the_columns_is_refused() -> None:
    batch = pa.record_batch({"x": [1.5, 2.5]})
    with pytest.raises(UndecodableColumnError, match="'x'"):
        read(batch, encode_samples(batch), x="image")


def claiming(extents: list[tuple[int, int, int]], **fields: Any) -> DatasetManifest:
    partition = PartitionExtents(0, extents)
    totals = {"num_samples": partition.num_samples, "num_records": partition.num_records, "num_bytes": 1000}
    return make_manifest(make_batch(0), [], partitions=(partition,), **(totals | fields))


HOSTILE_CLAIMS: list[DatasetManifest] = [
    claiming([(0, 2**55, 1)]),
    claiming([(0, 2**55, 1)], encoding="record"),
    claiming([(0, 2**55, 1)], encoding="record", num_bytes=0),
    claiming([(0, 2**40, 2**20)], num_bytes=2**60),
    claiming([(0, 5000, 2**20)], num_bytes=2**40),
    claiming([(0, 5000, 2**20)], num_bytes=0),
    claiming([(2**60, 2**60, 1)], num_bytes=2**60, encoding="record"),
]


@pytest.mark.parametrize("manifest", HOSTILE_CLAIMS, ids=range(len(HOSTILE_CLAIMS)))
def test_a_manifest_that_claims_more_than_there_can_be_is_planned_in_bounded_memory_or_refused(
    manifest: DatasetManifest,
) -> None:
    def plan() -> None:
        for shuffle in (True, False):
            rule = choose_rule(manifest, shuffle=shuffle)
            try:
                order = EpochPlan.of_manifest(manifest, seed=0, epoch=0, rule=rule)
            except ValueError as error:
                assert "can be planned" in str(error)  # noqa: PT017 - one of two good ends
                continue
            order.rank_samples(0, 256, 0, 1)

    assert peak_bytes(plan) < 600 << 20


@pytest.mark.parametrize("manifest", HOSTILE_CLAIMS, ids=range(len(HOSTILE_CLAIMS)))
def test_what_a_manifest_claims_costs_a_verification_nothing(manifest: DatasetManifest) -> None:
    try:
        verification = Verification(manifest)
    except CorruptManifestError as error:
        assert "samples" in str(error)  # noqa: PT017 - one of two good ends
        return
    first = int(manifest.partitions[0].first_offset[0])
    assert verification.add(0, first, None, b"whatever") == manifest.partitions[0].samples_per_record[0]
    assert verification.report().num_samples == 0


def test_a_dataset_larger_than_it_says_is_not_held_whole() -> None:
    batch = make_batch(40)
    placed = [PlacedRecord(0, at, record) for at, record in enumerate(make_records(batch))]
    honest = make_manifest(batch, placed)
    table = BlockTable.from_manifest(honest, block_bytes=1 << 18)
    fetcher = MemoryFetcher.of_records(placed)
    try:
        assert sum(each.num_rows for each in build_whole(honest, table, fetcher)) == 40
        lying = honest.model_copy(update={"num_bytes": honest.num_bytes - 1})
        with pytest.raises(CorruptRecordError, match="hold more than"):
            list(build_whole(lying, table, fetcher))
    finally:
        fetcher.close()


@pytest.mark.parametrize("names", [b"[" * 100_000, b"{}" * 9, b"\xff", b"[" + b"1," * 3_000_000 + b"1]"])
def test_class_names_that_are_none_are_refused(names: bytes) -> None:
    schema = pa.schema([pa.field("label", pa.int64(), metadata={"evenload.class_names": names})])
    manifest = make_manifest(pa.RecordBatch.from_pylist([], schema), [])
    with pytest.raises(CorruptManifestError, match="class names"):
        class_names(manifest, "label")
