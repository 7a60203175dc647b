"""Loads a dataset, or levels brokers, while one broker's link is slow; run in a network namespace of its own
(`unshare --net`).

Its argument is the router's configuration for a load, or `moves`. Prints a JSON document: whether `verify`
was clean, and what the test looks at.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from dataset_catalog.verify import verify
from evenload.local_cluster import LocalCluster, temporary_cluster
from kafka_connection import Connection
from kafka_connection.clients import open_admin
from kafka_plugin.balance import BalanceProgress, execute_balance
from kafka_plugin.balance_config import BalanceConfig
from kafka_plugin.balance_record import BalanceLog
from kafka_plugin.loader import load_dataset
from router.config import RouterConfig
from telemetry_collector.collector import sample_once

SLOW = 2
RATE_BYTES_PER_S = 2_000_000
CONFIGS = {
    "default": RouterConfig(),
    "latency": RouterConfig(score_functions={"reachability": 1, "latency": 2}),
}
CAPACITY_BYTES = 300 << 20
NUM_PARTITIONS = 12


def tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True)


def limit(cluster: LocalCluster, *directions: str) -> None:
    """Slow a broker's port on the loopback: what is sent there queues up (`dport`), or what it sends."""
    port = cluster.bootstrap_servers.split(",")[SLOW - 1].rpartition(":")[2]
    rate = ["rate", f"{RATE_BYTES_PER_S}bps", "burst", "256kb"]
    tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
    tc("class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", *rate)
    for direction in directions:
        match = ["match", "ip", direction, port, "0xffff"]
        tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "u32", *match, "flowid", "1:1")


def load(which: str) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    samples = {"x": rng.integers(0, 256, (2_000, 20_000), dtype=np.uint8)}
    with temporary_cluster(num_brokers=3) as cluster:
        limit(cluster, "dport")
        manifest = load_dataset(
            samples, "slow", connection=cluster.connection, replication=1, router_config=CONFIGS[which]
        )
        snapshot = sample_once(cluster.connection, [manifest.topic])
        return {
            "is_clean": verify(cluster.connection, manifest).is_clean,
            "leader_bytes": snapshot.leader_bytes(manifest.topic),
            "latency_s": {broker_id: broker.latency_s for broker_id, broker in snapshot.brokers.items()},
        }


def move() -> dict[str, Any]:
    """Level brokers: from the moment that its copies are on their way, the one that sends them is slow."""
    # The rate is looked at before a fetch, whose answer then comes whole: let it be small.
    no_burst = {"replication.quota.window.num": "2", "replica.fetch.response.max.bytes": str(100_000)}
    with temporary_cluster(
        num_brokers=3, capacity_bytes=[CAPACITY_BYTES] * 3, broker_properties=no_burst
    ) as cluster:
        connection = cluster.connection
        samples = {"x": np.random.default_rng(1).integers(0, 256, (2_000, 20_000), np.uint8)}
        manifest = load_dataset(
            samples, "moved", connection=connection, partitions=NUM_PARTITIONS, replication=1
        )
        gather(connection, manifest.topic)
        slowed_s: list[float] = []
        left_bytes = 0

        def slow_down(progress: BalanceProgress) -> None:
            nonlocal left_bytes
            if progress.planned_bytes and not slowed_s:
                limit(cluster, "sport", "dport")
                slowed_s.append(time.monotonic())
                left_bytes = progress.planned_bytes - progress.moved_bytes

        fast_enough = BalanceConfig(throttle_bytes_per_s=4 * RATE_BYTES_PER_S, poll_s=0.05)
        outcome = execute_balance(connection, config=fast_enough, progress=slow_down)
        took_s = time.monotonic() - slowed_s[0]
        tc("qdisc", "del", "dev", "lo", "root")
        return {
            "is_clean": verify(connection, manifest).is_clean,
            "planned_bytes": outcome.plan.moved_bytes,
            "moved_bytes": outcome.moved_bytes,
            "slow_bytes_per_s": left_bytes / took_s,
            "spread": sample_once(connection).utilisation_spread,
            "throttles": throttles(connection, manifest.topic),
            "is_record_left": BalanceLog(connection, timeout_s=10).read() is not None,
        }


def gather(connection: Connection, topic: str) -> None:
    """Put all of a topic on the broker that will be slow."""
    with open_admin(connection) as admin:
        admin.alter_partition_reassignments(
            {TopicPartition(topic, number): [SLOW] for number in range(NUM_PARTITIONS)}
        )
        while admin.list_partition_reassignments():
            time.sleep(0.05)


def throttles(connection: Connection, topic: str) -> list[str]:
    """What is set about replication throttles."""
    asked = [ConfigResource(ConfigResourceType.BROKER, str(broker_id)) for broker_id in (1, 2, 3)]
    asked.append(ConfigResource(ConfigResourceType.TOPIC, topic))
    with open_admin(connection) as admin:
        found = admin.describe_configs(asked, config_filter="modified")
    every = [setting for resources in found.values() for each in resources.values() for setting in each]
    return [setting for setting in every if "throttled" in setting]


def main(which: str) -> dict[str, Any]:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return move() if which == "moves" else load(which)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
