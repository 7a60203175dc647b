from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from evenload.dataset_catalog.errors import UndecodableValueError, UnsupportedTypeError
from evenload.dataset_catalog.records.encoding import (
    RecordHeader,
    decode_records,
    decode_samples,
    decode_value,
    encode_records,
    encode_samples,
    parse_record_header,
    record_header,
    storable_schema,
    value_hash,
)
from evenload.dataset_catalog.testing import make_batch


def test_columns_are_read_only_views_of_the_value() -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array(np.arange(1000))})
    value = encode_samples(batch)
    column = decode_samples(value, batch.schema).column(0)
    begin = pa.py_buffer(value).address
    assert begin <= column.buffers()[1].address < begin + len(value)
    assert not column.to_numpy().flags.writeable


def test_the_schema_is_not_in_the_value() -> None:
    schema = pa.schema([pa.field("a_long_column_name", pa.int64())], metadata={"much": "metadata" * 100})
    assert len(encode_samples(pa.RecordBatch.from_arrays([pa.array([1])], schema=schema))) < 170


def test_metadata_of_the_schema_stays() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), metadata={"k": "v"})], metadata={"huggingface": "{}"})
    assert storable_schema(schema).equals(schema, check_metadata=True)


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\xff" * 64])
def test_what_is_no_record_batch_is_refused(value: bytes) -> None:
    with pytest.raises(UndecodableValueError, match=f"value of {len(value)} bytes"):
        decode_samples(value, make_batch(1).schema)


def test_a_value_cut_short_is_refused() -> None:
    batch = make_batch(40)
    value = encode_samples(batch)
    for length in range(0, len(value) - 64, 97):
        with pytest.raises(UndecodableValueError):
            decode_samples(value[:length], batch.schema)


def test_a_dictionary_has_to_be_resolved_before_it_is_encoded() -> None:
    batch = pa.RecordBatch.from_pydict({"d": pa.array(["a"]).dictionary_encode()})
    with pytest.raises(UnsupportedTypeError, match="storable_batch"):
        encode_samples(batch)


def test_a_union_cannot_be_stored() -> None:
    kind = pa.struct([("u", pa.sparse_union([pa.field("a", pa.int8())]))])
    with pytest.raises(UnsupportedTypeError, match="column 's' of type"):
        storable_schema(pa.schema([("s", kind)]))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a", pa.int64())]),
        pa.schema([("a", pa.string()), ("b", pa.string())]),
        pa.schema([]),
    ],
)
def test_raw_is_for_exactly_one_column_of_bytes(schema: pa.Schema) -> None:
    with pytest.raises(UnsupportedTypeError, match="exactly one column"):
        storable_schema(schema, "raw")


def test_raw_refuses_nulls() -> None:
    with pytest.raises(UnsupportedTypeError, match="nulls"):
        encode_records(pa.RecordBatch.from_pydict({"a": pa.array(["x", None])}), "raw")


def test_raw_text_must_be_utf8() -> None:
    with pytest.raises(UndecodableValueError):
        decode_records([b"\xff"], pa.schema([("a", pa.string())]), "raw")


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.timestamp("s"), pa.float16(), pa.list_(pa.binary()), pa.decimal128(5)]
)
def test_json_refuses_types_it_would_change(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedTypeError, match="JSON has no"):
        storable_schema(pa.schema([("a", kind)]), "json")


def test_json_refuses_nan() -> None:
    with pytest.raises(UnsupportedTypeError, match="no NaN"):
        encode_records(pa.RecordBatch.from_pydict({"a": [float("nan")]}), "json")


def test_json_is_an_object_with_the_columns_names() -> None:
    pixels = pa.FixedShapeTensorArray.from_numpy_ndarray(np.array([[[1, 2], [3, 4]]], np.uint8))
    batch = pa.RecordBatch.from_pydict({"pixels": pixels, "text": ["grün\n"], "label": [None]})
    expected = '{"pixels":[1,2,3,4],"text":"grün\\n","label":null}'.encode()
    assert encode_records(batch, "json") == [expected]


@pytest.mark.parametrize("value", [b"[1]", b"{", b'{"a": "x"}', b'{"a": 99999999999999999999}', b"\xff"])
def test_json_of_another_shape_is_refused(value: bytes) -> None:
    with pytest.raises(UndecodableValueError):
        decode_records([value], pa.schema([("a", pa.int64())]), "json")


def test_fields_of_json_that_the_schema_does_not_name_are_passed_over() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert decode_value(b'{"c": 1, "a": 2}', schema, "json").to_pylist() == [{"a": 2, "b": None}]


def test_one_record_is_decoded_alike_in_any_format() -> None:
    batch = make_batch(1)
    assert decode_value(encode_samples(batch), batch.schema, "arrow").equals(batch)
    texts = pa.RecordBatch.from_pydict({"t": ["x"]})
    assert decode_value(memoryview(b"x"), texts.schema, "raw").equals(texts)


def test_no_records_are_no_rows() -> None:
    schema = make_batch(1).schema
    for value_format in ("arrow", "json"):
        assert decode_records([], schema, value_format).num_rows == 0


def test_a_header_is_24_bytes_that_say_load_sample_and_hash() -> None:
    header = record_header("00112233445566ff", 258, b"value")
    assert header.hex() == "00112233445566ff000000000000010287d57e269b9df0f0"
    parsed = parse_record_header(header)
    assert parsed == RecordHeader("00112233445566ff", 258, value_hash(b"value"))
    assert pickle.loads(pickle.dumps(parsed)) == parsed


@pytest.mark.parametrize("header", [None, b"", b"x" * 23, b"x" * 25])
def test_a_header_of_someone_else_is_none_of_ours(header: bytes | None) -> None:
    assert parse_record_header(header) is None
