"""A gzip body made of parts, of which the large one was compressed before.

An answer is a small head that differs from request to request and a large snapshot that is the same for
all. Compressing a snapshot takes longer than everything else about a request, so it is done once: a deflate
stream may be cut wherever it was flushed fully (RFC 1951: the next block refers to nothing before), and only
gzip's checksum (RFC 1952) has to be computed over the whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, Self

__all__ = ["Part", "gzip_of"]

_LEVEL = 1  # half the size at a third of the time of the default 6
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_END = b"\x03\x00"  # an empty last block


class Part(NamedTuple):
    """Some bytes of a body, plain and deflated."""

    plain: bytes
    deflated: bytes

    @classmethod
    def of(cls, pieces: Iterable[bytes]) -> Self:
        """Compress pieces, one after the other."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        plain, deflated = [], []
        for piece in pieces:
            plain.append(piece)
            deflated.append(compressor.compress(piece))
        deflated.append(compressor.flush(zlib.Z_FULL_FLUSH))
        return cls(b"".join(plain), b"".join(deflated))


def gzip_of(parts: Iterable[Part]) -> bytes:
    """The parts as one gzip member."""
    checksum, size, deflated = 0, 0, [_HEADER]
    for part in parts:
        checksum = zlib.crc32(part.plain, checksum)
        size += len(part.plain)
        deflated.append(part.deflated)
    return b"".join((*deflated, _END, struct.pack("<II", checksum, size & 0xFFFFFFFF)))
