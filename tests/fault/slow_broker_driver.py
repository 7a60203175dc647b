"""Loads a dataset while one broker's link is slow; run in a network namespace of its own (`unshare --net`).

Prints a JSON document: whether `verify` was clean, and what each broker leads of the topic.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from dataset_catalog.verify import verify
from evenload.local_cluster import temporary_cluster
from kafka_plugin.loader import load_dataset
from router.config import RouterConfig
from telemetry_collector.collector import sample_once

SLOW = 2
RATE = "16mbit"
CONFIGS = {
    "default": RouterConfig(),
    "latency": RouterConfig(score_functions={"reachability": 1, "latency": 2}),
}


def tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True)


def limit(port: int) -> None:
    """Let no more than RATE reach this port over the loopback: what is sent there queues up."""
    tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
    tc("class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", "rate", RATE, "burst", "256kb")
    match = ["match", "ip", "dport", str(port), "0xffff"]
    tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "u32", *match, "flowid", "1:1")


def main(which: str) -> dict[str, Any]:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    rng = np.random.default_rng(1)
    samples = {"x": rng.integers(0, 256, (2_000, 20_000), dtype=np.uint8)}
    with temporary_cluster(num_brokers=3) as cluster:
        limit(int(cluster.bootstrap_servers.split(",")[SLOW - 1].rpartition(":")[2]))
        manifest = load_dataset(
            samples, "slow", connection=cluster.connection, replication=1, router_config=CONFIGS[which]
        )
        snapshot = sample_once(cluster.connection, [manifest.topic])
        return {
            "is_clean": verify(cluster.connection, manifest).is_clean,
            "leader_bytes": snapshot.leader_bytes(manifest.topic),
            "latency_s": {broker_id: broker.latency_s for broker_id, broker in snapshot.brokers.items()},
        }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
