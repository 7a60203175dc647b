"""A blocking connection to one broker: TLS and SASL by kafka-python's rules, bytes at the socket's speed.

kafka-python's own connections run in an event loop that receives 4 KiB at a time, which is too slow for
training data. So the socket is ours, and what needs knowledge of the protocol (versions, authentication,
every message but Fetch) goes through kafka-python's parser and SASL mechanisms, which do no I/O.

Receiving is written so that the interpreter's lock is taken about once per block: a thread that comes
back from each of many small receives waits up to 5 ms for the lock while the training loop computes. A
plaintext socket is therefore left blocking, with its timeouts in the kernel (SO_RCVTIMEO), as Python's own
timeouts make a socket non-blocking and MSG_WAITALL useless.

One thread uses a connection at a time; `interrupt` may be called from any thread.

Read next: fetch_messages.py (what is asked), record_batches.py (what arrives).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka.errors import KafkaError, for_code

from evenload.kafka_connection.fetch_messages import FETCH_API_KEY, FETCH_VERSION
from evenload.kafka_connection.kafka_python_internals import (
    ApiVersionsRequest,
    MessageStream,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    sasl_mechanism,
)

CLIENT_ID: Final = "evenload-reader"
_FRAME_BYTES_MAX: Final = 256 << 20  # more isn't Kafka talking: a TLS alert read as a length is 336 MiB
_LENGTH: Final = struct.Struct(">i")
_REAUTHENTICATE_AT: Final = 0.85  # of a SASL session's lifetime, as the Java client does (KIP-368)


class BrokerLostError(Exception):
    """The broker can't be reached, or stopped answering. Internal: whoever fetches tries again."""


class BrokerRefusedError(Exception):
    """The broker answers, but asking again won't help (credentials, certificate, version). Internal."""


