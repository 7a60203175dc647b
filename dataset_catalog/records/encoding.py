"""How samples become the value of a Kafka record, and come back.

`packed` and the default of `record` are Arrow IPC without the schema, which stands once in the
manifest: a record is decoded without copying, and several columns of any type cost one message. With
`record` (one sample each) a value may also be what other programs read: `raw` bytes of the only column,
or a `json` object.

Every type that is stored has one plain form: dictionaries, run-end encoding and views are resolved by
`storable_schema` / `storable_batch` before anything is encoded or hashed, because their dictionaries
would be lost with the schema.

A value is foreign: decoding either gives a batch in which every offset was checked, or UndecodableValueError.

Invariants, checked in tests/property/dataset_catalog/records/test_encoding.py:
1. Decoding what was encoded gives equal rows and equal sample hashes, for slices and offsets too.
2. A slice is encoded in as many bytes as a copy of its rows, but for the padding of its buffers.

Read next: sample_hash.py, record_header.py (both re-exported here).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evenload.dataset_catalog.errors import UndecodableValueError, UnsupportedTypeError
from evenload.dataset_catalog.foreign_content import reason_of, refused_as
from evenload.dataset_catalog.manifest import ValueFormat
from evenload.dataset_catalog.records.arrow_message import check_message
from evenload.dataset_catalog.records.record_header import (
    RECORD_HEADER,
    RecordHeader,
    parse_record_header,
    record_header,
    value_hash,
)
from evenload.dataset_catalog.records.sample_hash import (
    HashArray,
    add_checksum,
    format_checksum,
    sample_hashes,
)
from evenload.dataset_catalog.stored_schema import plain_type

__all__ = [
    "RECORD_HEADER",
    "HashArray",
    "RecordHeader",
    "add_checksum",
    "decode_records",
    "decode_samples",
    "decode_value",
    "encode_records",
    "encode_samples",
    "format_checksum",
    "parse_record_header",
    "record_header",
    "sample_hashes",
    "storable_batch",
    "storable_schema",
    "value_hash",
]

_JSON_VALUES_MAX = 1 << 20

_Trimmer = Callable[[pa.Array], pa.Array]


def storable_schema(schema: pa.Schema, value_format: ValueFormat = "arrow") -> pa.Schema:
    """The schema under which such samples are stored: the same names and values, plain types.

    Raises:
        UnsupportedTypeError: A column can't be stored in this format.
    """
    if value_format == "raw" and (
        len(schema) != 1 or not _is_bytes_like(plain_type("", schema.field(0).type))
    ):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise UnsupportedTypeError(
            columns, "raw", "raw records hold exactly one column of strings or binary; store as arrow or json"
        )
    fields = []
    for field in schema:
        kind = plain_type(field.name, field.type)
        problem = _json_problem(kind) if value_format == "json" else None
        if problem:
            raise UnsupportedTypeError(field.name, str(kind), problem)
        fields.append(field.with_type(kind))
    return pa.schema(fields, metadata=schema.metadata)


def storable_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch under a schema that `storable_schema` gave; zero-copy where types are equal already."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if pa.types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def encode_samples(batch: pa.RecordBatch) -> bytes:
    """The batch's rows as one Arrow IPC record batch message, without the schema.

    Raises:
        UnsupportedTypeError: A column is not of a plain type; see `storable_schema`.
    """
    return _serialize(batch, _trimmers(batch.schema))


def decode_samples(value: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of one record, without copying: columns are read-only views of `value`.

    Arrays begin at whatever address `value` has, which need not be a multiple of their item size.

    Raises:
        UndecodableValueError: The value is not such a message, or not of this schema.
    """
    # Not refused_as: entering a context manager costs as much as decoding a record of one sample.
    try:
        batch = _read_batch(value, schema)
        _check_bytes(batch, schema)
    except Exception as error:
        raise UndecodableValueError(reason_of(error), len(value)) from error
    return batch


