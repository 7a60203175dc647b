"""Whatever a broker or a topic sends, the fetch path answers with records it was asked for, or its own error.

Mutated batches get a right length and CRC again: who can write to a topic can compute them.
"""

from __future__ import annotations

import itertools
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from evenload.kafka_connection.fetch_messages import read_fetch_answer
from evenload.kafka_connection.record_batches import DamagedBatchError, StoredRecord, take_records

MIB = 1 << 20
MEMORY_BYTES_MAX = 300 * MIB
FIRST, END = 700, 712
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
EVIL = [0x00, 0x01, 0x02, 0x7F, 0x80, 0x81, 0xFE, 0xFF]


def batch_of(records: bytes, *, codec: int = 0, num_records: int = 12, base_offset: int = FIRST) -> bytes:
    """A batch with these bytes as its records, and everything else right."""
    after_crc = struct.pack(">hiqqqhii", codec, num_records - 1, 0, 0, -1, -1, -1, num_records) + records
    body = struct.pack(">ibI", 0, 2, crc32c.crc32c(after_crc)) + after_crc
    return struct.pack(">qi", base_offset, len(body)) + body


def sound_records() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for number in range(12):
        headers = [("other", b"x"), ("evenload", b"s" * 24)]
        assert builder.append(number, timestamp=0, key=b"k", value=b"v" * number, headers=headers)
    return bytes(builder.build())[61:]


SOUND = sound_records()


def take(data: bytes) -> list[StoredRecord]:
    """What comes out, which has to be bounded in number and memory whatever goes in."""
    into: list[StoredRecord] = []
    pa.default_memory_pool().release_unused()
    tracemalloc.start()
    try:
        take_records(memoryview(data), first_offset=FIRST, end_offset=END, header_key=b"evenload", into=into)
    except DamagedBatchError:
        pass
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes + pa.default_memory_pool().bytes_allocated() < MEMORY_BYTES_MAX
    assert len(into) <= END - FIRST
    assert all(FIRST <= record.offset < END for record in into)
    return into


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(changed) - 1))
        kind = draw(st.sampled_from(["set", "insert", "delete", "repeat"]))
        some = bytes(draw(st.lists(st.sampled_from(EVIL), min_size=1, max_size=12)))
        if kind == "set":
            changed[at : at + len(some)] = some
        elif kind == "insert":
            changed[at:at] = some
        elif kind == "delete" and len(changed) > 20:
            del changed[at : at + 3]
        else:
            changed[at:at] = changed[at : at + 40]
    return bytes(changed)


@st.composite
def hostile_batches(draw: st.DrawFn) -> bytes:
    records = mutated(draw, SOUND)
    num_records = draw(st.sampled_from([0, 1, 12, 13, 2**31 - 1, -1, -(2**31)]))
    base_offset = draw(st.sampled_from([FIRST, FIRST - 5, 0, -1, 2**63 - 1, -(2**63)]))
    codec = draw(st.sampled_from([None, *CODECS]))
    if codec is None:
        return batch_of(records, num_records=num_records % 2**31, base_offset=base_offset)
    packed = pa.Codec(codec).compress(records, asbytes=True)
    if draw(st.booleans()):
        packed = mutated(draw, packed)
    return batch_of(packed, codec=CODECS[codec], num_records=num_records % 2**31, base_offset=base_offset)


def test_what_is_mutated_is_sound_before() -> None:
    assert [record.offset for record in take(batch_of(SOUND))] == list(range(FIRST, END))


@settings(max_examples=400)
@given(st.lists(hostile_batches(), min_size=1, max_size=3).map(b"".join))
def test_hostile_batches_give_records_within_the_range_or_the_one_error(data: bytes) -> None:
    take(data)


@settings(max_examples=300)
@given(st.data())
def test_so_do_batches_with_any_header(data: st.DataObject) -> None:
    batch = bytearray(mutated(data.draw, batch_of(SOUND)))
    if len(batch) > 21 and data.draw(st.booleans()):
        struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    take(bytes(batch))


