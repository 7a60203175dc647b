"""What others send, read within bounds: one body, all that arrive at a time, and what one becomes in Python.

A small text can be large as objects: `{"1":0,"2":0,...}` takes some fifteen times its bytes. So a body counts
as what it costs once it is parsed, which its punctuation tells before. Belongs to one asyncio loop.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import NamedTuple

from aiohttp import web

from evenload.http_edge.browsers import RefusedError

__all__ = ["Bodies", "Packed", "objects_bytes"]

_ARRIVING_MAX_BYTES = 64 << 20
_GZIP = 16 + zlib.MAX_WBITS
_OBJECTS_MAX_BYTES = 16 << 20
# Each value follows one of these, and takes about so much: an entry of a dictionary 100 bytes, an object of a
# class of ours 150 for each of its fields.
_BEFORE_VALUES = b",:[{"
_VALUE_BYTES = 150


def objects_bytes(text: bytes | bytearray) -> int:
    """About how many bytes a JSON text takes as Python objects, other than long texts beyond ASCII."""
    return len(text) + _VALUE_BYTES * sum(text.count(mark) for mark in _BEFORE_VALUES)


class Packed(NamedTuple):
    """A body as it came."""

    body: bytes
    is_gzip: bool


class Bodies:
    """Reads the bodies of one service's requests.

    Its runner is made with `auto_decompress=False`: of a body that can't be unpacked, aiohttp would write a
    traceback to the log for each request, and hang up.

    Args:
        max_bytes: the largest.
        wait_s: how long one may take to arrive.
    """

    def __init__(self, max_bytes: int, wait_s: float) -> None:
        self._max_bytes = max_bytes
        self._wait_s = wait_s
        self._arriving_bytes = 0

    async def read(self, request: web.Request) -> bytes:
        """All of it, a JSON text that can be parsed.

        Raises:
            RefusedError: it is too large, too slow, compressed, or others take all the room.
        """
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise RefusedError(415, "what is sent here must not be compressed")
        body = await self._arrived(request)
        if objects_bytes(body) > _OBJECTS_MAX_BYTES:
            raise RefusedError(413, "it holds more values than are read at a time; send fewer")
        return body

    async def read_packed(self, request: web.Request) -> Packed:
        """All of it, of any kind, to be unpacked by `unpacked`.

        Raises:
            RefusedError: it is too large, too slow, not packed by gzip, or others take all the room.
        """
        packing = request.headers.get("Content-Encoding", "identity")
        if packing not in ("identity", "gzip"):
            raise RefusedError(415, "what is sent here is compressed by gzip or not at all")
        return Packed(await self._arrived(request), is_gzip=packing == "gzip")

    def unpacked(self, packed: Packed) -> bytes:
        """What was packed, within the same bound. Takes milliseconds: for another thread than the loop's.

        Raises:
            RefusedError: it is larger than that, or can't be unpacked.
        """
        if not packed.is_gzip:
            return packed.body
        unpacking = zlib.decompressobj(_GZIP)
        try:
            unpacked = unpacking.decompress(packed.body, self._max_bytes + 1)
        except zlib.error as error:
            raise RefusedError(400, "it is said to be gzip, and can't be unpacked") from error
        if len(unpacked) > self._max_bytes:
            raise self._too_large()
        if not unpacking.eof or unpacking.unused_data:
            raise RefusedError(400, "it is said to be gzip, and is cut off or goes on after its end")
        return unpacked

    async def _arrived(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._wait_s):
                async for piece in request.content.iter_any():
                    body += piece
                    self._arriving_bytes += len(piece)
                    if len(body) > self._max_bytes:
                        raise self._too_large()
                    if self._arriving_bytes > _ARRIVING_MAX_BYTES:
                        raise RefusedError(503, "too much is being sent here at the moment; try again")
        except TimeoutError as error:
            raise RefusedError(408, f"it didn't arrive within {self._wait_s:g} s") from error
        finally:
            self._arriving_bytes -= len(body)
        return bytes(body)

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the request is larger than {self._max_bytes} bytes")
