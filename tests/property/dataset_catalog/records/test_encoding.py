from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.dataset_catalog.records.encoding import (
    add_checksum,
    decode_records,
    decode_samples,
    encode_records,
    encode_samples,
    sample_hashes,
    storable_batch,
    storable_schema,
)

# The first text that Hypothesis draws costs a second, and two cores may be busy.

Column = tuple[pa.DataType, st.SearchStrategy[Any]]

_integers = st.integers(-(2**31), 2**31 - 1)
_leaves: list[Column] = [
    (pa.int32(), _integers),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=20)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary(4), st.binary(min_size=4, max_size=4)),
    (pa.decimal128(20), st.integers(-(10**19), 10**19).map(str)),
    (pa.timestamp("us"), _integers),
    (pa.null(), st.none()),
]


def _nested(column: Column) -> list[Column]:
    kind, value = column
    item = st.none() | value
    return [
        (pa.list_(kind), st.lists(item, max_size=4)),
        (pa.large_list(kind), st.lists(item, max_size=4)),
        (pa.list_(kind, 3), st.lists(item, min_size=3, max_size=3)),
        (
            pa.struct([("a", kind), ("b", pa.string())]),
            st.fixed_dictionaries({"a": item, "b": st.text(max_size=3)}),
        ),
        (pa.map_(pa.string(), kind), st.lists(st.tuples(st.text(max_size=3), item), max_size=3)),
    ]


_columns = st.sampled_from(_leaves)
_columns |= st.sampled_from([deep for leaf in _leaves for deep in _nested(leaf)])
_columns |= st.sampled_from([deep for leaf in _leaves for once in _nested(leaf) for deep in _nested(once)])


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _has_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 12) -> pa.RecordBatch:
    num_rows = draw(st.integers(1, max_rows))
    columns = {}
    for number in range(draw(st.integers(1, 3))):
        kind, value = draw(
            _columns.filter(lambda column: not column[0].num_fields or not _has_decimal(column[0]))
        )
        items = draw(st.lists(st.none() | value, min_size=num_rows, max_size=num_rows))
        columns[f"c{number}"] = _array(kind, items)
    return pa.RecordBatch.from_pydict(columns)


@st.composite
def slices(draw: st.DrawFn) -> tuple[pa.RecordBatch, int, int]:
    batch = draw(batches())
    start = draw(st.integers(0, batch.num_rows - 1))
    return batch, start, draw(st.integers(1, batch.num_rows - start))


