"""How samples become the value of a Kafka record, and come back.

`packed` and the default of `record` are Arrow IPC without the schema, which stands once in the
manifest: a record is decoded without copying, and several columns of any type cost one message. With
`record` (one sample each) a value may also be what other programs read: `raw` bytes of the only column,
or a `json` object.

Every type that is stored has one plain form: dictionaries, run-end encoding and views are resolved by
`storable_schema` / `storable_batch` before anything is encoded or hashed, because their dictionaries
would be lost with the schema.

Invariants, checked in tests/property/test_encoding.py:
1. Decoding what was encoded gives equal rows and equal sample hashes, for slices and offsets too.
2. A slice is encoded in as many bytes as a copy of its rows, but for the padding of its buffers.

Read next: sample_hash.py, record_header.py (both re-exported here).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataset_catalog.errors import UndecodableValueError, UnsupportedTypeError
from dataset_catalog.manifest import ValueFormat
from dataset_catalog.record_header import (
    RECORD_HEADER,
    RecordHeader,
    parse_record_header,
    record_header,
    value_hash,
)
from dataset_catalog.sample_hash import HashArray, add_checksum, format_checksum, sample_hashes
from dataset_catalog.stored_schema import plain_type

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
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(value), schema)
        batch.validate()
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise UndecodableValueError(_first_line(error), len(value)) from error
    return batch


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
            batches = [decode_samples(value, schema) for value in values]
            return _concatenate(batches, schema)
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


def _encode_raw(batch: pa.RecordBatch) -> list[bytes]:
    storable_schema(batch.schema, "raw")
    name, column = batch.schema.names[0], batch.column(0)
    if column.null_count:
        raise UnsupportedTypeError(
            name, str(column.type), "it has nulls, which raw records can't tell from ''"
        )
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]


def _decode_raw(values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    try:
        column = pa.array(values, pa.large_binary()).cast(schema.field(0).type)
    except pa.ArrowInvalid as error:
        raise UndecodableValueError(_first_line(error), sum(map(len, values))) from error
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
    try:
        rows = [json.loads(value) for value in values]
        columns = [_json_column([row.get(field.name) for row in rows], field.type) for field in schema]
    except (ValueError, AttributeError, TypeError, OverflowError, pa.ArrowException) as error:
        raise UndecodableValueError(_first_line(error), sum(map(len, values))) from error
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


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
