"""Strangers who open connections to a service and say nothing, or too many of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from evenload.http_edge.listening import listening

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def _listening(
    *,
    connections_max: int = 100,
    keepalive_timeout: float = 60.0,
    tls: ssl.SSLContext | None = None,
    handshake_timeout_s: float = 3600.0,
) -> AsyncIterator[int]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.add_routes([web.get("/", answer)])
    async with listening(
        web.AppRunner(app, keepalive_timeout=keepalive_timeout),
        "127.0.0.1",
        0,
        tls=tls,
        connections_max=connections_max,
        handshake_timeout_s=handshake_timeout_s,
    ) as port:
        yield port


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # type: ignore[arg-type]


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_who_never_ends_a_request_is_cut_off(said: bytes) -> None:
    async def test() -> None:
        async with _listening(keepalive_timeout=0.1) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            assert await reader.read() == b""
            writer.close()

    _run(test)


def test_who_never_agrees_on_tls_is_cut_off(certificate: Path) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)

    async def test() -> None:
        async with _listening(tls=serving, handshake_timeout_s=0.1) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()

    _run(test)


@pytest.mark.parametrize("is_tls", [False, True])
def test_more_connections_than_are_taken_are_closed_and_those_taken_are_served(
    is_tls: bool, certificate: Path
) -> None:
    serving, trusting = None, None
    if is_tls:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(certificate)
        trusting = ssl.create_default_context(cafile=certificate.with_name("ca.pem"))

    async def test() -> None:
        async with _listening(connections_max=3, tls=serving) as port, contextlib.AsyncExitStack() as opened:

            async def ask(streams: Streams) -> bool:
                reader, writer = streams
                try:
                    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                    return bool(await reader.readuntil(b"here"))
                except (asyncio.IncompleteReadError, OSError):
                    return False

            async def close(writer: asyncio.StreamWriter) -> None:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

            async def is_served() -> bool:
                try:
                    streams = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
                except OSError:
                    return False  # turned away before TLS was agreed on
                opened.push_async_callback(close, streams[1])
                return await ask(streams)

            taken = [await asyncio.open_connection("127.0.0.1", port, ssl=trusting) for _ in range(3)]
            for _, writer in taken:
                opened.push_async_callback(close, writer)
            assert all([await ask(streams) for streams in taken])
            assert not any([await is_served() for _ in range(3)])
            assert all([await ask(streams) for streams in taken])
            await close(taken[0][1])
            while not await is_served():
                await asyncio.sleep(0.01)

    _run(test)


def test_in_the_end_a_connection_is_closed_though_its_client_never_agrees(certificate: Path) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=certificate.with_name("ca.pem"))

    def served(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), 120)
        client = trusting.wrap_socket(plain, server_hostname="127.0.0.1")
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        read = b""
        while not read.endswith(b"here"):
            read += client.recv(4096)
        return client

    async def test() -> None:
        num_files = psutil.Process().num_fds()
        async with _listening(tls=serving) as port:
            client = await asyncio.to_thread(served, port)
        client.close()
        assert psutil.Process().num_fds() == num_files

    _run(test)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
def test_connections_that_never_agree_on_tls_count_too(said: bytes, certificate: Path) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=certificate.with_name("ca.pem"))

    async def test() -> None:
        async with _listening(connections_max=3, tls=serving) as port, contextlib.AsyncExitStack() as opened:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for _, writer in silent:
                opened.callback(writer.close)
                writer.write(said)
            turned_away, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.callback(writer.close)
            assert await turned_away.read() == b""
            # They are accepted in the order in which they came: those before are still being waited for.
            assert not any(reader.at_eof() for reader, _ in silent)

            silent[0][1].close()
            while True:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
                except OSError:
                    await asyncio.sleep(0.01)  # the service hasn't seen yet that one has left
                    continue
                break
            opened.callback(writer.close)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert await reader.readuntil(b"here")

    _run(test)
