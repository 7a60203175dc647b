"""What an embedded cluster is, between two starts: cluster.json in its folder.

Made at the first start and kept, so that a later start is the same cluster: the same ids, the
same ports (clients and Kafka's own metadata hold them), the same Kafka, the same capacities. kafka_connection
reads two of its fields, `bootstrap_servers` and `capacity_bytes_by_broker`.
"""

from __future__ import annotations

import atexit
import base64
import itertools
import random
import socket
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from evenload.kafka_connection.environment import CLUSTER_FILE
from evenload.local_cluster.errors import LocalClusterError
from evenload.local_cluster.jars import KAFKA_VERSION
from evenload.local_cluster.properties import (
    HOST,
    broker_properties,
    common_properties,
    controller_properties,
)

CONTROLLER = "controller"
_BROKER = "broker-"
_LISTENERS = ("listeners", "advertised.listeners", "listener.security.protocol.map")

# Below the range from which the kernel takes ports for outgoing connections (32768 up on Linux): a port
# in it may be taken by any client while a broker is down.
_PORTS = range(20_000, 32_000)
_held: dict[int, socket.socket] = {}


class ClusterSettings(BaseModel):
    """A cluster's identity and configuration; broker ids are 1 to N."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kafka_version: str = "4.3.1"  # of those that were made before there was a choice
    cluster_id: str
    bootstrap_servers: str
    controller_port: int
    port_by_broker: Mapping[int, int]
    capacity_bytes_by_broker: Mapping[int, int]
    broker_properties: Mapping[str, str] = {}
    properties_by_broker: Mapping[int, Mapping[str, str]] = {}
    extra_jars: tuple[Path, ...] = ()

    @classmethod
    def make(cls, capacity_bytes_by_broker: Mapping[int, int], *, kafka_version: str = KAFKA_VERSION) -> Self:
        """Settings of a new cluster, on ports that are free now."""
        controller_port, *broker_ports = free_ports(1 + len(capacity_bytes_by_broker))
        return cls(
            kafka_version=kafka_version,
            cluster_id=new_cluster_id(),
            bootstrap_servers=",".join(f"{HOST}:{port}" for port in broker_ports),
            controller_port=controller_port,
            port_by_broker=dict(zip(capacity_bytes_by_broker, broker_ports, strict=True)),
            capacity_bytes_by_broker=capacity_bytes_by_broker,
        )

    @property
    def server_names(self) -> list[str]:
        """The controller, then the brokers: `controller`, `broker-1`, ..."""
        return [CONTROLLER, *(f"{_BROKER}{broker_id}" for broker_id in self.port_by_broker)]

    def port_of(self, server: str) -> int:
        """The port on which a server, given by its name, listens."""
        return self.controller_port if server == CONTROLLER else self.port_by_broker[_broker_id(server)]

    def properties_of(self, server: str, folder: Path) -> dict[str, str]:
        """All that a server, given by its name, is told; it lives in `folder`."""
        common = common_properties(len(self.port_by_broker), self.controller_port)
        if server == CONTROLLER:
            own = controller_properties(folder, self.controller_port)
            return _with({**common, **own}, self.broker_properties)
        broker_id = _broker_id(server)
        own = broker_properties(folder, broker_id, self.port_by_broker[broker_id])
        return _with(
            _with({**common, **own}, self.broker_properties), self.properties_by_broker.get(broker_id, {})
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The settings kept in a cluster's folder; None when it has none."""
        path = folder / CLUSTER_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise LocalClusterError(
                f"{path} can't be read ({reason}); restore it, or remove {folder}"
            ) from error

    def write(self, folder: Path) -> None:
        """Keep the settings, so that a crash leaves the old ones or the new ones."""
        path = folder / CLUSTER_FILE
        unfinished = path.with_suffix(".part")
        unfinished.write_text(self.model_dump_json(indent=2) + "\n")
        unfinished.replace(path)


def _with(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What a server is told when more is given: listeners of other names come to ours, all else replaces it.

    Ours have to stay: servers reach each other there, and are asked there whether they serve.
    """
    listeners = {
        name: f"{ours[name]},{given[name]}"
        for name in _LISTENERS
        if name in ours and name in given and _names(ours[name]).isdisjoint(_names(given[name]))
    }
    return {**ours, **given, **listeners}


def _names(listeners: str) -> set[str]:
    return {listener.partition(":")[0] for listener in listeners.split(",")}


def _broker_id(server: str) -> int:
    return int(server.removeprefix(_BROKER))


def free_ports(count: int) -> list[int]:
    """Ports on the loopback address that nobody listens on, all different.

    Where the system allows that (Linux does), they are held until `release_ports` or the end of this process:
    nobody else gets them from here before a server listens, which takes it seconds, nor while it is down.
    Clients would take whoever has got one for that server.
    """
    in_random_order = random.SystemRandom().sample(_PORTS, len(_PORTS))
    ports = list(itertools.islice(filter(_hold, in_random_order), count))
    if len(ports) < count:
        release_ports(ports)
        raise LocalClusterError(
            f"found {len(ports)} free ports on {HOST} between {_PORTS[0]} and {_PORTS[-1]}"
        )
    return ports


def release_ports(ports: Iterable[int]) -> None:
    """Hold ports of `free_ports` no longer."""
    for port in ports:
        held = _held.pop(port, None)
        if held is not None:
            held.close()


@atexit.register
def _release_all() -> None:
    release_ports(list(_held))


def _hold(port: int) -> bool:
    """Have a port for a server; whether nobody else has it."""
    if port in _held:  # in another network namespace, say, where it could be had once more
        return False
    holder = socket.socket()
    try:
        holder.bind((HOST, port))  # without SO_REUSEADDR: refused where anybody holds it
    except OSError:
        holder.close()
        return False
    # From here on, whoever sets that too may listen there, as servers do; but not on every system.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_free(port):
        _held[port] = holder
    else:
        holder.close()
    return True


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address."""
    with socket.socket() as probe:
        # As Java does: only a listener counts, not a connection that lingers in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def new_cluster_id() -> str:
    """22 characters of URL-safe base64; one that begins with `-` would be read as an option."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id