class BrokerConnection:
    """A connection; `open` comes first, and after an error only `close`.

    Args:
        config: the cluster's description in kafka-python's words.
        timeout_s: how long to wait for the connection, and for each next byte, in seconds.
    """

    def __init__(self, host: str, port: int, *, config: Mapping[str, Any], timeout_s: float) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._host = host
        self._port = port
        self._config = config
        self._timeout_s = timeout_s
        self._protocol = MessageStream(client_id=CLIENT_ID, receive_message_max_bytes=_FRAME_BYTES_MAX)
        self._length = memoryview(bytearray(_LENGTH.size))
        self._next_size: int | None = None  # of the next answer, where it is received already
        self._expires_at_s = float("inf")
        self._wait_all = 0
        self._interrupt_lock = threading.Lock()
        self._is_interrupted = False
        self._opened: socket.socket | None = None

    def open(self) -> None:
        """Connect and authenticate.

        Raises:
            BrokerLostError: nothing answers there.
            BrokerRefusedError: what answers can't be talked to.
        """
        with self._translated("connecting"):
            connected = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
            self._keep(connected)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._config["security_protocol"] in ("SSL", "SASL_SSL"):
                # TLS hands out one TLS record at a time, so there is nothing to wait for in the kernel.
                context = _ssl_context(self._config)
                self._keep(context.wrap_socket(connected, server_hostname=self._host.rstrip(".")))
            else:
                self._wait_all = socket.MSG_WAITALL
                connected.settimeout(None)
            self.set_timeout(self._timeout_s)
            self._require_fetch_version()
            if self._config["security_protocol"] in ("SASL_PLAINTEXT", "SASL_SSL"):
                self._authenticate()

    def _keep(self, opened: socket.socket) -> None:
        with self._interrupt_lock:
            self._opened = opened
            if self._is_interrupted:
                raise BrokerLostError(f"connecting to {self.address} was interrupted")

    @property
    def _socket(self) -> socket.socket:
        assert self._opened is not None, "open() comes first"
        return self._opened

    def set_timeout(self, timeout_s: float) -> None:
        """How long to wait for the next byte, in seconds."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(timeout_s)
            return
        timeval = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def _require_fetch_version(self) -> None:
        response = self._request(
            ApiVersionsRequest(version=3, client_software_name="evenload", client_software_version="0")
        )
        ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        lowest, highest = ranges.get(FETCH_API_KEY, (0, -1))
        if not lowest <= FETCH_VERSION <= highest:
            raise BrokerRefusedError(
                f"{self.address} speaks versions {lowest} to {highest} of Fetch, not {FETCH_VERSION}; "
                "Kafka 3.1 or later is needed"
            )

    def _authenticate(self) -> None:
        mechanism = sasl_mechanism(self._host, self._config)
        handshake = self._request(SaslHandshakeRequest(version=1, mechanism=self._config["sasl_mechanism"]))
        if handshake.error_code:
            raise BrokerRefusedError(
                f"{self.address} does not offer SASL {self._config['sasl_mechanism']}, only "
                f"{', '.join(handshake.mechanisms)}"
            )
        while not mechanism.is_done():
            answer = self._request(SaslAuthenticateRequest(version=2, auth_bytes=mechanism.auth_bytes()))
            if answer.error_code:
                raise BrokerRefusedError(f"{self.address} refuses the credentials: {answer.error_message}")
            mechanism.receive(answer.auth_bytes)
            if answer.session_lifetime_ms:
                lifetime_s = answer.session_lifetime_ms / 1000
                self._expires_at_s = time.monotonic() + _REAUTHENTICATE_AT * lifetime_s
        if not mechanism.is_authenticated():
            raise BrokerRefusedError(f"{self.address} ended authentication without accepting the credentials")

    @property
    def is_expiring(self) -> bool:
        """Whether the SASL session ends soon; time to connect anew, as nothing is in flight."""
        return time.monotonic() >= self._expires_at_s

    def request(self, message: Any) -> Any:
        """Send one of kafka-python's requests, and wait for its answer; nothing else may be in flight."""
        with self._translated("asking"):
            return self._request(message)

    def _request(self, message: Any) -> Any:
        self._protocol.send_request(message)
        self._socket.sendall(self._protocol.send_bytes())
        answers: list[Any] = []
        while not answers:
            received = self._socket.recv(1 << 16)
            if not received:
                raise BrokerLostError(f"{self.address} closed the connection")
            answers = self._protocol.receive_bytes(received)
        _, answer = answers[0]
        return answer

    def send(self, requests: bytes) -> None:
        """Send requests that are written already."""
        with self._translated("sending"):
            self._socket.sendall(requests)

    def receive(self, allocate: Callable[[int], memoryview], *, more_to_come: bool) -> memoryview:
        """Wait for one answer, without its length.

        Args:
            allocate: gives memory of a size.
            more_to_come: another request is unanswered; then the length of its answer is received together
                with this answer, one system call for each instead of two.
        """
        with self._translated("receiving"):
            if self._next_size is None:
                self._receive_into(self._length)
                (self._next_size,) = _LENGTH.unpack(self._length)
            size, self._next_size = self._next_size, None
            if not 4 <= size <= _FRAME_BYTES_MAX:
                raise BrokerRefusedError(f"{self.address} sent {size} as a length; is it a Kafka broker?")
            if not more_to_come:
                frame = allocate(size)
                self._receive_into(frame)
                return frame
            both = allocate(size + _LENGTH.size)
            self._receive_into(both)
            (self._next_size,) = _LENGTH.unpack_from(both, size)
            return both[:size]

    def _receive_into(self, memory: memoryview) -> None:
        received, size = 0, len(memory)
        while received < size:
            count = self._socket.recv_into(memory[received:], size - received, self._wait_all)
            if count == 0:
                raise BrokerLostError(f"{self.address} closed the connection")
            received += count

    def interrupt(self) -> None:
        """Make a receive in another thread end at once, with BrokerLostError."""
        with self._interrupt_lock, contextlib.suppress(OSError):
            self._is_interrupted = True
            if self._opened is not None:
                self._opened.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, if there is one."""
        if self._opened is not None:
            self._opened.close()

    def _translated(self, doing: str) -> _Translated:
        return _Translated(self.address, doing)


class _Translated(contextlib.AbstractContextManager[None]):
    """Socket, TLS and kafka-python errors as one of the two that a fetcher handles differently."""

    def __init__(self, address: str, doing: str) -> None:
        self._address = address
        self._doing = doing

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case ssl.SSLCertVerificationError() | ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
                raise BrokerRefusedError(f"TLS with {self._address} failed: {error}") from error
            case BlockingIOError() | TimeoutError():
                raise BrokerLostError(f"{self._address} did not answer in time ({self._doing})") from error
            case OSError() | KafkaError():
                raise BrokerLostError(f"{self._doing} to {self._address} failed: {error}") from error


def _ssl_context(config: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=config.get("ssl_cafile"))
    if config.get("ssl_certfile"):
        context.load_cert_chain(config["ssl_certfile"], config.get("ssl_keyfile"), config.get("ssl_password"))
    return context


def error_name(error_code: int) -> str:
    """Kafka's name of an error code, for a message."""
    return f"{for_code(error_code).__name__} ({error_code})"
