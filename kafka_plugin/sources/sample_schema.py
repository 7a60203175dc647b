"""What samples look like: plain Arrow types, and what a column means, kept with its field.

Sources come with dictionaries, 64-bit strings, views and the datasets library's own array types. In Kafka a
dataset has none of these: a record has to be readable alone, with the manifest's schema and any Arrow. So
columns are brought to plain types here, and what the type can't say is kept in the field's metadata:

    evenload.feature       "image" for struct<bytes: binary, path: string>, "class_label" for an integer
    with names evenload.class_names   the names, a JSON list; a label is an index into it

Arrays of a fixed shape are Arrow's own fixed_shape_tensor.

Invariants, checked in tests/unit/kafka_plugin/sources/test_schema.py: `plain_batch` never changes a value,
and gives exactly `plain_schema`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from evenload.kafka_plugin.errors import MalformedSourceError, UnknownColumnError, UnsupportedSourceError

FEATURE_KEY = b"evenload.feature"
CLASS_NAMES_KEY = b"evenload.class_names"
_IMAGE_STORAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def plain_schema(schema: pa.Schema, source: str) -> pa.Schema:
    """The schema that samples of `schema` have once they are plain.

    Args:
        schema: As the file or table has it, with the metadata of the datasets library if it wrote that.
        source: What it is the schema of, for errors.

    Raises:
        UnsupportedSourceError: A column has a type that can't be brought to a plain one.
    """
    features = _datasets_features(schema)
    return pa.schema([_plain_field(field, features.get(field.name, {}), source) for field in schema])


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema, source: str) -> pa.RecordBatch:
    """The columns of `schema`, taken out of `batch` by name and brought to its types; no copy where they
    agree.

    Raises:
        MalformedSourceError: A value can't be brought to its column's type.
    """
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            column = _plain_column(column, field, source)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def select_columns(schema: pa.Schema, columns: Sequence[str] | None, source: str) -> pa.Schema:
    """The part of `schema` that `columns` names, in their order; all of it if None.

    Raises:
        UnknownColumnError: A name is not there.
        MalformedSourceError: A name is there more than once.
    """
    for column in columns or ():
        if column not in schema.names:
            raise UnknownColumnError(source, column, schema.names)
    counts = Counter(schema.names)
    for column in columns or schema.names:
        if counts[column] > 1:
            raise MalformedSourceError(source, f"it has {counts[column]} columns named {column!r}.")
    if not columns:
        return schema
    return pa.schema([schema.field(column) for column in columns], metadata=schema.metadata)


def readable_features(schema: pa.Schema) -> dict[str, str]:
    """What each column is, for people: its type, `image`, or `class label: cat, dog`."""
    return {field.name: _readable(field) for field in schema}


def class_label_field(name: str, class_names: Sequence[str]) -> pa.Field:
    """An integer column whose values are indices into `class_names`."""
    names = json.dumps(list(class_names), ensure_ascii=False).encode()
    return pa.field(name, pa.int64(), metadata={FEATURE_KEY: b"class_label", CLASS_NAMES_KEY: names})


def image_field(name: str) -> pa.Field:
    """A column of encoded images: their bytes as in the file, and where they came from."""
    return pa.field(name, _IMAGE_STORAGE, metadata={FEATURE_KEY: b"image"})


def class_names_of(field: pa.Field) -> list[str] | None:
    """The names that a label column's values stand for, or None."""
    names = (field.metadata or {}).get(CLASS_NAMES_KEY)
    return None if names is None else list(json.loads(names))


def is_image(field: pa.Field) -> bool:
    """Whether the column holds encoded images."""
    return (field.metadata or {}).get(FEATURE_KEY) == b"image"