def _read_batch(value: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a record, all checked but what is inside of top-level strings and binary."""
    check_message(value)
    batch = pa.ipc.read_record_batch(pa.py_buffer(value), schema)
    batch.validate()
    for position in _columns_of(schema).nested:
        # Their inner offsets can point anywhere, and whoever follows them reads foreign memory.
        batch.column(position).validate(full=True)
    return batch


def _check_bytes(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuses strings and binary whose offsets don't ascend within their data.

    They are looked at as binary, which leaves UTF-8 unchecked: that would take longer than all the rest of
    reading, and Python does it for each string that it makes.
    """
    for position, kind in _columns_of(schema).bytes_like:
        batch.column(position).view(kind).validate(full=True)


class _Columns(NamedTuple):
    """Which columns of a schema need more than a look at their first and last offset."""

    schema: pa.Schema
    nested: tuple[int, ...]
    bytes_like: tuple[tuple[int, pa.DataType], ...]


# Of the schema that was asked for last: hashing a schema takes longer than decoding a small record.
_last_columns = _Columns(pa.schema([]), (), ())


def _columns_of(schema: pa.Schema) -> _Columns:
    global _last_columns
    known = _last_columns
    if known.schema is schema:
        return known
    kinds = list(enumerate(schema.types))
    small = (pa.string(), pa.binary())
    found = _Columns(
        schema,
        tuple(at for at, kind in kinds if not (_is_fixed_width(kind) or _is_bytes_like(kind))),
        tuple(
            (at, pa.binary() if kind in small else pa.large_binary())
            for at, kind in kinds
            if _is_bytes_like(kind)
        ),
    )
    _last_columns = found
    return found


def encode_records(batch: pa.RecordBatch, value_format: ValueFormat) -> list[bytes]:
    """One value a row.

    Raises:
        UnsupportedTypeError: The format can't hold the schema, or a value in it (a null in `raw`; NaN or
            infinity in `json`).
    """
    match value_format:
        case "arrow":
            trimmers = _trimmers(batch.schema)
            return [_serialize(batch.slice(row, 1), trimmers) for row in range(batch.num_rows)]
        case "raw":
            return _encode_raw(batch)
        case "json":
            return _encode_json(batch)
    assert_never(value_format)


def decode_records(values: Sequence[bytes], schema: pa.Schema, value_format: ValueFormat) -> pa.RecordBatch:
    """The rows of many records of one sample each, as one batch; copies.

    Raises:
        UndecodableValueError: A value is not in this format, or not of this schema.
    """
    match value_format:
        case "arrow":
            return _decode_arrow(values, schema)
        case "raw":
            return _decode_raw(values, schema)
        case "json":
            return _decode_json(values, schema)
    assert_never(value_format)


def decode_value(value: bytes | memoryview, schema: pa.Schema, value_format: ValueFormat) -> pa.RecordBatch:
    """The rows of one record in any encoding.

    Raises:
        UndecodableValueError: The value is not in this format, or not of this schema.
    """
    if value_format == "arrow":
        return decode_samples(value, schema)
    return decode_records([bytes(value)], schema, value_format)


def _decode_arrow(values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    try:
        # Strings and binary are checked once for all: joining follows only first and last offsets.
        batch = _concatenate([_read_batch(value, schema) for value in values], schema)
        _check_bytes(batch, schema)
    except Exception as error:
        raise UndecodableValueError(reason_of(error), sum(map(len, values))) from error
    return batch


def _encode_raw(batch: pa.RecordBatch) -> list[bytes]:
    storable_schema(batch.schema, "raw")
    name, column = batch.schema.names[0], batch.column(0)
    if column.null_count:
        raise UnsupportedTypeError(
            name, str(column.type), "it has nulls, which raw records can't tell from ''"
        )
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


def _decode_raw(values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    with refused_as(lambda reason: UndecodableValueError(reason, sum(map(len, values)))):
        column = pa.array(values, pa.large_binary()).cast(schema.field(0).type)
    return pa.RecordBatch.from_arrays([column], schema=schema)


def _encode_json(batch: pa.RecordBatch) -> list[bytes]:
    storable_schema(batch.schema, "json")
    names = batch.schema.names
    columns = [_storage(column).to_pylist() for column in batch.columns]
    try:
        return [
            json.dumps(
                dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False, separators=(",", ":")
            ).encode()
            for row in zip(*columns, strict=True)
        ]
    except ValueError as error:
        raise UnsupportedTypeError(
            ", ".join(names), "json", f"JSON has no NaN and no infinity ({error}); store as arrow"
        ) from error


def _decode_json(values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    num_bytes = sum(map(len, values))
    with refused_as(lambda reason: UndecodableValueError(reason, num_bytes)):
        # A row of two bytes can lack a value in each of a thousand columns, and nulls take memory too.
        if len(values) * len(schema) > max(_JSON_VALUES_MAX, 4 * num_bytes):
            raise ValueError(f"{len(values)} samples in {num_bytes} bytes can't have {len(schema)} columns")
        rows = [json.loads(value) for value in values]
        columns = [_json_column([row.get(field.name) for row in rows], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _json_column(items: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(items, kind.storage_type))
    return pa.array(items, kind)


def _concatenate(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [
        pa.concat_arrays([batch.column(i) for batch in batches]) if batches else pa.nulls(0, field.type)
        for i, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_bytes_like(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_fixed_width(kind: pa.DataType) -> bool:
    """Whether values lie at multiples of a width: no offsets to follow."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_fixed_width(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return _is_fixed_width(kind.value_type)
    return bool(
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_null(kind)
    )


def _json_problem(kind: pa.DataType) -> str | None:
    """Why values of this type don't survive JSON; None when they do."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _json_problem(kind.storage_type)
    if types.is_struct(kind):
        nested = [field.type for field in kind]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        nested = [kind.value_type]
    else:
        simple = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_null)
        is_text = types.is_string(kind) or types.is_large_string(kind)
        return (
            None if is_text or any(check(kind) for check in simple) else f"JSON has no {kind}; store as arrow"
        )
    if any(isinstance(item, pa.BaseExtensionType) for item in nested):
        return "JSON can't hold an extension type inside another type; store as arrow"
    return next(filter(None, map(_json_problem, nested)), None)


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


def _trimmers(schema: pa.Schema) -> list[_Trimmer | None]:
    """For each column, what keeps Arrow IPC from writing rows beside a slice; None where it doesn't.

    For a slice of strings or binary it writes up to 63 bytes of the values that follow (it pads from
    the buffer at hand): with one sample a record, that is a third more for short texts.

    Raises:
        UnsupportedTypeError: A column is not of a plain type.
    """
    trimmers: list[_Trimmer | None] = []
    for field in schema:
        if plain_type(field.name, field.type) != field.type:
            raise UnsupportedTypeError(field.name, str(field.type), "resolve it with storable_batch first")
        inside = _copy_rows if _holds_bytes(field.type) else None
        trimmers.append(_cut_off_data if _is_bytes_like(field.type) else inside)
    return trimmers


def _serialize(batch: pa.RecordBatch, trimmers: list[_Trimmer | None]) -> bytes:
    if any(trimmers):
        columns = [
            trim(column) if trim else column for trim, column in zip(trimmers, batch.columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return bytes(batch.serialize())


def _cut_off_data(column: pa.Array) -> pa.Array:
    """Strings or binary whose data ends with the last of them, without copying."""
    validity, offsets, data = column.buffers()
    if data is None or not len(column):
        return column
    is_large = column.type in (pa.large_string(), pa.large_binary())
    dtype = np.dtype(np.int64 if is_large else np.int32)
    end = int(np.frombuffer(offsets, dtype, 1, (column.offset + len(column)) * dtype.itemsize)[0])
    buffers = [validity, offsets, data.slice(0, end)]
    return pa.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)


def _copy_rows(column: pa.Array) -> pa.Array:
    return column.take(pa.array(np.arange(len(column))))


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether values of variable length lie anywhere inside."""
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_bytes(kind.storage_type)
    return _is_bytes_like(kind) or any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
