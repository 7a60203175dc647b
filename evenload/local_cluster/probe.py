"""Ask one broker, with one request on one connection, whether it serves.

A client library would cost a tenth of a second and three connections for a question with so short an
answer. A KRaft broker listens early but answers nothing before the controller has taken it back
into the cluster (unfenced), so an answer means that it serves. Metadata also says which cluster that is:
another one's broker may have taken the port after it was chosen, and ours notices only as it opens it, after
the controller has told all others of it. And it says how many brokers it knows of, without which topics made
right after a start could leave some out.

Wire format: https://kafka.apache.org/protocol (Metadata, version 2).
"""

from __future__ import annotations

import socket
import struct
from io import BytesIO

_METADATA = 3
_VERSION = 2
_NO_TOPICS = 0
_CORRELATION_ID = 1
_HEAD = struct.Struct(">ihhih")  # size, API, version, correlation id, length of the client id
_SIZE_MAX = 1 << 20  # who listens there may be anybody


def num_brokers_known(host: str, port: int, cluster_id: str, *, timeout_s: float = 1.0) -> int:
    """How many brokers (itself included) the one at this address knows.

    Args:
        cluster_id: The cluster that it has to be of.

    Returns:
        0 when it doesn't serve, or is of another cluster.
    """
    client_id = b"evenload-probe"
    body = client_id + struct.pack(">i", _NO_TOPICS)
    request = _HEAD.pack(_HEAD.size - 4 + len(body), _METADATA, _VERSION, _CORRELATION_ID, len(client_id))
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(request + body)
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            answer = BytesIO(connection.recv(min(max(0, size), _SIZE_MAX), socket.MSG_WAITALL))
        num_brokers, found_id = _read_metadata(answer)
    except (OSError, struct.error):
        return 0
    return num_brokers if found_id == cluster_id.encode() else 0


def _read_metadata(answer: BytesIO) -> tuple[int, bytes]:
    """The number of brokers and the cluster's id.

    Raises:
        struct.error: It isn't such an answer.
    """
    _, num_brokers = struct.unpack(">ii", answer.read(8))  # the first is the correlation id
    for _ in range(num_brokers):
        answer.read(4)  # id
        _read_string(answer)  # host
        answer.read(4)  # port
        _read_string(answer)  # rack
    return num_brokers, _read_string(answer)


def _read_string(answer: BytesIO) -> bytes:
    (length,) = struct.unpack(">h", answer.read(2))
    return answer.read(max(0, length))  # -1: there is none
