"""Arrow schemas as manifests keep them, and the plain types that samples are stored as.

A schema that comes from a manifest decides how bytes are read as columns, so it is checked before anything
is read by it: only plain types, which are all that a loader writes.

Read next: encoding.py.
"""

from __future__ import annotations

import base64

import pyarrow as pa

from evenload.dataset_catalog.errors import UnsupportedTypeError

COLUMNS_MAX = 1 << 16


def encode_schema(schema: pa.Schema) -> str:
    """A schema as `DatasetManifest.schema_ipc` keeps it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(schema_ipc: str) -> pa.Schema:
    """The inverse of `encode_schema`.

    Raises:
        Exception: It isn't a schema that a loader wrote; see `foreign_content.refused_as`.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema_ipc, validate=True)))
    if len(schema) > COLUMNS_MAX:
        raise ValueError(f"it has {len(schema)} columns, more than {COLUMNS_MAX}")
    if len(set(schema.names)) != len(schema):
        raise ValueError("several of its columns have the same name")
    for field in schema:
        if plain_type(field.name, field.type) != field.type:
            raise UnsupportedTypeError(field.name, str(field.type), "records hold plain types only")
    # Made anew: one that says it is big-endian would have Arrow swap the bytes of every value.
    return pa.schema(list(schema), metadata=schema.metadata)


def plain_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type that values of this one are stored as.

    Raises:
        UnsupportedTypeError: There is none.
    """
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(name, kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_union(kind):
        raise UnsupportedTypeError(name, str(kind), "it holds a union; make a column of each of its types")
    if isinstance(kind, pa.BaseExtensionType):
        if plain_type(name, kind.storage_type) != kind.storage_type:
            raise UnsupportedTypeError(
                name, str(kind), f"it is kept as {kind.storage_type}; use a plain type"
            )
        return kind
    if types.is_map(kind):
        return pa.map_(plain_type(name, kind.key_type), plain_type(name, kind.item_type), kind.keys_sorted)
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(name, field.type)) for field in kind])
    return _plain_list_type(name, kind)


def _plain_list_type(name: str, kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(name, kind.value_field), kind.list_size)
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(_plain_field(name, kind.value_field))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(_plain_field(name, kind.value_field))
    return kind


def _plain_field(name: str, field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(name, field.type))
