"""Open records without asking Arrow where their columns are, when the last record already told.

An Arrow message begins with metadata that says where each column's bytes lie in it. Records of a dataset are
packed alike, so for columns of fixed width that metadata is the same from record to record; and where it is
the same, so are the places. Comparing it costs a microsecond, having Arrow read it (and making arrays of it)
a hundred when nothing of that is in the processor's cache, as between two blocks.

Invariant, checked in tests/property/ray_trainer/reading/test_record_layout.py: a block opened this way reads
as one opened through Arrow.

Read next: decoding.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from evenload.dataset_catalog.manifest import DatasetManifest, ValueFormat
from evenload.dataset_catalog.records.encoding import decode_records, decode_samples
from evenload.ray_trainer.reading.columns import OpenColumn
from evenload.ray_trainer.reading.decoding import BatchDecoder, OpenBlock
from evenload.ray_trainer.reading.gather import gather

# An Arrow IPC message: continuation marker, length of the metadata, metadata, body.
_MESSAGE: Final = struct.Struct("<Ii")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where columns lie in records that begin alike.

    Attributes:
        head: a record's first bytes, up to the end of the metadata.
        size_bytes: of the record.
        num_rows: in it.
        place: of each column's first value, in bytes from the record's beginning.
    """

    head: bytes
    size_bytes: int
    num_rows: int
    place: tuple[int, ...]


def decode_values(
    values: Sequence[memoryview], schema: pa.Schema, value_format: ValueFormat
) -> pa.RecordBatch:
    """The samples of a block's records, in order; what is in a single Arrow record is not copied.

    Raises:
        UndecodableValueError: a value is not what the manifest says.
    """
    if len(values) == 1 and value_format == "arrow":
        return decode_samples(values[0], schema)
    return decode_records([bytes(value) for value in values], schema, value_format)


class RecordOpener:
    """Opens the records of one dataset for one decoder. Any thread may call."""

    def __init__(self, manifest: DatasetManifest, decoder: BatchDecoder) -> None:
        self._schema = manifest.arrow_schema
        self._value_format = manifest.value_format
        self._decoder = decoder
        self._can_remember = manifest.value_format == "arrow" and all(decoder.widths)
        self._layout: _Layout | None = None

    def open(self, values: Sequence[memoryview]) -> tuple[OpenBlock, int]:
        """The block of these records, and its number of rows.

        Raises:
            UndecodableValueError: a value is not what the manifest says.
            UndecodableColumnError: a null in a column that becomes a tensor.
        """
        layout = self._layout
        block = None if layout is None else self._open_like(layout, values)
        if layout is not None and block is not None:
            return block, layout.num_rows * len(values)
        batch = decode_values(values, self._schema, self._value_format)
        block = self._decoder.open(batch)
        if self._can_remember:
            self._layout = self._layout_of(values[0])
        return block, batch.num_rows

    def _open_like(self, layout: _Layout, values: Sequence[memoryview]) -> OpenBlock | None:
        """None when a record doesn't begin, or end, like the one that the layout is of."""
        if any(len(value) != layout.size_bytes for value in values):
            return None
        if len(values) == 1:
            if bytes(values[0][: len(layout.head)]) != layout.head:
                return None
            start = pa.py_buffer(values[0]).address
            return OpenBlock(tuple([OpenColumn(values[0], start + place) for place in layout.place]))
        addresses = np.array([pa.py_buffer(value).address for value in values], dtype=np.int64)
        heads = gather(addresses, len(layout.head))
        if (heads != np.frombuffer(layout.head, dtype=np.uint8)).any():
            return None
        columns = []
        for place, width in zip(layout.place, self._decoder.widths, strict=True):
            rows = gather(addresses + place, width * layout.num_rows)
            columns.append(OpenColumn(rows, rows.__array_interface__["data"][0]))
        return OpenBlock(tuple(columns))

    def _layout_of(self, value: memoryview) -> _Layout | None:
        """None when the record does not hold its columns as they are read (compressed, for example)."""
        marker, size = _MESSAGE.unpack_from(value)
        head = bytes(value[: _MESSAGE.size + size])
        if marker != 0xFFFFFFFF or len(head) < _MESSAGE.size + size:
            return None
        batch = decode_samples(value, self._schema)
        start = pa.py_buffer(value).address
        place = tuple(column.address - start for column in self._decoder.open(batch).columns)
        ends = [at + width * batch.num_rows for at, width in zip(place, self._decoder.widths, strict=True)]
        if min(place) < len(head) or max(ends) > len(value):
            return None
        return _Layout(head, len(value), batch.num_rows, place)
