"""What the embedded servers are told, as Kafka's server.properties. Pure.

The choices that matter, and why:

- Fetches of replicas are large, or a 256 KiB record costs 1.4 times its bytes in replication.
- Nobody moves leaders or makes topics by itself: both would change a measurement half-way.
- A dead broker is noticed after seconds, not after Kafka's nine; its restarted self has to wait
  that long too, before the controller takes it back.
- Internal topics have few partitions (each costs a file and a start-up second) and as many
  replicas as there can be, at most three; others have one unless asked otherwise.
- The metadata log lies beside the data, not in it: `data` holds what clients wrote, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CONTROLLER_ID = 1000
HOST = "127.0.0.1"
MIB = 1 << 20


def common_properties(num_brokers: int, controller_port: int) -> dict[str, str]:
    """What the controller and all brokers are told alike."""
    replication = min(3, num_brokers)
    min_in_sync = 2 if replication == 3 else 1
    return {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{CONTROLLER_ID}@{HOST}:{controller_port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "auto.create.topics.enable": "false",
        "auto.leader.rebalance.enable": "false",
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": str(replication),
        "transaction.state.log.num.partitions": "3",
        "transaction.state.log.replication.factor": str(replication),
        "transaction.state.log.min.isr": str(min_in_sync),
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": str(replication),
        "share.coordinator.state.topic.min.isr": str(min_in_sync),
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": str(16 * MIB),
        "replica.fetch.max.bytes": str(8 * MIB),
        "replica.fetch.response.max.bytes": str(32 * MIB),
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        # By default the controller writes a record of nothing each half a second, which every server reads: a
        # sixth of what a cluster that nobody uses costs.
        "metadata.max.idle.interval.ms": "5000",
        # The default of 128 MiB would be half of a broker's heap.
        "log.cleaner.dedupe.buffer.size": str(8 * MIB),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
    }


def controller_properties(folder: Path, port: int) -> dict[str, str]:
    """What only the controller is told."""
    return {
        "process.roles": "controller",
        "node.id": str(CONTROLLER_ID),
        "listeners": f"CONTROLLER://{HOST}:{port}",
        "log.dirs": str(folder / "metadata"),
        # Who makes topics decides these; a broker that is told warns that it ignores them.
        "default.replication.factor": "1",
        "num.partitions": "1",
    }


def broker_properties(folder: Path, broker_id: int, port: int) -> dict[str, str]:
    """What only this broker is told."""
    return {
        "process.roles": "broker",
        "node.id": str(broker_id),
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(folder / "data"),
        "metadata.log.dir": str(folder / "metadata"),
    }


def both_roles_properties(folder: Path, broker_port: int, controller_port: int) -> dict[str, str]:
    """One server that is a broker and the controller, all that archive.py needs."""
    return {
        **common_properties(1, controller_port),
        **broker_properties(folder, CONTROLLER_ID, broker_port),
        "process.roles": "broker,controller",
        "listeners": f"CONTROLLER://{HOST}:{controller_port},PLAINTEXT://{HOST}:{broker_port}",
    }


def to_text(properties: Mapping[str, str]) -> str:
    """The text of a server.properties file (backslashes and newlines escaped, as Java reads it)."""
    lines = (f"{name}={_escaped(value)}" for name, value in properties.items())
    return "# Written at each start; change it through LocalCluster.\n" + "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
