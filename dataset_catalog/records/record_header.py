"""24 bytes in each record's header that say which samples it holds, and that it is whole.

Offsets alone don't prove what is at them: after an unclean leader election, other data can stand at an
offset that a manifest lists. So each record names its load and carries a hash of its value; a reader
compares both. The number of its first sample, in written order, lets `verify` say which samples are
missing and which are there twice.

    8 bytes load id | first sample u64 | xxh3_64 of the value u64       (big-endian)
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

RECORD_HEADER = "evenload"
_LAYOUT = struct.Struct(">8sQQ")


class RecordHeader(NamedTuple):
    """What a record says of itself."""

    load_id: str  # 16 hex digits
    first_sample: int  # number of its first sample in written order, from 0 on
    value_hash: int


def record_header(load_id: str, first_sample: int, value: bytes | memoryview) -> bytes:
    """The value of the header named RECORD_HEADER, for a record with this value.

    Args:
        load_id: 16 hex digits.
        first_sample: Number of the record's first sample in written order, 0 or more.
    """
    return _LAYOUT.pack(bytes.fromhex(load_id), first_sample, value_hash(value))


def parse_record_header(header: bytes | memoryview | None) -> RecordHeader | None:
    """Reads such a header; None when there is none, or it is not one of ours."""
    if header is None or len(header) != _LAYOUT.size:
        return None
    load_id, first_sample, hashed = _LAYOUT.unpack(header)
    return RecordHeader(load_id.hex(), first_sample, hashed)


def first_sample_of(header: bytes | memoryview) -> int:
    """The number of the first sample in a header that parse_record_header has read; a third of its time."""
    return int.from_bytes(header[8:16], "big")


def value_hash(value: bytes | memoryview) -> int:
    """What the header says of the value: xxh3_64."""
    return xxhash.xxh3_64_intdigest(value)
