"""A 128-bit hash of each sample, and their sum: what a dataset holds, whatever its order.

A hash depends on a row's column names, in order, and values, and on nothing else: not on how rows are
packed into records, sliced, chunked, or what lies under a null. So the sum taken from the source
while loading equals the sum over decoded records, in any order. The sum is modulo 2^128 (with XOR, a
sample stored twice more would cancel). Hashes are stored in manifests: changing a constant or a rule here
makes every older manifest fail its check. Golden values guard against that, in
tests/unit/dataset_catalog/records/test_encoding_hashes.py.

Rules: fixed-width values up to 8 bytes, by their bits (NaN and -0.0 too), mixed as SplitMix64 does with two
keys (splitmix64.py); wider ones, strings, binary and lists of fixed-width values by xxh3_128 over their
bytes; other lists, element by element with its place; a null is a constant of its own, and what is under it
is not looked at.

This is no defence against forgery: it is there to notice accidents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from evenload.dataset_catalog.errors import UnsupportedTypeError
from evenload.dataset_catalog.splitmix64 import mix_in_place

HashArray = npt.NDArray[np.uint64]  # [rows, 2]: low 64 bits, high 64 bits
_ByteArray = npt.NDArray[np.uint8]
_Positions = npt.NDArray[np.int64]

_MODULUS = 1 << 128
_LANES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)
_NULL = np.array([0xD6E8FEB86659FD93, 0xA0761D6478BD642F], dtype=np.uint64)
_STEP = np.uint64(0x9FB21C651E98DF25)


def sample_hashes(batch: pa.RecordBatch) -> HashArray:
    """One 128-bit hash a row.

    Args:
        batch: Any columns but unions; dictionaries and views are hashed as the values that they stand for.

    Returns:
        [rows, 2] uint64: low and high 64 bits.

    Raises:
        UnsupportedTypeError: A column holds a union.
    """
    return _hash_fields(batch.num_rows, batch.schema.names, batch.columns)


def add_checksum(total: int, hashes: HashArray) -> int:
    """`total` plus all hashes, modulo 2^128; begin with 0."""
    halves = np.ascontiguousarray(hashes).view("<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    added = sum(int(half) << (32 * place) for place, half in enumerate(halves))
    return (total + added) % _MODULUS


def format_checksum(total: int) -> str:
    """A checksum as manifests write it: 32 hex digits."""
    return f"{total:032x}"


def _hash_fields(num_rows: int, names: Sequence[str], columns: Sequence[pa.Array]) -> HashArray:
    state = np.tile(_LANES, (num_rows, 1))
    for name, column in zip(names, columns, strict=True):
        salt = _from_digests([xxhash.xxh3_128_digest(name.encode())])
        state = mix_in_place(state * _STEP + mix_in_place(_hash_column(name, column) ^ salt))
    return state


def _hash_column(name: str, array: pa.Array) -> HashArray:
    array = _plain(array)
    hashes = _hash_values(name, array)
    valid = _validity(array)
    if valid is not None:
        hashes = np.where(valid[:, None], hashes, _NULL)
    return hashes


def _hash_values(name: str, array: pa.Array) -> HashArray:
    """Hashes of all rows, of rows that are null too (meaningless there)."""
    kind, rows = array.type, len(array)
    if rows == 0 or pa.types.is_null(kind):
        return np.tile(_NULL, (rows, 1))
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
        return _hash_fields(rows, [field.name for field in kind], children)
    if _is_list(kind):
        return _hash_lists(name, array)
    if _is_variable_bytes(kind):
        offsets = _offsets(array)
        return _hash_ranges(_bytes_of(array.buffers()[2]), offsets[:-1], offsets[1:])
    width = _fixed_width(kind)
    if width is None:
        raise UnsupportedTypeError(name, str(kind), "unions can't be hashed; make a struct of it")
    data = _fixed_width_bytes(array, width)
    if width in (1, 2, 4, 8):
        bits = data.view(f"<u{width}").astype(np.uint64)
        return mix_in_place(bits[:, None] ^ _LANES)
    starts = np.arange(rows, dtype=np.int64) * width
    return _hash_ranges(data, starts, starts + width)


def _hash_lists(name: str, array: pa.Array) -> HashArray:
    starts, stops = _list_bounds(array)
    first, last = int(starts[0]), int(stops[-1])
    items = _plain(array.values.slice(first, last - first))
    starts, stops = starts - first, stops - first
    width = _fixed_width(items.type)
    if width is None:
        return _hash_list_items(_hash_column(name, items), starts, stops)
    data, valid = _fixed_width_bytes(items, width), _validity(items)
    if valid is None:
        return _hash_ranges(data, starts * width, stops * width)
    data = np.where(valid[:, None], data.reshape(-1, width), np.uint8(0)).reshape(-1)
    hashes = _hash_ranges(data, starts * width, stops * width)
    num_nulls = np.concatenate([np.zeros(1, np.int64), np.cumsum(~valid)])
    has_null = num_nulls[stops] > num_nulls[starts]
    which = _hash_ranges(valid.view(np.uint8), starts[has_null], stops[has_null])
    hashes[has_null] = mix_in_place(hashes[has_null] * _STEP + which)
    return hashes


def _hash_list_items(items: HashArray, starts: _Positions, stops: _Positions) -> HashArray:
    """Sums of item hashes, each mixed with its place in the list, then mixed with the list's length."""
    lengths = stops - starts
    place = (np.arange(len(items), dtype=np.int64) - np.repeat(starts, lengths)).astype(np.uint64)
    placed = mix_in_place(items + mix_in_place(place[:, None] ^ _LANES))
    # Differences of a running sum modulo 2^64: np.add.reduceat gets empty lists wrong.
    running = np.concatenate([np.zeros((1, 2), np.uint64), np.cumsum(placed, axis=0, dtype=np.uint64)])
    return mix_in_place(
        (running[stops] - running[starts]) + mix_in_place(lengths.astype(np.uint64)[:, None] ^ _LANES)
    )


