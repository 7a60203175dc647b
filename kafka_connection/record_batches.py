"""Take records out of the bytes that a broker sends: record batches of format v2, without copying.

A broker answers with whole record batches (KIP-98, format v2), as they lie in its log: the first one may
begin before the offset asked for, the last one may be cut off, and transaction markers and aborted records
are there as well. Trainers know what they want, offset by offset, so `take_records` passes over everything
else, without a transaction index. Who reads a log as it comes takes batch after batch, with `batches_in`.

kafka-python's parser copies each batch once and each value once more; here values are views into the receive
buffer, and only a compressed batch is copied.

Invariants, checked in tests/unit/kafka_connection/test_record_batches.py:
1. What is taken equals what kafka-python's parser finds, for every codec.
2. A flipped bit anywhere in a batch is an error, never another value.
3. Any bytes whatever, with a right CRC too, are records within the range asked for or a DamagedBatchError, in
   bounded time and memory (tests/property/kafka_connection/test_hostile_batches.py).

Read next: dataset_catalog/logs/committed_reader.py and ray_trainer/fetching/fetch.py, which ask for the
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import crc32c
import pyarrow as pa

# base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and max timestamp,
# producer id and epoch, base sequence, number of records
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX_BYTES: Final = 12  # base offset and length, which the length does not count
_CRC_START: Final = 21  # the CRC covers all from the attributes on
# A block's CRC takes 10 us; to let go of the interpreter's lock and get it back can take much longer.
_KEEP_LOCK: Final = 0
_CODEC_MASK: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
# A batch of the largest record that a load may write has 90 MiB; without a bound, a few KiB could unpack into
# all memory there is.
_UNPACKED_BYTES_MAX: Final = 128 << 20
_UNPACKED_PIECE_BYTES: Final = 1 << 20
_SNAPPY_RATIO_MAX: Final = 64  # 64 bytes take three at least
_VARINT_SHIFT_MAX: Final = 63
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"


class StoredRecord(NamedTuple):
    """One record as it lies in the log.

    Attributes:
        offset: its place in the partition.
        key: as `value`.
        value: a view into the buffer it was received in; None for a record without a value.
        stamp: the value of the header that was asked for; None where the record has no such header.
    """

    offset: int
    key: memoryview | None
    value: memoryview | None
    stamp: memoryview | None


class RecordBatch(NamedTuple):
    """One batch, whole and with a right CRC; its records may be anything.

    Attributes:
        base_offset: of its first record, or of one that compaction has taken away.
        next_offset: one past its last.
        producer_id: who wrote it; what a transaction is known by.
        num_records: as it says.
        packed: its records, packed with the codec that `attributes` names.
    """

    base_offset: int
    next_offset: int
    attributes: int
    producer_id: int
    num_records: int
    packed: memoryview

    @property
    def is_control(self) -> bool:
        """Whether it is the marker of a transaction's end, and not records."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction; a marker is, too."""
        return bool(self.attributes & _TRANSACTIONAL)


class DamagedBatchError(ValueError):
    """The bytes are not a record batch of format v2, or not the one that was written.

    Internal: who fetches says which partition and offset it was.
    """


def take_records(
    data: memoryview, *, first_offset: int, end_offset: int, header_key: bytes, into: list[StoredRecord]
) -> int:
    """Append the records with offsets from `first_offset` up to, not including, `end_offset`.

    Args:
        data: record batches, one after the other; the last may be incomplete and is then left out.
        header_key: the header whose value becomes `stamp`.
        into: where records are appended, in the order of their offsets.

    Returns:
        The offset to go on with: one past the last complete batch, or `first_offset` when there is none.

    Raises:
        DamagedBatchError: a batch fails its CRC, is of an older format, or can't be decompressed.
    """
    next_offset = first_offset
    for batch in batches_in(data):
        next_offset = batch.next_offset
        if next_offset > first_offset and not batch.is_control:
            # So that no more records come out than were asked for, however many are in there.
            least_offset = max(first_offset, into[-1].offset + 1) if into else first_offset
            into.extend(records_in(batch, (first_offset, end_offset), header_key, least_offset=least_offset))
        if next_offset >= end_offset:
            break
    return max(next_offset, first_offset)


def batches_in(data: memoryview) -> Iterator[RecordBatch]:
    """The whole batches in what a broker sent; the last may be cut off and is then left out.

    Raises:
        DamagedBatchError: a batch fails its CRC, or is of an older format.
    """
    position = 0
    while position + _BATCH.size <= len(data):
        fields = _BATCH.unpack_from(data, position)
        base_offset, length, magic, crc = fields[0], fields[1], fields[3], fields[4]
        if length < _BATCH.size - _PREFIX_BYTES:  # going on from its end would go back, for ever
            raise DamagedBatchError(
                f"the record batch at offset {base_offset} says that it has {length} bytes"
            )
        end = position + _PREFIX_BYTES + length
        if end > len(data):
            return
        if magic != 2:
            raise DamagedBatchError(f"a record batch is of message format v{magic}; only v2 is read")
        if crc32c.crc32c(data[position + _CRC_START : end], 0, gil_release_mode=_KEEP_LOCK) != crc:
            raise DamagedBatchError(f"the record batch at offset {base_offset} does not match its CRC")
        packed = data[position + _BATCH.size : end]
        yield RecordBatch(base_offset, base_offset + fields[6] + 1, fields[5], fields[9], fields[12], packed)
        position = end


