"""Ask brokers whether they serve, each with one request on one connection; and wait until they do.

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
import time
from collections.abc import Mapping
from io import BytesIO

from evenload.local_cluster.errors import BrokerDiedError, BrokerTimeoutError
from evenload.local_cluster.process import JavaServer
from evenload.local_cluster.properties import HOST

_METADATA = 3
_VERSION = 2
_NO_TOPICS = 0
_CORRELATION_ID = 1
_HEAD = struct.Struct(">ihhih")  # size, API, version, correlation id, length of the client id
_SIZE_MAX = 1 << 20  # who listens there may be anybody
_POLL_S = 0.05


def wait_until_serving(
    port_by_broker: Mapping[JavaServer, int],
    cluster_id: str,
    *,
    controller: JavaServer | None = None,
    min_num_known: int = 1,
    timeout_s: float,
) -> None:
    """Wait until each broker serves and knows at least `min_num_known` brokers, itself included.

    Args:
        port_by_broker: Where each listens.
        cluster_id: The cluster that they have to be of.
        controller: Ends the wait too, if it dies; None: a broker is its own.

    Raises:
        BrokerDiedError, BrokerTimeoutError: one doesn't.
    """
    deadline_s = time.monotonic() + timeout_s
    servers = (*([controller] if controller is not None else []), *port_by_broker)
    for broker, port in port_by_broker.items():
        # Any that dies ends the wait: the others would go on waiting to know it.
        while num_brokers_known(HOST, port, cluster_id) < min_num_known:
            for server in servers:
                if server.process is None:
                    raise BrokerDiedError(server.name, server.last_error(), server.log_path)
            if time.monotonic() > deadline_s:
                raise BrokerTimeoutError(broker.name, timeout_s, broker.last_error(), broker.log_path)
            time.sleep(_POLL_S)


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
