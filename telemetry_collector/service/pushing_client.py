"""A client of a broker's that pushes whatever it is told to (KIP-714), spoken by hand.

For tests and benchmarks: Kafka's own clients push only what is true, and when they think fit.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self

__all__ = ["GZIP", "LZ4", "UNCOMPRESSED", "ZSTD", "PushingClient"]

UNCOMPRESSED, GZIP, LZ4, ZSTD = 0, 1, 3, 4
"""How a push is compressed, by Kafka's numbers."""

_API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 18, 17, 36
_GET_SUBSCRIPTIONS, _PUSH = 71, 72
_SOFTWARE = b"apache-kafka-java"  # by which subscriptions match
_NO_TAGS = b"\0"
_NEW = bytes(16)
_PATIENCE_S = 60


class PushingClient:
    """One instance of a client, which may push at once, then as often as brokers ask. A context manager.

    Args:
        address: Of a broker: host:port.
        account: Name and password, for a listener with SASL PLAIN.
        client_id: What it is called.

    Raises:
        OSError: The broker isn't there, hangs up, refuses the account, or takes no metrics.
    """

    def __init__(
        self, address: str, *, account: tuple[str, str] | None = None, client_id: str = "pushing"
    ) -> None:
        host, _, port = address.rpartition(":")
        self._name = client_id.encode()
        self._number = 0
        self._socket = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        try:
            self._ask(_API_VERSIONS, 3, _compact(_SOFTWARE) + _compact(b"4.3.1") + _NO_TAGS)
            if account is not None:
                self._log_in(*account)
            answer = self._ask(_GET_SUBSCRIPTIONS, 0, _NEW + _NO_TAGS)
            # After the tags: throttled ms, error, instance, subscription.
            _, error, self._instance, self._subscription = struct.unpack(">ih16si", answer[1:27])
            if error:
                raise ConnectionError(f"the broker takes no metrics: Kafka's error {error}")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def push(self, metrics: bytes, *, compression: int = UNCOMPRESSED) -> int:
        """Kafka's error code; 0: the broker has taken it."""
        body = self._instance + struct.pack(">i?b", self._subscription, False, compression)
        answer = self._ask(_PUSH, 0, body + _compact(metrics) + _NO_TAGS)
        _, error = struct.unpack(">ih", answer[1:7])
        return int(error)

    def _log_in(self, name: str, password: str) -> None:
        self._ask(_SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN", is_flexible=False)
        told = b"\0".join([b"", name.encode(), password.encode()])
        answer = self._ask(_SASL_AUTHENTICATE, 2, _compact(told) + _NO_TAGS)
        (error,) = struct.unpack(">h", answer[1:3])
        if error:
            raise ConnectionError(f"the broker refuses account {name}: Kafka's error {error}")

    def _ask(self, api: int, version: int, body: bytes, *, is_flexible: bool = True) -> bytes:
        """What follows the answer's number."""
        self._number += 1
        header = struct.pack(">hhih", api, version, self._number, len(self._name)) + self._name
        request = header + (_NO_TAGS if is_flexible else b"") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        if struct.unpack(">i", answer[:4]) != (self._number,):
            raise ConnectionError(f"the broker answers request {answer[:4].hex()}, asked was {self._number}")
        return answer[4:]

    def _read(self, size: int) -> bytes:
        read = b""
        while len(read) < size:
            part = self._socket.recv(size - len(read))
            if not part:
                raise ConnectionError("the broker has hung up")
            read += part
        return read


def _compact(told: bytes) -> bytes:
    """With its length, as flexible versions have it."""
    length, head = len(told) + 1, b""
    while length > 0x7F:
        head += bytes([length & 0x7F | 0x80])
        length >>= 7
    return head + bytes([length]) + told
