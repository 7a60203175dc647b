"""Listen for a service, and keep enough open files for the brokers that it asks.

Each connection is an open file of the process, and so is each connection to a broker. Strangers who open as
many connections as the limit allows would keep the service from measuring. So it accepts three quarters of
the limit and turns away all others. A connection counts from the moment it is accepted, also while TLS is
being agreed on. One that takes too long over that is closed, and so is one on which no whole request comes
for the runner's `keepalive_timeout`. In the end all are closed, also those whose clients don't answer.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakSet

from aiohttp import web

__all__ = ["listening", "url_of"]

_log = logging.getLogger(__name__)

# Two connections for each of 20,000 producers. More would only be memory for whoever opens them.
_FILES_MAX = 1 << 16
_BACKLOG = 1024  # a thousand producers that come back at once
_ACCEPT_AGAIN_S = 1.0


@asynccontextmanager
async def listening(
    runner: web.AppRunner,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    connections_max: int | None = None,
    handshake_timeout_s: float = 10.0,
) -> AsyncIterator[int]:
    """Let clients reach a runner's application while this is entered, which yields the port.

    Args:
        runner: what answers; set up and cleaned up here. Requests have its `shutdown_timeout` to end.
        host: where to listen.
        port: likewise; 0: any that is free.
        tls: with a certificate; None: plain.
        connections_max: how many at a time; None: three quarters of the files that may be open.
        handshake_timeout_s: a connection on which TLS isn't agreed on by then is closed.

    Raises:
        OSError: it can't listen there.
    """
    async with AsyncExitStack() as ending:
        sockets = [ending.enter_context(each) for each in await _bound(host, port)]
        await runner.setup()
        server = runner.server
        assert server is not None
        arrived: WeakSet[asyncio.WriteTransport] = WeakSet()
        ending.push_async_callback(_abort, arrived)
        ending.push_async_callback(runner.cleanup)
        listener = _Listener(
            server,
            arrived,
            tls=tls,
            connections_max=connections_max or _raise_limit_of_files() * 3 // 4,
            handshake_timeout_s=handshake_timeout_s,
        )
        ending.push_async_callback(listener.close)
        listener.accept_from(sockets)
        yield sockets[0].getsockname()[1]


def url_of(host: str, port: int, *, is_tls: bool) -> str:
    """How a service that listens there is asked."""
    return f"{'https' if is_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


async def _bound(host: str, port: int) -> Sequence[socket.socket]:
    # asyncio finds the host's addresses and binds to each; accepting is the listener's own.
    placed = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, host, port, reuse_address=True, start_serving=False
    )
    try:
        return [each.dup() for each in placed.sockets]
    finally:
        placed.close()


async def _abort(arrived: Iterable[asyncio.WriteTransport]) -> None:
    """End what is left of connections: of clients that don't agree to the end of TLS, or don't read."""
    for each in arrived:
        each.abort()
    await asyncio.sleep(0)  # their sockets are closed in the loop's next round


class _Listener:
    """Takes connections until it is closed, and hands them to a server.

    A server of asyncio's makes a protocol for each connection, but doesn't tell it that TLS failed, so that
    nobody could know how many are still agreeing on it: strangers who connect and say nothing would hold any
    number of files. Here a task waits for each.
    """

    def __init__(
        self,
        server: web.Server,
        arrived: WeakSet[asyncio.WriteTransport],
        *,
        tls: ssl.SSLContext | None,
        connections_max: int,
        handshake_timeout_s: float,
    ) -> None:
        self._server = server
        self._arrived = arrived
        self._tls = tls
        self._connections_max = connections_max
        self._handshake_timeout_s = None if tls is None else handshake_timeout_s
        self._arriving: set[_Arriving] = set()
        self._accepting: dict[socket.socket, asyncio.Task[None]] = {}

    def accept_from(self, sockets: Iterable[socket.socket]) -> None:
        """Take connections from now on."""
        for each in sockets:
            each.listen(_BACKLOG)
            self._accepting[each] = asyncio.create_task(self._accept_from(each))

    async def close(self) -> None:
        """Take no more, and end those that are still agreeing on TLS; what has arrived is the server's."""
        for task in self._accepting.values():
            task.cancel()
        await asyncio.gather(*self._accepting.values(), return_exceptions=True)
        for each in self._accepting:
            each.close()
        for arriving in self._arriving:
            arriving.accepted.close()  # its task was cancelled before it began

    async def _accept_from(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as error:
                    _log.warning("a connection could not be accepted: %s", error)
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                    continue
                if len(self._arriving) + len(self._server.connections) < self._connections_max:
                    arriving = _Arriving(accepted, self._server, self._has_arrived)
                    self._arriving.add(arriving)
                    group.create_task(self._let_in(arriving))
                else:
                    accepted.close()
                # Accepting doesn't wait while there are more: a flood would keep everything else waiting.
                await asyncio.sleep(0)

    def _has_arrived(self, arriving: _Arriving, transport: asyncio.WriteTransport) -> None:
        self._arriving.discard(arriving)
        self._arrived.add(transport)

    async def _let_in(self, arriving: _Arriving) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: arriving,
                arriving.accepted,
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

    def __init__(
        self,
        accepted: socket.socket,
        server: web.Server,
        on_arrival: Callable[[_Arriving, asyncio.WriteTransport], None],
    ) -> None:
        self.accepted = accepted
        self._server = server
        self._on_arrival = on_arrival

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        self._on_arrival(self, transport)


def _raise_limit_of_files() -> int:
    """How many files may be open now; the usual 1024 wouldn't do for a thousand producers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return _FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, _FILES_MAX)
