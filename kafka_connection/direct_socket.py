"""A socket for kafka-python that is closed when it can't connect, which kafka-python 3.0.12 forgets.

It drops such a socket instead: a broker that is down for a day would cost a file descriptor for each try,
until the garbage collector comes by.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from kafka.net.inet import KafkaNetSocket

DIRECT_URL: Final = "direct://"
"""To be passed as `proxy_url`, by whose scheme kafka-python chooses the socket's class; there is no proxy."""


class DirectSocket(KafkaNetSocket):  # type: ignore[misc]
    """Connects without a proxy. kafka-python makes it, once this module is imported."""

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: Any = None) -> Any:
        """As kafka-python's, but nothing stays open when it fails."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
