"""Ask one broker, with one request on one connection, whether it serves.

A client library would cost a tenth of a second and three connections for a question that is two
numbers. A KRaft broker listens early but answers nothing before the controller has taken it back
into the cluster (unfenced), so any answer means that it serves; Metadata also says how many other
brokers it knows of, without which topics made right after a start could leave some out.

Wire format: https://kafka.apache.org/protocol (Metadata, version 1).
"""

from __future__ import annotations

import socket
import struct

_METADATA = 3
_VERSION = 1
_NO_TOPICS = 0
_CORRELATION_ID = 1
_HEAD = struct.Struct(">ihhih")  # size, API, version, correlation id, length of the client id


def num_brokers_known(host: str, port: int, *, timeout_s: float = 1.0) -> int:
    """How many brokers (itself included) the one at this address knows; 0 when it doesn't serve."""
    client_id = b"evenload-probe"
    body = client_id + struct.pack(">i", _NO_TOPICS)
    request = _HEAD.pack(_HEAD.size - 4 + len(body), _METADATA, _VERSION, _CORRELATION_ID, len(client_id))
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(request + body)
            # size, correlation id, number of brokers: 4 bytes each
            answer = connection.recv(12, socket.MSG_WAITALL)
    except OSError:
        return 0
    return int(struct.unpack(">iii", answer)[2]) if len(answer) == 12 else 0
