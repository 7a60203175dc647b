from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin


@pytest.mark.parametrize("hanging", [1, 4])
def test_servers_that_accept_and_say_nothing_leave_the_others_their_time(
    connection: Connection, hanging: int
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(hanging)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in silent]
        one_that_answers = connection.bootstrap_servers.split(",")[0]
        servers = ",".join([*addresses, one_that_answers])

        with open_admin(Connection(bootstrap_servers=servers)) as admin:
            assert len(admin.describe_cluster()["brokers"]) == 3
