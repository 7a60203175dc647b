"""Do producers feel that clients push? Latencies of one that writes, while others push and while none does.

One broker, which has evenload's plugin all the while, and a collector service that takes what it hands on.
Windows with pushes and without take turns, A B B A, as in benchmarks/write/.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread

import numpy as np

from benchmarks.service_process import ServiceProcess
from benchmarks.windows import scheduled_window
from evenload.jvm.broker_plugin import plugin_properties
from evenload.jvm.jar import evenload_jar
from evenload.kafka_connection.clients import confluent_producer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import temporary_cluster
from evenload.local_cluster.jars import KAFKA_VERSION
from evenload.local_cluster.settings import free_ports, release_ports
from evenload.telemetry_collector.service.pushing_client import PushingClient
from evenload.telemetry_collector.subscription import subscribe

TOPIC = "beside-pushes"
RECORD_BYTES, RECORDS_PER_S = 1000, 2000.0
LEAD_S, WINDOW_S = 0.3, 1.5
# Each may push once a second; a tenth more of them than it takes, so that none is early.
_INTERVAL_S, _SPARE = 1, 1.1


def latencies_beside_pushes(pushed: bytes, pushes_per_s: int, num_pairs: int) -> dict[str, list[float]]:
    """The p99 of each window, in ms, `with` pushes and `without`.

    Args:
        pushed: what each push holds.
        pushes_per_s: of all clients together.
        num_pairs: of windows, at least 1; one more comes first, unmeasured.
    """
    p99_ms: dict[str, list[float]] = {"without": [], "with": []}
    (port,) = free_ports(1)
    with ExitStack() as opened:
        opened.callback(release_ports, [port])
        cluster = opened.enter_context(
            temporary_cluster(
                num_brokers=1,
                broker_properties=plugin_properties(KAFKA_VERSION, f"http://127.0.0.1:{port}"),
                extra_jars=[evenload_jar()],
            )
        )
        service = opened.enter_context(ServiceProcess(cluster.connection, port=port))
        subscribe(cluster.connection, interval_s=_INTERVAL_S)
        create_topic(
            cluster.connection,
            TOPIC,
            num_partitions=4,
            replication=1,
            assignments=None,
            configs={},
            timeout_s=60,
        )
        pusher = opened.enter_context(_pushing(cluster.bootstrap_servers, pushed, pushes_per_s))
        producer = confluent_producer(cluster.connection)
        for pair in range(-1, num_pairs):
            for kind in sorted(p99_ms, reverse=pair % 2 == 0):
                with pusher.at_work(kind == "with"):
                    window = scheduled_window(
                        producer,
                        TOPIC,
                        records_per_s=RECORDS_PER_S,
                        record_bytes=RECORD_BYTES,
                        lead_s=LEAD_S,
                        window_s=WINDOW_S,
                    )
                if pair >= 0:
                    p99_ms[kind].append(round(float(np.percentile(window, 99)) * 1000, 4))
        if service.num_requests() < num_pairs:
            raise RuntimeError("the service was hardly told of any push: the plugin's work isn't measured")
    return p99_ms


class _Pusher:
    """Has clients push in turn, while it is at work."""

    def __init__(self, clients: list[PushingClient], pushed: bytes, pushes_per_s: int) -> None:
        self._clients = clients
        self._pushed = pushed
        self._every_s = 1 / pushes_per_s
        self._turn = 0

    @contextmanager
    def at_work(self, is_pushing: bool) -> Iterator[None]:
        """For the block."""
        if not is_pushing:
            yield
            return
        is_over = Event()
        problems: list[Exception] = []
        thread = Thread(target=self._push_on, args=(is_over, problems), name="pusher")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        if problems:
            raise problems[0]

    def _push_on(self, is_over: Event, problems: list[Exception]) -> None:
        try:
            due_s = time.monotonic()
            while not is_over.wait(max(0.0, due_s - time.monotonic())):
                # Nothing is caught up on: a client that pushed soon after its last push would be refused.
                due_s = max(due_s, time.monotonic()) + self._every_s
                client = self._clients[self._turn % len(self._clients)]
                self._turn += 1
                if error := client.push(self._pushed):
                    raise RuntimeError(f"a push was refused with Kafka's error {error}")
        except Exception as error:  # noqa: BLE001 - raised by whoever ends it
            problems.append(error)


@contextmanager
def _pushing(address: str, pushed: bytes, pushes_per_s: int) -> Iterator[_Pusher]:
    with ExitStack() as opened:
        num_clients = int(pushes_per_s * _INTERVAL_S * _SPARE)
        clients = [opened.enter_context(PushingClient(address)) for _ in range(num_clients)]
        yield _Pusher(clients, pushed, pushes_per_s)
