"""Listen for a service, and keep enough open files for the brokers that it asks.

Each connection is an open file of the process, and so is each connection to a broker. Strangers who open as
many connections as the limit allows would keep the service from measuring. So it accepts three quarters of
the limit and turns away all others. A connection counts from the moment it is accepted, also while TLS is
being agreed on. One that takes too long over that is closed, and so is one on which no whole request comes
for the runner's `keepalive_timeout`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Sequence

from aiohttp import web

__all__ = ["Listener", "listen", "url_of"]

_log = logging.getLogger(__name__)

# Two connections for each of 20,000 producers. More would only be memory for whoever opens them.
_FILES_MAX = 1 << 16
_BACKLOG = 1024  # a thousand producers that come back at once
_ACCEPT_AGAIN_S = 1.0


async def listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    connections_max: int | None = None,
    handshake_timeout_s: float = 10.0,
) -> Listener:
    """Let clients reach a runner that is set up; whoever cleans it up closes what this returns first.

    Args:
        runner: what answers.
        host: where to listen.
        port: likewise; 0: any that is free.
        tls: with a certificate; None: plain.
        connections_max: how many at a time; None: three quarters of the files that may be open.
        handshake_timeout_s: a connection on which TLS isn't agreed on by then is closed.

    Raises:
        OSError: it can't listen there.
    """
    server = runner.server
    assert server is not None
    bound = connections_max if connections_max is not None else _raise_limit_of_files() * 3 // 4
    # asyncio finds the host's addresses and binds to each; accepting is the listener's own.
    placed = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, reuse_address=True, start_serving=False
    )
    try:
        return Listener(
            [each.dup() for each in placed.sockets],
            server,
            tls=tls,
            connections_max=bound,
            handshake_timeout_s=handshake_timeout_s,
        )
    finally:
        placed.close()


def url_of(host: str, port: int, *, is_tls: bool) -> str:
    """How a service that listens there is asked."""
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class Listener:
    """Takes connections from now on, until it is closed. `listen` makes one.

    A server of asyncio's makes a protocol for each connection, but doesn't tell it that TLS failed, so that
    nobody could know how many are still agreeing on it: strangers who connect and say nothing would hold any
    number of files. Here a task waits for each.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        server: web.Server,
        *,
        tls: ssl.SSLContext | None,
        connections_max: int,
        handshake_timeout_s: float,
    ) -> None:
        self.port: int = sockets[0].getsockname()[1]
        self._server = server
        self._tls = tls
        self._connections_max = connections_max
        self._handshake_timeout_s = None if tls is None else handshake_timeout_s
        self._arriving: set[_Arriving] = set()
        for each in sockets:
            each.listen(_BACKLOG)
        self._accepting = [asyncio.create_task(self._accept_from(each)) for each in sockets]

    async def close(self) -> None:
        """Take no more, and end those that are still agreeing on TLS; what has arrived is the runner's."""
        for each in self._accepting:
            each.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)

    async def _accept_from(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        accepted, _ = await loop.sock_accept(listening)
                    except OSError as error:
                        _log.warning("a connection could not be accepted: %s", error)
                        await asyncio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    if len(self._arriving) + len(self._server.connections) < self._connections_max:
                        arriving = _Arriving(self._server, self._arriving.discard)
                        self._arriving.add(arriving)
                        group.create_task(self._let_in(accepted, arriving))
                    else:
                        accepted.close()
                    # Accepting doesn't wait while there are more: a flood would keep everything else waiting.
                    await asyncio.sleep(0)

    async def _let_in(self, accepted: socket.socket, arriving: _Arriving) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: arriving,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout_s,
            )
        except OSError:
            pass  # closed: who doesn't speak TLS, or took too long, or left
        except Exception:  # noqa: BLE001 - one connection's fault may not end the accepting of others
            _log.exception("a connection could not be served")
        finally:
            self._arriving.discard(arriving)


class _Arriving(asyncio.Protocol):
    """A connection that has been accepted and isn't the server's yet; hands itself over when it can be used.

    The server counts it from the same moment, so that it is never counted twice nor not at all.
    """

    def __init__(self, server: web.Server, on_arrival: Callable[[_Arriving], None]) -> None:
        self._server = server
        self._on_arrival = on_arrival

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        self._on_arrival(self)


def _raise_limit_of_files() -> int:
    """How many files may be open now; the usual 1024 wouldn't do for a thousand producers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return _FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, _FILES_MAX)
