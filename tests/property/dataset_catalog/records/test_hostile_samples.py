"""Whatever stands in a record's value, decoding gives rows whose every offset was checked, or refuses."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.dataset_catalog.errors import UndecodableValueError
from evenload.dataset_catalog.records.encoding import (
    decode_records,
    decode_samples,
    encode_records,
    encode_samples,
    sample_hashes,
)
from evenload.dataset_catalog.testing import make_batch

LISTS = pa.array([[1, 2], [], None, [3]], pa.list_(pa.int16()))
TEXTS = pa.array([["a", "bc"], ["d"], [], [None]], pa.list_(pa.string()))
STRUCTS = pa.array([{"bytes": b"x" * n, "path": "p"} for n in range(4)])
MAPS = pa.array([[("k", 1)], [], [("l", 2), ("m", None)], None], pa.map_(pa.string(), pa.int32()))
NESTED = pa.record_batch(
    {
        "lists": LISTS,
        "texts": TEXTS,
        "structs": STRUCTS,
        "maps": MAPS,
        "flags": pa.array([True, None, False, True]),
        "nothing": pa.nulls(4),
        "large": pa.array(["a", "bb", None, "dddd"], pa.large_string()),
        "decimal": pa.array([None, Decimal("1.5"), Decimal(2), Decimal(3)], pa.decimal128(10, 2)),
    }
)


def follow_everything(batch: pa.RecordBatch) -> None:
    sample_hashes(batch)
    for column in batch.columns:
        plain = column.storage if isinstance(column, pa.ExtensionArray) else column
        binary = plain.cast(pa.large_binary()) if pa.types.is_large_string(plain.type) else plain
        if pa.types.is_string(plain.type):
            binary = plain.cast(pa.binary())
        binary.take(pa.array(np.arange(len(binary))))
        if not pa.types.is_null(binary.type):
            for row in range(len(binary)):
                try:
                    binary[row].as_py()
                except (UnicodeDecodeError, ValueError, OverflowError):
                    continue
    pa.Table.from_batches([batch, batch]).combine_chunks()


def follow_or_refuse(value: bytes, schema: pa.Schema) -> None:
    try:
        batch = decode_samples(value, schema)
    except UndecodableValueError as error:
        assert error.reason.isprintable()  # noqa: PT017 - an error is one of two good ends
        return
    assert batch.num_rows <= 1 << 20
    assert sum(each.size for column in batch.columns for each in column.buffers() if each) <= len(value)
    follow_everything(batch)


def compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as _:
        pass
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(sink.getvalue()))
    reader.read_next_message()
    message: pa.ipc.Message = reader.read_next_message()
    return bytes(message.serialize())


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused(codec: str) -> None:
    batch = pa.record_batch({"x": pa.array(np.zeros(16 << 20, np.uint8)).slice(0, 1 << 20)})
    value = compressed(batch, codec)
    assert len(value) < 20_000
    with pytest.raises(UndecodableValueError, match="compressed"):
        decode_samples(value, batch.schema)
    with pytest.raises(UndecodableValueError, match="compressed"):
        decode_records([value], batch.schema, "arrow")


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.binary(0), pa.list_(pa.int64(), 0), pa.list_(pa.null(), 0), pa.struct([])]
)
def test_rows_that_take_no_bytes_are_not_believed(kind: pa.DataType) -> None:
    batch = pa.record_batch({"x": pa.nulls(3, kind)})
    value = encode_samples(batch)
    decode_samples(value, batch.schema)
    for num_rows in (2**60, 2**31, (1 << 20) + 1, -1):
        blown_up = value.replace(struct.pack("<q", 3), struct.pack("<q", num_rows))
        assert blown_up != value
        with pytest.raises(UndecodableValueError):
            decode_samples(blown_up, batch.schema)


def test_items_that_take_no_bytes_are_not_believed() -> None:
    batch = pa.record_batch({"x": pa.array([[None] * 7], pa.large_list(pa.null()))})
    value = encode_samples(batch).replace(struct.pack("<q", 7), struct.pack("<q", 2**59))
    with pytest.raises(UndecodableValueError):
        decode_samples(value, batch.schema)


def test_columns_that_share_their_bytes_are_refused() -> None:
    num_columns = 40
    names = [str(n) for n in range(num_columns)]
    batch = pa.record_batch([pa.array(np.arange(512))] * num_columns, names=names)
    value = bytearray(encode_samples(batch))
    for column in range(1, num_columns):
        place = value.find(struct.pack("<qq", column * 4096, 4096))
        assert place > 0
        value[place : place + 8] = bytes(8)
    (metadata,) = struct.unpack_from("<i", value, 4)
    with pytest.raises(UndecodableValueError, match="buffers claim"):
        decode_samples(bytes(value[: 8 + metadata + 4096 * 2]), batch.schema)


@pytest.mark.parametrize(
    ("batch", "old", "new"),
    [
        (pa.record_batch({"x": ["a" * 9, "b" * 8, "c" * 7]}), 17, 400_000_000),
        (pa.record_batch({"x": ["a" * 9, "b" * 8, "c" * 7]}), 17, -5),
        (pa.record_batch({"x": ["a" * 9, "b" * 8, "c" * 7]}), 17, 3),
        (pa.record_batch({"x": [[1] * 9, [2] * 8, [3] * 7]}), 17, 400_000_000),
        (pa.record_batch({"x": [{"y": "a" * 9}, {"y": "b" * 8}, {"y": "c" * 7}]}), 17, 400_000_000),
        (pa.record_batch({"x": [["a" * 9, "b" * 8], ["c" * 7]]}), 17, 400_000_000),
    ],
)
def test_offsets_that_point_outside_or_back_are_refused(batch: pa.RecordBatch, old: int, new: int) -> None:
    value = encode_samples(batch)
    wild = value.replace(struct.pack("<i", old), struct.pack("<i", new))
    assert wild != value
    for decode in (
        lambda: decode_samples(wild, batch.schema),
        lambda: decode_records([value, wild], batch.schema, "arrow"),
        lambda: decode_records([wild], batch.schema, "arrow"),
    ):
        with pytest.raises(UndecodableValueError):
            decode()


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_mutated_record_is_sound_or_refused(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from([NESTED, make_batch(9), NESTED.slice(1, 2)]))
    value = bytearray(encode_samples(batch))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(value) - 1))
        harm = data.draw(st.sampled_from(["flip", "cut", "splice", "int32", "int64"]))
        numbers = st.sampled_from([-1, 2**31 - 1, -(2**31), 2**20, 7])
        if harm == "flip":
            value[at] ^= 1 << data.draw(st.integers(0, 7))
        elif harm == "cut" and at > 8:
            del value[at:]
        elif harm == "splice":
            value[at:at] = value[data.draw(st.integers(0, len(value) - 1)) :][:32]
        elif harm == "int32":
            at -= at % 4
            value[at : at + 4] = struct.pack("<i", data.draw(numbers))
        else:
            at -= at % 8
            number = data.draw(numbers | st.sampled_from([2**60, 2**63 - 1, -(2**63), 2**40]))
            value[at : at + 8] = struct.pack("<q", number)
    follow_or_refuse(bytes(value), batch.schema)


@given(st.binary(max_size=400), st.sampled_from([NESTED.schema, make_batch(0).schema]))
def test_any_bytes_are_refused(value: bytes, schema: pa.Schema) -> None:
    for each in (value, b"\xff\xff\xff\xff" + value):
        follow_or_refuse(each, schema)


HOSTILE_JSON = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 10_000,
    b'{"n": ' + b"9" * 400 + b"}",
    b'{"n": ' + b"9" * 5000 + b"}",
    b'{"n": 1e999}',
    b'{"text": "\\ud800"}',
    b'{"text": 1}',
    b"\xff\xfe{}",
    b"null",
    b"[]",
    b"",
]


@pytest.mark.parametrize("value", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
def test_json_that_is_no_sample_is_refused(value: bytes) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    with pytest.raises(UndecodableValueError) as refused:
        decode_records([b'{"n":1,"text":"a"}', value], schema, "json")
    assert refused.value.reason.isprintable()


def test_samples_of_two_bytes_with_thousands_of_columns_are_refused() -> None:
    schema = pa.schema([(str(n), pa.string()) for n in range(5000)])
    with pytest.raises(UndecodableValueError, match="columns"):
        decode_records([b"{}"] * 4096, schema, "json")
    whole = json.dumps({str(n): "x" for n in range(5000)}).encode()
    assert decode_records([whole] * 3, schema, "json").num_rows == 3


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=9)
)
def test_any_json_is_decoded_or_refused(row: Any) -> None:
    schema = pa.schema(
        [("n", pa.int8()), ("x", pa.list_(pa.float32(), 2)), ("y", pa.struct([("z", pa.bool_())]))]
    )
    for each in ({"n": row}, {"x": row}, {"y": {"z": row}}, row):
        try:
            decode_records([json.dumps(each).encode()], schema, "json")
        except UndecodableValueError:
            continue


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_raw_bytes_that_are_no_text_are_refused(values: list[bytes]) -> None:
    batch = decode_records(values, pa.schema([("x", pa.binary())]), "raw")
    assert batch.column(0).to_pylist() == values
    try:
        texts = decode_records(values, pa.schema([("x", pa.string())]), "raw")
    except UndecodableValueError:
        return
    assert encode_records(texts, "raw") == values
