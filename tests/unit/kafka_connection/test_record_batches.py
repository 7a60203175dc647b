"""Record batches are read as kafka-python reads them, with every codec, and damage never goes unseen."""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from evenload.kafka_connection.record_batches import DamagedBatchError, StoredRecord, take_records

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def written_batch(
    values: list[bytes | None], *, base_offset: int = 0, header: bytes = b"stamp", **options: Any
) -> bytes:
    """A batch as kafka-python writes it, at an offset as a broker gives it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=options.get("is_transactional", False),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number, value in enumerate(values):
        headers = [("other", b"x"), ("evenload", header)]
        assert builder.append(number, timestamp=1000 + number, key=None, value=value, headers=headers)
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base_offset)
    return bytes(batch)


def compressed(batch: bytes, codec: str, payload: bytes | None = None) -> bytes:
    """The same batch with its records compressed."""
    records = payload if payload is not None else pa.Codec(codec).compress(batch[61:], asbytes=True)
    changed = bytearray(batch[:61] + records)
    struct.pack_into(">h", changed, 21, CODECS[codec])
    return with_right_length_and_crc(changed)


def with_right_length_and_crc(batch: bytearray) -> bytes:
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def take(data: bytes, first: int, end: int) -> tuple[list[StoredRecord], int]:
    records: list[StoredRecord] = []
    next_offset = take_records(
        memoryview(data), first_offset=first, end_offset=end, header_key=b"evenload", into=records
    )
    return records, next_offset


def random_values(count: int, size: int) -> list[bytes | None]:
    random = np.random.default_rng(count)
    return [random.bytes(int(random.integers(0, size))) for _ in range(count)]


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_values_and_headers_are_those_that_kafka_python_reads(codec: str | None) -> None:
    values = random_values(50, 3000)
    plain = written_batch(values, base_offset=700)
    data = plain if codec is None else compressed(plain, codec)
    expected = list(DefaultRecordBatch(plain))
    records, next_offset = take(data, 700, 750)
    assert next_offset == 750
    assert [r.offset for r in records] == [r.offset for r in expected]
    assert [bytes(r.value or b"") for r in records] == [r.value for r in expected]
    assert [bytes(r.stamp or b"") for r in records] == [dict(r.headers)["evenload"] for r in expected]


def test_snappy_in_the_java_clients_framing_is_read() -> None:
    plain = written_batch(random_values(20, 5000))
    blocks = [plain[61:][at : at + 32768] for at in range(0, len(plain) - 61, 32768)]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        small = pa.Codec("snappy").compress(block, asbytes=True)
        framed += struct.pack(">i", len(small)) + small
    assert len(blocks) > 1
    records, _ = take(compressed(plain, "snappy", framed), 0, 20)
    assert [r.value for r in records] == [r.value for r in DefaultRecordBatch(plain)]


def test_only_the_wanted_offsets_are_taken_from_a_batch_that_has_more() -> None:
    records, next_offset = take(written_batch([b"a", b"b", b"c", b"d"], base_offset=10), 11, 13)
    assert [(r.offset, bytes(r.value or b"")) for r in records] == [(11, b"b"), (12, b"c")]
    assert next_offset == 14


def test_an_incomplete_last_batch_is_left_for_the_next_request() -> None:
    first, second = written_batch([b"a", b"b"]), written_batch([b"c"], base_offset=2)
    for cut in (1, 12, 60, len(second) - 1):
        records, next_offset = take(first + second[:cut], 0, 3)
        assert len(records) == 2
        assert next_offset == 2
    assert take(first[:30], 0, 3) == ([], 0)


def test_transaction_markers_are_passed_over() -> None:
    marker = bytearray(written_batch([b"\x00\x00\x00\x01\x00\x00"], base_offset=2, is_transactional=True))
    struct.pack_into(">h", marker, 21, 0x30)
    data = written_batch([b"a", b"b"]) + with_right_length_and_crc(marker)
    records, next_offset = take(data, 0, 5)
    assert [bytes(r.value or b"") for r in records] == [b"a", b"b"]
    assert next_offset == 3


def test_a_record_without_value_or_header_says_so() -> None:
    (record,), _ = take(written_batch([None]), 0, 1)
    assert record.value is None
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    builder.append(0, timestamp=0, key=b"k", value=b"v", headers=[])
    (record,), _ = take(bytes(builder.build()), 0, 1)
    assert record.stamp is None
    assert record.value == b"v"


def test_any_flipped_bit_that_the_crc_covers_is_an_error() -> None:
    batch = written_batch(random_values(3, 20))
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(DamagedBatchError, match="CRC"):
            take(bytes(damaged), 0, 3)


def test_an_older_message_format_is_named() -> None:
    old = bytearray(written_batch([b"a"]))
    old[16] = 1
    with pytest.raises(DamagedBatchError, match="message format v1"):
        take(bytes(old), 0, 1)


def test_bytes_that_can_not_be_decompressed_are_an_error() -> None:
    plain = written_batch([b"abc" * 100])
    for codec in CODECS:
        with pytest.raises(DamagedBatchError, match=codec):
            take(compressed(plain, codec, b"\x01\x02\x03\x04not compressed"), 0, 1)


def test_a_batch_with_fewer_records_than_it_says_is_an_error() -> None:
    batch = bytearray(written_batch([b"a", b"b"]))
    struct.pack_into(">i", batch, 57, 5)
    with pytest.raises(DamagedBatchError, match="cut off"):
        take(with_right_length_and_crc(batch), 0, 5)
