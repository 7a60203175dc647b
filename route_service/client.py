"""Asks one service for routes, and tells it how they are followed: bounded in time and size, with one error.

Whatever a service does (no answer, half an answer, a byte a second), there is a route or a
`ServiceUnusableError` within the time given; a `ServiceRefusedError` if it does answer. Only looking up its
host name is as slow as the system is.

Needs nothing but the standard library and pydantic. For one thread. Read next: route_answer.py.
"""

from __future__ import annotations

import errno
import http.client
import io
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from evenload.kafka_connection import Connection
from evenload.route_service.route_answer import AGE_HEADER, RouteAnswer, decode_route
from evenload.telemetry_collector.errors import ServiceRefusedError, ServiceUnusableError
from evenload.telemetry_collector.reports import RouteReport
from evenload.telemetry_collector.service.asking import (
    GOOD,
    SENTENCE_MAX_CHARS,
    authorization,
    refusal,
    report_bodies,
    trusted,
)
from evenload.telemetry_collector.service.wire import CLIENT_HEADER

__all__ = ["HeardRoute", "RouteClient"]

_TIMEOUT_S = 2.0
_ANSWER_MAX_BYTES = 1 << 20
_ERROR_MAX_BYTES = 4096
_AGE_MAX_S = 3600.0


class HeardRoute(NamedTuple):
    """A route, and how old it is.

    Attributes:
        answer: what was decided.
        measured_at_s: when brokers were measured for it, by our own clock.
    """

    answer: RouteAnswer
    measured_at_s: float


class _Tagged(NamedTuple):
    answer: RouteAnswer
    tag: str


class _Response(NamedTuple):
    status: int
    body: bytes
    headers: http.client.HTTPMessage