def _hash_ranges(data: _ByteArray, starts: _Positions, stops: _Positions) -> HashArray:
    """xxh3_128 of data[start:stop] for each pair."""
    digest = xxhash.xxh3_128_digest
    lengths = stops - starts
    if lengths.size and lengths[0] > 0 and (lengths == lengths[0]).all() and (stops[:-1] == starts[1:]).all():
        # Rows of equal length, end to end: iterating a matrix costs half of slicing a memoryview.
        matrix = cast(Iterable[bytes], data[starts[0] : stops[-1]].reshape(-1, int(lengths[0])))
        return _from_digests(list(map(digest, matrix)))
    view = data.data
    bounds = zip(starts.tolist(), stops.tolist(), strict=True)
    return _from_digests([digest(view[start:stop]) for start, stop in bounds])


def _from_digests(digests: Sequence[bytes]) -> HashArray:
    both: HashArray = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)[:, ::-1].astype(np.uint64)
    return both


def _plain(array: pa.Array) -> pa.Array:
    """The values themselves: without extension type, dictionary, run ends or views."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage)
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return array.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return array.cast(pa.large_list(kind.value_field))
    return array


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_map(kind)
    )


def _is_variable_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _fixed_width(kind: pa.DataType) -> int | None:
    """Bytes of a value, 1 for a bool; None for nested types and those of variable length."""
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_interval(kind):
        return int(kind.bit_width) // 8
    return None


def _fixed_width_bytes(array: pa.Array, width: int) -> _ByteArray:
    """The values' bytes, one after the other, `width` each."""
    data = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        return _bits(data, array.offset, len(array)).view(np.uint8)
    return _bytes_of(data)[array.offset * width : (array.offset + len(array)) * width]


def _validity(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where there is a value; None when there is one everywhere."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    return _bits(array.buffers()[0], array.offset, len(array))


def _offsets(array: pa.Array) -> _Positions:
    """[rows + 1] positions in the data, of strings and lists alike."""
    kind = array.type
    is_large = (
        pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    )
    dtype = np.dtype(np.int64 if is_large else np.int32)
    at = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, at).astype(np.int64)


def _list_bounds(array: pa.Array) -> tuple[_Positions, _Positions]:
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = (array.offset + np.arange(len(array), dtype=np.int64)) * size
        return starts, starts + size
    offsets = _offsets(array)
    return offsets[:-1], offsets[1:]


def _bytes_of(buffer: Any) -> _ByteArray:
    return np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.empty(0, np.uint8)


def _bits(buffer: Any, offset: int, length: int) -> npt.NDArray[np.bool_]:
    first = offset // 8
    packed = _bytes_of(buffer)[first : (offset + length + 7) // 8]
    bits = np.unpackbits(packed, bitorder="little")[offset - first * 8 :][:length]
    return bits.view(np.bool_)
