"""What an Arrow IPC message claims, looked at before Arrow believes it.

Arrow checks that a message is well formed, but does what it says: it allocates whatever compressed buffers
say that they unfold to, and a column of nulls or of zero-width values may have 2^60 rows in a hundred bytes.
Evenload writes neither, so such messages are refused by their metadata alone: a flatbuffer, of which the few
fields that matter are read here (https://github.com/apache/arrow/blob/main/format/Message.fbs).

    message = 0xFFFFFFFF | length of the metadata i32 | metadata | body       (little-endian)

Invariant, checked in tests/property/dataset_catalog/records/test_hostile_samples.py: whatever the bytes, what
Arrow makes of a message that is accepted has bounded numbers of rows, and no more bytes than the message.

Read next: encoding.py.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from evenload.dataset_catalog.extents import SAMPLES_PER_RECORD_MAX

_PREFIX: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF
_UINT16, _INT32, _UINT32, _INT64 = (struct.Struct(f"<{kind}") for kind in "HiIq")
_RECORD_BATCH: Final = 3  # MessageHeader's number of it
# Fields by their number in the schema of flatbuffers.
_HEADER_TYPE, _HEADER = 1, 2
_ROWS, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_REMEMBERED_BYTES: Final = 2048


def check_message(value: bytes | memoryview) -> None:
    """Refuses a record's value unless its metadata is as evenload writes it.

    Raises:
        ValueError: It has compressed buffers, claims more than it can hold, or isn't such a message.
    """
    if len(value) < _PREFIX.size:
        raise ValueError(f"{len(value)} bytes are no Arrow message")
    marker, length = _PREFIX.unpack_from(value)
    if marker != _CONTINUATION or not 0 <= length <= len(value) - _PREFIX.size:
        raise ValueError("it doesn't begin as an Arrow message does")
    metadata = bytes(value[_PREFIX.size : _PREFIX.size + length])
    # Records of a dataset are packed alike, so their metadata repeats, and looking it up takes less time.
    check = _check_remembered if length <= _REMEMBERED_BYTES else _check_metadata
    check(metadata, len(value))


def _check_metadata(metadata: bytes, num_bytes: int) -> None:
    message = _Table(metadata, _UINT32.unpack_from(metadata)[0])
    kind = message.place(_HEADER_TYPE)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise ValueError("it is another Arrow message than a record batch")
    batch = message.table(_HEADER)
    if batch.place(_COMPRESSION) is not None:
        raise ValueError("its buffers are compressed, which evenload never does")
    rows = batch.place(_ROWS)
    num_rows = 0 if rows is None else _INT64.unpack_from(metadata, rows)[0]
    if not 0 <= num_rows <= SAMPLES_PER_RECORD_MAX:
        raise ValueError(f"it claims {num_rows} samples, at most {SAMPLES_PER_RECORD_MAX} are in a record")
    lengths = batch.pairs(_NODES)[::2]  # rows of columns, and of what is inside of them; and their nulls
    num_rows_max = max(SAMPLES_PER_RECORD_MAX, num_bytes)
    if lengths and not 0 <= min(lengths) <= max(lengths) <= num_rows_max:
        raise ValueError(f"a column claims {max(lengths)} values, in {num_bytes} bytes")
    sizes = batch.pairs(_BUFFERS)[1::2]  # offsets in the body, and lengths
    # Were buffers to overlap, a thousand columns could each be the whole record.
    if sizes and (min(sizes) < 0 or sum(sizes) > num_bytes):
        raise ValueError(f"its buffers claim {sum(sizes)} bytes of {num_bytes}")


_check_remembered = lru_cache(maxsize=1024)(_check_metadata)


class _Table:
    """A table of a flatbuffer. A place outside of the buffer raises ValueError or struct.error."""

    __slots__ = ("_at", "_data", "_fields", "_num_fields")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = self._inside(at - _INT32.unpack_from(data, self._inside(at))[0])
        self._num_fields = (_UINT16.unpack_from(data, self._fields)[0] - 4) // 2

    def place(self, field: int) -> int | None:
        """Where the value of a field is; None when it isn't there."""
        if field >= self._num_fields:
            return None
        (offset,) = _UINT16.unpack_from(self._data, self._inside(self._fields + 4 + 2 * field))
        return self._inside(self._at + offset) if offset else None

    def table(self, field: int) -> _Table:
        return _Table(self._data, self._target(field))

    def pairs(self, field: int) -> tuple[int, ...]:
        """The numbers of a vector of structs of two int64."""
        if self.place(field) is None:
            return ()
        at = self._target(field)
        (count,) = _UINT32.unpack_from(self._data, at)
        if 16 * count > len(self._data) - at - 4:
            raise ValueError("its metadata is cut off")
        return struct.unpack_from(f"<{2 * count}q", self._data, at + 4)

    def _target(self, field: int) -> int:
        place = self.place(field)
        if place is None:
            raise ValueError("its metadata lacks a field")
        return self._inside(place + _UINT32.unpack_from(self._data, place)[0])

    def _inside(self, place: int) -> int:
        # A negative place would count from the end, and not be what Arrow reads.
        if not 0 <= place <= len(self._data) - 2:
            raise ValueError("its metadata points outside of itself")
        return place
