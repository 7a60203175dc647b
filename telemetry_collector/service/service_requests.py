"""Requests to a collector service, as a client makes them: bounded in time and size, with one error.

The one place that asks over HTTP. Whatever a service does (no answer, half an answer, a megabyte of zeros in
a kilobyte), there is what was asked for or a `ServiceUnusableError`, within the time given.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import ssl
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp

from evenload.kafka_connection import Connection
from evenload.telemetry_collector.errors import ServiceUnusableError
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.asking import (
    GOOD,
    SENTENCE_MAX_CHARS,
    authorization,
    refusal,
    report_bodies,
    trusted,
)
from evenload.telemetry_collector.service.wire import ALL_TOPICS, CLIENT_HEADER, SnapshotAnswer, decode_answer

__all__ = ["ServiceRequests", "Tagged"]

_ANSWER_MAX_BYTES = 128 << 20  # 20 times 100,000 partitions
_ERROR_MAX_BYTES = 4096
# More than this is decoded in a thread, as the loop would stand still for more than a few milliseconds.
_LARGE_BYTES = 64 << 10


class Tagged(NamedTuple):
    """An answer, and by what name to ask whether it is still the same."""

    answer: SnapshotAnswer
    tag: str | None


class ServiceRequests:
    """A client of one service, and if that fails, of the next. Used from one asyncio loop; an asynchronous
    context manager.

    Args:
        connection: the services' URLs, and what it asks of those who use it.
        timeout_s: how long each request may take as a whole, in seconds.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        assert connection.collector_url is not None
        self._connection = connection
        self._urls = connection.collector_urls  # the first is asked
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={CLIENT_HEADER: f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"},
        )

    async def __aenter__(self) -> ServiceRequests:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def snapshot(
        self,
        topics: frozenset[str] | None,
        *,
        without_loads: frozenset[str],
        max_age_s: float | None,
        tag: str | None,
    ) -> Tagged | None:
        """The latest snapshot; None: it is still the one that `tag` names.

        Args:
            topics: whose layout and sizes; None: of all.
            without_loads: whose announced bytes don't count.
            max_age_s: how old it may be when the request arrives; None: of any age.
            tag: as it came with an earlier answer to the same question.

        Raises:
            ServiceUnusableError: there is none that can be used.
        """
        params = [("topics", ALL_TOPICS if topics is None else ",".join(sorted(topics)))]
        params += [("without", load) for load in sorted(without_loads)]
        if max_age_s is not None and math.isfinite(max_age_s):
            params.append(("max_age_s", f"{max_age_s:g}"))
        headers = {} if tag is None else {"If-None-Match": tag}
        status, body, new_tag = await self._ask("GET", "/v1/snapshot", params=params, headers=headers)
        if status == 304 and tag is not None:
            return None
        if len(body) > _LARGE_BYTES:
            answer = await asyncio.to_thread(decode_answer, body)
        else:
            answer = decode_answer(body)
        return Tagged(answer, new_tag)

    async def announce(self, intent: Intent) -> None:
        """Tell what a load will still write.

        Raises:
            ServiceUnusableError: it wasn't taken.
        """
        await self._ask("PUT", "/v1/intents", data=intent.model_dump_json().encode())

    async def withdraw(self, load: str) -> None:
        """Tell that a load has nothing more to write.

        Raises:
            ServiceUnusableError: it wasn't taken.
        """
        await self._ask("DELETE", "/v1/intents", params={"load": load})

    async def report(self, reports: Sequence[RouteReport]) -> None:
        """Tell how records are routed.

        Raises:
            ServiceUnusableError: not all of it was taken.
        """
        failed = None
        for body in report_bodies(reports):
            try:
                await self._ask("PUT", "/v1/reports", data=body)
            except ServiceUnusableError as error:  # of this part; another may be small enough
                failed = error
        if failed is not None:
            raise failed

    async def _ask(self, method: str, path: str, **options: Any) -> tuple[int, bytes, str | None]:
        # Whoever a redirection named would be sent the token.
        options |= {
            "allow_redirects": False,
            "headers": {**options.get("headers", {}), **authorization(self._connection)},
        }
        try:
            async with self._session.request(
                method, self._urls[0] + path, ssl=self._trusted(), **options
            ) as response:
                if response.status not in GOOD:
                    raise ServiceUnusableError(await _sentence(response))
                body = await _read(response, _ANSWER_MAX_BYTES)
                return response.status, body, response.headers.get("ETag")
        except TimeoutError as error:
            self._ask_another()
            raise ServiceUnusableError(f"no answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            self._ask_another()
            raise ServiceUnusableError(_why(error)) from error

    def _ask_another(self) -> None:
        """From the next question on; a service that refuses one answers others."""
        self._urls.append(self._urls.pop(0))

    def _trusted(self) -> ssl.SSLContext | bool:
        """Whose certificates are trusted; True: the system's authorities."""
        if self._connection.collector_ca_path is None:
            return True
        if self._tls is None:
            self._tls = trusted(self._connection)
        return self._tls


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():  # decompressed, and no more of it at a time than fits
        body += piece
        if len(body) > max_bytes:
            raise ServiceUnusableError(f"its answer is larger than {max_bytes} bytes")
    return bytes(body)


async def _sentence(response: aiohttp.ClientResponse) -> str:
    try:
        body = await _read(response, _ERROR_MAX_BYTES)
    except ServiceUnusableError:  # it is longer than a sentence
        body = b""
    return refusal(response.status, body)


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"its host name can't be looked up: {error.os_error.strerror or error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate isn't trusted: {error.certificate_error}"[:SENTENCE_MAX_CHARS]
    if isinstance(error, aiohttp.ClientConnectorError):
        is_of_tls = isinstance(error.os_error, ssl.SSLError)  # whose numbers aren't the system's
        number = None if is_of_tls else error.os_error.errno
        return os.strerror(number).lower() if number else str(error.os_error)[:SENTENCE_MAX_CHARS]
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"its answer can't be read: {text}"[:SENTENCE_MAX_CHARS]