def zeros(codec: str, size: int) -> bytes:
    """So many zeros, in few bytes, and without having them all in memory."""
    if codec == "gzip":
        packer = zlib.compressobj(wbits=31)
        return b"".join([*(packer.compress(bytes(MIB)) for _ in range(size // MIB)), packer.flush()])
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(size // MIB):
            stream.write(bytes(MIB))
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_what_would_unpack_into_all_memory_is_refused(codec: str) -> None:
    bomb = zeros(codec, 512 * MIB)
    assert len(bomb) < 5 * MIB
    assert take(batch_of(bomb, codec=CODECS[codec])) == []


@pytest.mark.parametrize("size", [2**31, 2**34, 2**35 - 1])
def test_a_snappy_block_that_claims_gigabytes_is_refused(size: int) -> None:
    length = bytes([0x80 | (size >> shift) & 0x7F for shift in range(0, 28, 7)] + [size >> 28])
    assert take(batch_of(length + bytes(100), codec=2)) == []
    framed = b"\x82SNAPPY\x00" + bytes(8) + struct.pack(">i", 105) + length + bytes(100)
    assert take(batch_of(framed, codec=2)) == []


@pytest.mark.parametrize("length", [-1, -4, -(2**31), 0])
def test_a_snappy_frame_that_goes_backwards_is_refused(length: int) -> None:
    framed = b"\x82SNAPPY\x00" + bytes(8) + struct.pack(">i", length) + bytes(20)
    assert take(batch_of(framed, codec=2)) == []


@pytest.mark.parametrize("length", [-12, -61, -1, 0, 48, -(2**31)])
def test_a_batch_that_would_end_before_it_begins_is_refused(length: int) -> None:
    batch = bytearray(batch_of(SOUND))
    struct.pack_into(">i", batch, 8, length)
    struct.pack_into(">I", batch, 17, 0)  # of no bytes
    assert take(bytes(batch)) == []


def test_one_record_that_is_said_to_be_there_two_billion_times_is_refused() -> None:
    backwards = bytes([0x01, *([0] * 6)])  # its length is -1, so the next begins where it began
    assert take(batch_of(backwards, num_records=2**31 - 1)) == []
    again_and_again = bytes([12, 0, 0, 0, 1, 1, 0]) * 100_000  # all at the first offset
    assert len(take(batch_of(again_and_again, num_records=100_000))) <= 1


@pytest.mark.parametrize("make", [lambda n: b"\xff" * n, lambda n: b"\x80" * n])
def test_a_number_without_an_end_is_refused(make: Callable[[int], bytes]) -> None:
    assert take(batch_of(make(2 * MIB))) == []
    with pytest.raises(ValueError):
        read_fetch_answer(memoryview(bytes(4) + make(2 * MIB)))


ANSWER = (
    struct.pack(">i", 5)
    + b"\x00"
    + struct.pack(">ihi", 0, 0, 0)
    + b"\x02"
    + bytes(16)
    + b"\x02"
    + struct.pack(">ihqqq", 0, 0, 9, 9, 0)
    + b"\x01"
    + struct.pack(">i", -1)
    + b"\x04abc\x00\x00\x00"
)


def test_the_answer_that_is_mutated_is_sound_before() -> None:
    assert bytes(read_fetch_answer(memoryview(ANSWER)).records) == b"abc"


@settings(max_examples=400)
@given(st.data())
def test_a_hostile_answer_is_read_or_refused_with_the_one_error(data: st.DataObject) -> None:
    frame = mutated(data.draw, ANSWER)
    try:
        answer = read_fetch_answer(memoryview(frame))
    except ValueError:
        return
    assert len(answer.records) <= len(frame)


def test_an_answer_cut_off_anywhere_is_refused_or_empty() -> None:
    for length, extra in itertools.product(range(4, len(ANSWER) - 3), (b"", b"\xff" * 5)):
        try:
            records = read_fetch_answer(memoryview(ANSWER[:length] + extra)).records
        except ValueError:
            continue
        assert len(records) <= 3
