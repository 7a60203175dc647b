"""Listen for a service, and leave files to open for those that it asks itself.

Each connection is an open file of the process, and so is each connection to a broker: strangers who open as
many as there may be would keep the service from measuring. So it takes three quarters of them, and turns away
whoever comes then; aiohttp closes one on which no whole request has come for `keepalive_timeout`.
"""

from __future__ import annotations

import asyncio
import resource
import ssl

from aiohttp import web

__all__ = ["listen"]

# Two connections for each of 20,000 producers. More would only be memory for whoever opens them.
_FILES_MAX = 1 << 16
_HANDSHAKE_S = 10.0


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()


async def listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    connections_max: int | None = None,
) -> asyncio.Server:
    """Let clients reach a runner that is set up; whoever closes it closes what this returns first.

    Args:
        runner: what answers.
        host: where to listen.
        port: likewise; 0: any that is free.
        tls: with a certificate; None: plain.
        connections_max: how many at a time; None: three quarters of the files that may be open.

    Raises:
        OSError: it can't listen there.
    """
    server = runner.server
    assert server is not None
    bound = connections_max if connections_max is not None else _raise_limit_of_files() * 3 // 4

    def take() -> asyncio.BaseProtocol:
        return server() if len(server.connections) < bound else _TurnedAway()

    return await asyncio.get_running_loop().create_server(
        take,
        host,
        port,
        ssl=tls,
        ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
        reuse_address=True,
    )


def _raise_limit_of_files() -> int:
    """How many files may be open now; the usual 1024 wouldn't do for a thousand producers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return _FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, _FILES_MAX)