def _identical(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Equal, with NaN equal to NaN."""
    return _no_nan(a.to_pylist()) == _no_nan(b.to_pylist()) and a.schema == b.schema


def _no_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {key: _no_nan(item) for key, item in value.items()}
    return [_no_nan(item) for item in value] if isinstance(value, list | tuple) else value


@given(slices())
def test_a_slice_comes_back_with_the_same_rows_and_the_same_hashes(
    case: tuple[pa.RecordBatch, int, int],
) -> None:
    batch, start, length = case
    decoded = decode_samples(encode_samples(batch.slice(start, length)), batch.schema)
    decoded.validate(full=True)
    assert _identical(decoded, batch.slice(start, length))
    assert np.array_equal(sample_hashes(decoded), sample_hashes(batch)[start : start + length])


@given(st.lists(st.none() | st.text(max_size=20), min_size=1, max_size=50))
def test_a_slice_of_texts_is_encoded_in_as_many_bytes_as_a_copy_of_its_rows(
    texts: list[str | None],
) -> None:
    many = ["before"] * 100 + texts + ["after"] * 100
    for kind, wrap in (
        (pa.string(), lambda text: text),
        (pa.large_string(), lambda text: text),
        (pa.list_(pa.string()), lambda text: [text, text]),
        (pa.struct([("a", pa.string())]), lambda text: {"a": text}),
    ):
        array = pa.array([wrap(text) for text in many], kind)
        rows = pa.RecordBatch.from_arrays([array], ["c"]).slice(100, len(texts))
        copy = pa.RecordBatch.from_arrays([pa.array(rows["c"].to_pylist(), kind)], ["c"])
        # Each buffer of fixed width is padded to 8 bytes, a slice's with what follows it.
        padding = 8 * (len(array.buffers()) - 1)
        assert len(encode_samples(rows)) <= len(encode_samples(copy)) + padding


@given(slices(), st.integers(1, 7))
def test_an_address_of_any_alignment_is_decoded(case: tuple[pa.RecordBatch, int, int], shift: int) -> None:
    batch, _, _ = case
    value = encode_samples(batch)
    moved = memoryview(bytes(shift) + value)[shift:]
    assert np.array_equal(sample_hashes(decode_samples(moved, batch.schema)), sample_hashes(batch))


@given(batches())
def test_one_record_a_row_holds_the_same_samples_as_one_record_for_all(batch: pa.RecordBatch) -> None:
    decoded = decode_records(encode_records(batch, "arrow"), batch.schema, "arrow")
    assert _identical(decoded, batch)
    assert np.array_equal(sample_hashes(decoded), sample_hashes(batch))


@given(batches(), st.randoms(use_true_random=False))
def test_the_checksum_depends_on_the_samples_and_not_on_their_order(
    batch: pa.RecordBatch, random: Any
) -> None:
    hashes = sample_hashes(batch)
    order = list(range(batch.num_rows))
    random.shuffle(order)
    total = 0
    for row in order:
        total = add_checksum(total, sample_hashes(batch.slice(row, 1)))
    expected = sum(int(low) + (int(high) << 64) for low, high in hashes.tolist()) % 2**128
    assert total == add_checksum(0, hashes) == expected


@given(st.data())
def test_rows_have_equal_hashes_only_if_they_are_equal(data: st.DataObject) -> None:
    kind, value = data.draw(_columns.filter(lambda column: not _has_decimal(column[0])))
    items = data.draw(st.lists(st.none() | value, min_size=2, max_size=12))
    array = _array(kind, items)
    rows = [repr(_bitwise(item)) for item in array.to_pylist()]
    hashes = [tuple(each) for each in sample_hashes(pa.RecordBatch.from_arrays([array], ["c"])).tolist()]
    for i in range(len(rows)):
        for j in range(i):
            assert (rows[i] == rows[j]) == (hashes[i] == hashes[j]), (rows[i], rows[j])


def _bitwise(value: Any) -> Any:
    """A float by its bits, as hashes see it: repr tells 0.0 from -0.0, but not one NaN from another."""
    if isinstance(value, float) and math.isnan(value):
        return np.float64(value).tobytes()
    if isinstance(value, dict):
        return {key: _bitwise(item) for key, item in value.items()}
    return [_bitwise(item) for item in value] if isinstance(value, list | tuple) else value


@given(st.lists(st.none() | st.sampled_from(["red", "green", ""]), min_size=1, max_size=20))
def test_dictionaries_run_ends_and_views_are_stored_as_the_values_they_stand_for(
    words: list[str | None],
) -> None:
    plain = pa.array(words, pa.string())
    ends = pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(words) + 1), pa.int32()), plain)
    lists = pa.array([[word] for word in words], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    batch = pa.RecordBatch.from_arrays(
        [plain.dictionary_encode(), ends, plain.cast(pa.string_view()), lists],
        ["dictionary", "ends", "view", "in"],
    )
    schema = storable_schema(batch.schema)
    assert schema.types == [pa.string(), pa.string(), pa.string(), pa.list_(pa.string())]
    stored = storable_batch(batch, schema)
    assert np.array_equal(sample_hashes(stored), sample_hashes(batch))
    assert decode_samples(encode_samples(stored), schema).to_pylist() == batch.to_pylist()


_json_values: list[Column] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=20)),
    (pa.list_(pa.int8(), 2), st.lists(st.integers(-128, 127), min_size=2, max_size=2)),
    (pa.struct([("a", pa.list_(pa.string()))]), st.fixed_dictionaries({"a": st.lists(st.text(max_size=3))})),
]


@given(st.data())
def test_json_records_hold_the_same_samples(data: st.DataObject) -> None:
    kind, value = data.draw(st.sampled_from(_json_values))
    items = data.draw(st.lists(st.none() | value, min_size=1, max_size=8))
    batch = pa.RecordBatch.from_arrays([pa.array(items, kind)], ["c"])
    decoded = decode_records(encode_records(batch, "json"), batch.schema, "json")
    assert np.array_equal(sample_hashes(decoded), sample_hashes(batch))


@pytest.mark.parametrize(
    ("kind", "make"),
    [(pa.string(), st.text()), (pa.large_string(), st.text()), (pa.binary(), st.binary())],
)
@settings(max_examples=30)
@given(data=st.data())
def test_raw_records_hold_the_same_samples(
    kind: pa.DataType, make: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    items = data.draw(st.lists(make, min_size=1, max_size=8))
    batch = pa.RecordBatch.from_arrays([pa.array(items, kind)], ["c"])
    values = encode_records(batch, "raw")
    to_bytes: Callable[[Any], bytes] = lambda item: item.encode() if isinstance(item, str) else item  # noqa: E731
    assert values == [to_bytes(item) for item in items]
    decoded = decode_records(values, batch.schema, "raw")
    assert np.array_equal(sample_hashes(decoded), sample_hashes(batch))
