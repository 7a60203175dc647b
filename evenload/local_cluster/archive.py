"""Make Kafka start in half the time: Java's ahead-of-time cache of its classes, made once per cache folder.

A cache of loaded and linked classes (JEP 483) halves what starting a server costs, and four start at
once on what may be two cores. It is made by running a server of both roles and asking it for what
clusters are asked for first, so that those classes are in it too.

It matters for speed only. If it can't be made, or doesn't fit (another runtime, other jars), everything works
without it. It is looked up by a digest of both.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from kafka.errors import KafkaError

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer, open_admin
from evenload.kafka_connection.errors import KafkaConnectionError
from evenload.local_cluster.errors import LocalClusterError
from evenload.local_cluster.java import JavaRuntime
from evenload.local_cluster.probe import wait_until_serving
from evenload.local_cluster.process import JavaServer, end_servers
from evenload.local_cluster.properties import HOST, both_roles_properties
from evenload.local_cluster.settings import free_ports, new_cluster_id

_log = logging.getLogger(__name__)
_STEP_TIMEOUT_S = 60.0
_TOPIC = "class-listing"


def with_archive(runtime: JavaRuntime, cache: Path, progress: Callable[[str], None]) -> JavaRuntime:
    """The same runtime, with the cached archive if there is one or one can be made."""
    identity = f"{runtime.java.resolve()} {runtime.java.stat().st_mtime_ns} {runtime.classpath}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    archive = cache / f"classes-{digest}.aot"
    failed = archive.with_suffix(".failed")
    if not archive.exists() and not failed.exists():
        with (cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists() and not failed.exists():
                progress("preparing Kafka for quick starts (once)")
                _make_or_note_failure(runtime, archive, failed)
    return replace(runtime, extra_flags=(f"-XX:AOTCache={archive}",)) if archive.exists() else runtime


def _make_or_note_failure(runtime: JavaRuntime, archive: Path, failed: Path) -> None:
    unfinished = archive.with_suffix(".part")
    try:
        _make(runtime, unfinished)
        unfinished.replace(archive)
    except (OSError, KafkaException, KafkaError, KafkaConnectionError, LocalClusterError) as error:
        _log.warning("no class archive, so servers start slower: %s", error)
        failed.write_text(f"{error}\n")  # knowing it once is enough


def _make(runtime: JavaRuntime, archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="evenload-classes-") as name:
        folder = Path(name)
        server = JavaServer("class-listing", folder, dies_with_parent=True)
        broker_port, controller_port = free_ports(2)
        server.write_properties(both_roles_properties(folder, broker_port, controller_port))
        cluster_id = new_cluster_id()
        server.format(runtime, cluster_id).wait(_STEP_TIMEOUT_S)
        # Java writes it when the server has ended.
        training = replace(runtime, extra_flags=(f"-XX:AOTCacheOutput={archive}",))
        try:
            server.start(training)
            wait_until_serving({server: broker_port}, cluster_id, timeout_s=_STEP_TIMEOUT_S)
            _load_and_read(Connection(bootstrap_servers=f"{HOST}:{broker_port}"))
        finally:
            end_servers([server], grace_s=_STEP_TIMEOUT_S)
        if not archive.exists():
            raise OSError(server.last_error())


def _load_and_read(connection: Connection) -> None:
    with open_admin(connection) as admin:
        admin.create_topics({_TOPIC: {"num_partitions": 1, "replication_factor": 1}})
    producer = confluent_producer(connection, transactional_id=_TOPIC)
    producer.init_transactions(_STEP_TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(_TOPIC, b"record")
    producer.commit_transaction(_STEP_TIMEOUT_S)
    consumer = confluent_consumer(connection)
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    consumer.consume(1, _STEP_TIMEOUT_S)
    consumer.close()