class RouteClient:
    """A client of one service, until it is closed; a connection is kept between requests.

    Args:
        url: the service's.
        connection: what the service asks of those who use it (token, authorities).
        name: who asks, as the service counts clients.
        timeout_s: how long each request may take as a whole, in seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        connection: Connection,
        *,
        name: str,
        timeout_s: float = _TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._connection = connection
        self._name = name
        self._timeout_s = timeout_s
        self._clock = clock
        self._http: _BoundedConnection | None = None
        self._tagged: dict[str, _Tagged] = {}

    def ask(self, topic: str) -> HeardRoute:
        """The topic's route.

        Raises:
            ServiceUnusableError: it can't be asked.
            ServiceRefusedError: it has none that can be used.
        """
        known = self._tagged.get(topic)
        sent_at_s = self._clock()
        headers = {} if known is None else {"If-None-Match": known.tag}
        response = self._request("GET", f"/v1/routes/{quote(topic, safe='')}", headers=headers)
        try:
            if response.status == HTTPStatus.NOT_MODIFIED and known is not None:
                answer = known.answer
            else:
                answer = decode_route(response.body, topic)
            age_s = _age(response.headers.get(AGE_HEADER), is_needed=answer.reason is None)
        except ServiceUnusableError as error:
            raise ServiceRefusedError(error.reason) from error
        if age_s >= answer.expires_s:
            raise ServiceRefusedError(f"its latest measurement is {age_s:.0f} s old")
        if tag := response.headers.get("ETag"):
            self._tagged[topic] = _Tagged(answer, tag)
        else:
            self._tagged.pop(topic, None)
        return HeardRoute(answer, sent_at_s - age_s)

    def forget(self, topic: str) -> None:
        """Ask for the whole route next time: what it said isn't used."""
        self._tagged.pop(topic, None)

    def report(self, reports: Sequence[RouteReport]) -> None:
        """Tell how topics are written.

        Raises:
            ServiceUnusableError: not all of it was taken.
        """
        failed = None
        for body in report_bodies(reports):
            try:
                self._request("PUT", "/v1/reports", body=body)
            except ServiceRefusedError as error:  # of this part; another may be small enough
                failed = error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def _request(
        self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> _Response:
        ends_s = self._clock() + self._timeout_s
        said = {**authorization(self._connection), CLIENT_HEADER: self._name, **(headers or {})}
        was_open = self._http is not None
        try:
            try:
                response = self._exchange(ends_s, method, path, body, said)
            except (http.client.RemoteDisconnected, ConnectionError):
                if not was_open:
                    raise
                # A server may close a connection that isn't used; once is enough to tell that from a fault.
                response = self._exchange(ends_s, method, path, body, said)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise ServiceUnusableError(f"no answer within {self._timeout_s:g} s") from error
            if isinstance(error, (OSError, http.client.HTTPException, ValueError)):
                raise ServiceUnusableError(_why(error)) from error
            raise
        if response.status not in GOOD:
            raise ServiceRefusedError(refusal(response.status, response.body[:_ERROR_MAX_BYTES]))
        return response

    def _exchange(
        self, ends_s: float, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> _Response:
        if self._http is None:
            tls = trusted(self._connection) if urlsplit(self.url).scheme == "https" else None
            self._http = _BoundedConnection(self.url, tls, self._clock)
        connection = self._http
        connection.ends_s = ends_s
        try:
            connection.request(method, connection.base_path + path, body=body, headers=headers)
            with closing(connection.getresponse()) as answer:
                read = answer.read(_ANSWER_MAX_BYTES + 1)
        except BaseException:
            self.close()
            raise
        if len(read) > _ANSWER_MAX_BYTES:
            self.close()
            raise ServiceRefusedError(f"its answer is larger than {_ANSWER_MAX_BYTES} bytes")
        return _Response(answer.status, read, answer.headers)


class _BoundedConnection(http.client.HTTPConnection):
    """A connection on which everything ends by `ends_s`: its own time-out begins anew with each byte."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, clock: Callable[[], float]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.base_path = parts.path
        self.ends_s = math.inf
        self._clock = clock
        self._tls = tls
        super().__init__(parts.hostname, parts.port or (80 if tls is None else 443))

    def connect(self) -> None:
        self.sock = self._connected()
        if self._tls is not None:
            self.sock.settimeout(self.left_s())  # of the whole handshake, as Python reckons it
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        self.sock = _BoundedSocket(self.sock, self.left_s)  # what is used of one

    def _connected(self) -> socket.socket:
        """To the first address that answers; `create_connection` would give each of them the whole time."""
        refused: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(self.left_s())
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return opened
            except OSError as error:
                opened.close()
                refused = error
        raise refused or OSError(errno.EADDRNOTAVAIL, "it has no address")

    def left_s(self) -> float:
        """How much time is left, in seconds above 0."""
        left_s = self.ends_s - self._clock()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _BoundedSocket:
    """What `http.client` uses of a socket."""

    def __init__(self, wrapped: socket.socket, left_s: Callable[[], float]) -> None:
        self._wrapped = wrapped
        self._left_s = left_s

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._wrapped.settimeout(self._left_s())
            left = left[self._wrapped.send(left) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_BoundedReader(self._wrapped, self._left_s))

    def close(self) -> None:
        self._wrapped.close()


class _BoundedReader(io.RawIOBase):
    def __init__(self, wrapped: socket.socket, left_s: Callable[[], float]) -> None:
        self._wrapped = wrapped
        self._file = wrapped.makefile("rb", buffering=0)  # which keeps the socket open until it is closed
        self._left_s = left_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._wrapped.settimeout(self._left_s())
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


def _age(said: str | None, *, is_needed: bool) -> float:
    """How old a measurement is, in seconds; without one, shares that are only even are of now."""
    if said is None and not is_needed:
        return 0.0
    try:
        age_s = float(said or "")
    except ValueError:
        age_s = math.nan
    if not 0 <= age_s <= _AGE_MAX_S:
        raise ServiceUnusableError(f"it doesn't say how old its measurement is (but {(said or '')[:20]!r})")
    return age_s


def _why(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"its host name can't be looked up: {error.strerror}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted: {error.verify_message}"[:SENTENCE_MAX_CHARS]
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without an answer"
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    text = " ".join(str(error).split()) or type(error).__name__
    return f"its answer can't be read: {text}"[:SENTENCE_MAX_CHARS]