def records_in(
    batch: RecordBatch, wanted: tuple[int, int], header_key: bytes, *, least_offset: int
) -> Iterator[StoredRecord]:
    """The records of a batch that are wanted, one by one: unpacked, they may be millions.

    Args:
        wanted: offsets from the first up to, not including, the second.
        header_key: the header whose value becomes `stamp`.
        least_offset: a wanted record below it is one that was there already.

    Raises:
        DamagedBatchError: it can't be unpacked within bounds, or what it holds aren't records.
    """
    data = _decompressed(batch.packed, batch.attributes & _CODEC_MASK)
    position, base_offset = 0, batch.base_offset
    try:
        for _ in range(batch.num_records):
            length, position = _varint(data, position)
            next_position = position + length
            if length < 0 or next_position > len(data):
                raise IndexError
            _, position = _varint(data, position + 1)  # attributes, timestamp delta
            delta, position = _varint(data, position)
            offset = base_offset + delta
            if offset >= wanted[1]:
                return
            if offset >= wanted[0]:
                if offset < least_offset:
                    raise DamagedBatchError(
                        f"the record batch at offset {base_offset} repeats offset {offset}"
                    )
                least_offset = offset + 1
                yield _record(data, position, next_position, offset, header_key)
            position = next_position
    except IndexError:
        raise DamagedBatchError(f"a record in the batch at offset {base_offset} is cut off") from None


def _record(data: memoryview, position: int, end: int, offset: int, header_key: bytes) -> StoredRecord:
    """Raises:
    IndexError: what it says of its fields goes beyond its end.
    """
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    num_headers, position = _varint(data, position)
    stamp = None
    for _ in range(num_headers):
        name, position = _bytes(data, position)
        header, position = _bytes(data, position)
        if name is not None and name == header_key:
            stamp = header
    if num_headers < 0 or position > end:
        raise IndexError
    return StoredRecord(offset, key, value, stamp)


def _bytes(data: memoryview, position: int) -> tuple[memoryview | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        if length < -1:
            raise IndexError
        return None, position
    return data[position : position + length], position + length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint, and where it ends."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise IndexError


def _decompressed(data: memoryview, codec: int) -> memoryview:
    """Arrow's codecs: they are installed anyway, kafka-python's need a further package each."""
    if codec == 0:
        return data
    name = _CODECS.get(codec)
    if name is None:
        raise DamagedBatchError(f"a record batch is compressed with unknown codec number {codec}")
    try:
        if name == "snappy":
            return memoryview(_snappy(data))
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name) as stream:
            return memoryview(_read_all(stream))
    except DamagedBatchError:
        raise
    except (OSError, pa.ArrowException, ValueError, struct.error) as error:
        raise DamagedBatchError(f"a record batch compressed with {name} can't be decompressed") from error


def _read_all(stream: pa.CompressedInputStream) -> bytes | bytearray:
    unpacked: bytes | bytearray = stream.read(_UNPACKED_PIECE_BYTES)
    while piece := stream.read(_UNPACKED_PIECE_BYTES):
        _require_bounded(len(unpacked) + len(piece))
        if isinstance(unpacked, bytes):  # pieces that are joined at the end would take twice the memory
            unpacked = bytearray(unpacked)
        unpacked += piece
    return unpacked


def _require_bounded(size: int) -> None:
    if size > _UNPACKED_BYTES_MAX:
        raise DamagedBatchError(f"a record batch unpacks to more than {_UNPACKED_BYTES_MAX >> 20} MiB")


def _snappy(data: memoryview) -> bytes:
    """Plain snappy (librdkafka), or in the blocks of xerial's Java library, which the Java client writes."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _snappy_block(data)
    blocks, position, size = [], 16, 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        if length <= 0:
            raise DamagedBatchError(f"a record batch holds a snappy block of {length} bytes")
        blocks.append(_snappy_block(data[position + 4 : position + 4 + length]))
        size += len(blocks[-1])
        _require_bounded(size)
        position += 4 + length
    return b"".join(blocks)


def _snappy_block(data: memoryview) -> bytes:
    size = shift = 0
    for byte in data[:5]:  # a block begins with its decompressed size, a varint
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    _require_bounded(size)
    if size > _SNAPPY_RATIO_MAX * len(data):  # it would be set aside before anything shows that it is not so
        raise DamagedBatchError(f"a snappy block of {len(data)} bytes says that it unpacks to {size}")
    decompressed: bytes = pa.Codec("snappy").decompress(pa.py_buffer(data), size, asbytes=True)
    return decompressed