def _datasets_features(schema: pa.Schema) -> Mapping[str, Mapping[str, Any]]:
    """What the datasets library wrote about columns: {"label": {"_type": "ClassLabel", "names": [...]}}."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}


def _plain_field(field: pa.Field, feature: Mapping[str, Any], source: str) -> pa.Field:
    kind = feature.get("_type")
    if field.metadata and FEATURE_KEY in field.metadata:  # written by evenload itself
        own = {key: value for key, value in field.metadata.items() if key in (FEATURE_KEY, CLASS_NAMES_KEY)}
        return pa.field(field.name, _plain_type(field.type, field.name, source), metadata=own)
    if kind == "ClassLabel" and feature.get("names"):
        return class_label_field(field.name, feature["names"])
    if kind == "Image" or field.type == _IMAGE_STORAGE:
        return image_field(field.name)
    shape = feature.get("shape")
    if shape and None not in shape and str(kind).startswith("Array"):
        value_type = pa.type_for_alias("uint8" if feature["dtype"] == "bool" else feature["dtype"])
        return pa.field(field.name, pa.fixed_shape_tensor(value_type, list(shape)))
    return pa.field(field.name, _plain_type(field.type, field.name, source))


def _plain_type(given: pa.DataType, column: str, source: str) -> pa.DataType:
    def plain(inner: pa.DataType) -> pa.DataType:
        return _plain_type(inner, column, source)

    if isinstance(given, pa.FixedShapeTensorType):
        return given
    if isinstance(given, pa.BaseExtensionType):
        return plain(given.storage_type)
    if pat.is_dictionary(given):
        return plain(given.value_type)
    if pat.is_null(given) or pat.is_large_string(given) or pat.is_string_view(given):
        return pa.string()
    if pat.is_large_binary(given) or pat.is_binary_view(given):
        return pa.binary()
    if pat.is_list(given) or pat.is_large_list(given):
        return pa.list_(plain(given.value_type))
    if pat.is_fixed_size_list(given):
        return pa.list_(plain(given.value_type), given.list_size)
    if pat.is_struct(given):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in given])
    if pat.is_map(given):
        return pa.map_(plain(given.key_type), plain(given.item_type))
    if pat.is_primitive(given) or pat.is_string(given) or pat.is_binary(given) or pat.is_decimal(given):
        return given
    if pat.is_fixed_size_binary(given):
        return given
    # Arrow 26 casts list_view<int8> [[1], [2]] to [[1], []]: better refused than wrong.
    raise UnsupportedSourceError(source, f"has column {column!r} of type {given}, which can't be loaded.")


def _plain_column(column: pa.Array, field: pa.Field, source: str) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    try:
        if isinstance(field.type, pa.FixedShapeTensorType):
            return _tensors(column, field.type)
        return column.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise MalformedSourceError(
            source, f"column {field.name!r} can't be read as {field.type}: {error}"
        ) from error


def _tensors(column: pa.Array, tensor_type: pa.FixedShapeTensorType) -> pa.Array:
    """Nested lists, all of the same lengths, as tensors."""
    if column.null_count:
        raise ValueError(f"{column.null_count} of {len(column)} arrays are null")
    values = column
    for size in tensor_type.shape:
        lengths = values.value_lengths() if not pat.is_fixed_size_list(values.type) else None
        if lengths is not None and not all(length == size for length in lengths.unique().to_pylist()):
            raise ValueError(f"not all arrays have the shape {tuple(tensor_type.shape)}")
        values = values.flatten()
    if values.null_count:
        raise ValueError("an array has null in it")
    per_array = 1
    for size in tensor_type.shape:
        per_array *= size
    storage = pa.FixedSizeListArray.from_arrays(values.cast(tensor_type.value_type), per_array)
    return pa.ExtensionArray.from_storage(tensor_type, storage)


def _readable(field: pa.Field) -> str:
    if is_image(field):
        return "image"
    names = class_names_of(field)
    if names is not None:
        return f"class label: {', '.join(names)}"
    if isinstance(field.type, pa.FixedShapeTensorType):
        return f"{field.type.value_type}[{', '.join(map(str, field.type.shape))}]"
    return str(field.type)
