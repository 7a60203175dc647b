"""One document as numbered, checksummed parts that each fit into a Kafka record.

A part carries the digest of the whole document and its own checksum, so parts of two different
documents are never joined, and a missing or damaged part is told apart from a complete document.

    part = "EVLM" | format version u8 | part number u16 | number of parts u16 |
           document digest 16 bytes (xxh3_128) | payload checksum u64 (xxh3_64) | payload

Numbers are big-endian. The payloads of all parts, joined, are the zlib-compressed document.

How large a document may be follows from the largest dataset that can be planned, about four million records
(ray_trainer/planning/rule.py): an extent for each of them takes 24 bytes, 96 MiB, and 32 MiB are left for the
rest. Compressed, extents take one to six bytes each, so 32 MiB. Nothing larger is published, and nothing
larger is decompressed: a few kilobytes could otherwise fill the memory of everybody who lists the datasets.

Invariant, checked in tests/property/dataset_catalog/test_manifest_parts.py: whatever byte of whatever part is
changed, dropped or cut off, `join_parts` refuses.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from evenload.dataset_catalog.errors import CorruptManifestError, NewerManifestError

FORMAT_VERSION = 1
_MAGIC = b"EVLM"
_HEADER = struct.Struct(">4sBHH16sQ")
MIN_PART_BYTES = 256
DOCUMENT_BYTES_MAX = 128 << 20
COMPRESSED_BYTES_MAX = 32 << 20
_MAX_PARTS = 0xFFFF
_STEP_BYTES = 4 << 20


class Part(NamedTuple):
    """One part, its own checksum already compared."""

    number: int
    num_parts: int
    document_digest: bytes
    payload: memoryview


def split_document(document: bytes, max_bytes: int) -> list[bytes]:
    """The document, compressed, in parts of at most `max_bytes` each; at least one.

    Raises:
        ValueError: `max_bytes` is below MIN_PART_BYTES, more than 65,535 parts would be needed, or the
            document is larger than what `join_parts` takes.
    """
    if max_bytes < MIN_PART_BYTES:
        raise ValueError(f"max_bytes is {max_bytes}, but a part needs at least {MIN_PART_BYTES}")
    compressed = zlib.compress(document, 6)
    if len(document) > DOCUMENT_BYTES_MAX or len(compressed) > COMPRESSED_BYTES_MAX:
        raise ValueError(
            f"the manifest has {len(document)} bytes, {len(compressed)} compressed; at most "
            f"{DOCUMENT_BYTES_MAX} and {COMPRESSED_BYTES_MAX} can be read again: load several datasets"
        )
    digest = xxhash.xxh3_128_digest(compressed)
    step = max_bytes - _HEADER.size
    payloads = [compressed[at : at + step] for at in range(0, len(compressed), step)]
    if len(payloads) > _MAX_PARTS:
        raise ValueError(
            f"{len(compressed)} bytes need {len(payloads)} parts of {max_bytes}, at most {_MAX_PARTS}"
        )
    return [_pack(number, len(payloads), digest, payload) for number, payload in enumerate(payloads)]


def parse_part(value: bytes) -> Part:
    """Reads one part and compares its checksum.

    Raises:
        CorruptManifestError: Not a part, of a newer format, or damaged.
    """
    if len(value) < _HEADER.size or not value.startswith(_MAGIC):
        raise CorruptManifestError(
            f"it is no manifest part: {len(value)} bytes that begin with {value[:8]!r}"
        )
    _, version, number, num_parts, digest, checksum = _HEADER.unpack_from(value)
    if version != FORMAT_VERSION:
        reason = f"its format is {version}, this evenload reads format {FORMAT_VERSION}"
        raise NewerManifestError(reason) if version > FORMAT_VERSION else CorruptManifestError(reason)
    payload = memoryview(value)[_HEADER.size :]
    if _checksum(number, num_parts, digest, payload) != checksum:
        raise CorruptManifestError(f"the checksum of part {number} of {num_parts} does not match its content")
    return Part(number, num_parts, digest, payload)


def join_parts(values: Iterable[bytes]) -> bytes | bytearray:
    """The document from all its parts, in any order; a part given twice is taken once.

    Raises:
        CorruptManifestError: A part is missing, damaged or belongs to another document.
    """
    parts = {part.number: part for part in map(parse_part, values)}
    if not parts:
        raise CorruptManifestError("it has no parts")
    num_parts = next(iter(parts.values())).num_parts
    if len({(part.num_parts, part.document_digest) for part in parts.values()}) != 1:
        raise CorruptManifestError("its parts come from different manifests")
    missing = [number for number in range(num_parts) if number not in parts]
    if missing or len(parts) != num_parts:
        listed = f"{missing[:20]}{' and more' if len(missing) > 20 else ''}"
        raise CorruptManifestError(f"of its {num_parts} parts, these are missing: {listed}")
    payloads = [parts[number].payload for number in range(num_parts)]
    num_bytes = sum(map(len, payloads))
    if num_bytes > COMPRESSED_BYTES_MAX:
        raise CorruptManifestError(f"it has {num_bytes} bytes, more than {COMPRESSED_BYTES_MAX}")
    digest = xxhash.xxh3_128()
    for payload in payloads:
        digest.update(payload)
    if digest.digest() != parts[0].document_digest:
        raise CorruptManifestError("the checksum over all parts does not match their content")
    return _decompress(payloads)


def _decompress(payloads: list[memoryview]) -> bytearray:
    decompressor, document = zlib.decompressobj(), bytearray()
    try:
        for payload in payloads:
            rest: bytes | memoryview = payload
            while rest:
                # One byte more than is allowed tells a document that ends there from one that goes on. In
                # small steps, as zlib makes each answer from pieces that it holds twice.
                room = DOCUMENT_BYTES_MAX + 1 - len(document)
                document += decompressor.decompress(rest, min(room, _STEP_BYTES))
                if len(document) > DOCUMENT_BYTES_MAX:
                    raise CorruptManifestError(f"decompressed it has more than {DOCUMENT_BYTES_MAX} bytes")
                rest = decompressor.unconsumed_tail
    except zlib.error as error:
        raise CorruptManifestError(f"its parts can't be decompressed: {error}") from error
    if not decompressor.eof:
        raise CorruptManifestError("its parts can't be decompressed: they end too early")
    return document


def _pack(number: int, num_parts: int, digest: bytes, payload: bytes) -> bytes:
    checksum = _checksum(number, num_parts, digest, payload)
    return _HEADER.pack(_MAGIC, FORMAT_VERSION, number, num_parts, digest, checksum) + payload


def _checksum(number: int, num_parts: int, digest: bytes, payload: bytes | memoryview) -> int:
    checksum = xxhash.xxh3_64(struct.pack(">HH16s", number, num_parts, digest))
    checksum.update(payload)
    return checksum.intdigest()
