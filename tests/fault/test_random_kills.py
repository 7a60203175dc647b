"""Loads and moves under a random schedule of kills, by seed: brokers, loaders, balances and the collector.

Whatever dies, in whatever order: what a load says it has loaded is there, once, and when moves have come to
their end no throttle is left. 20 seeds of 10 kills each; the schedule is the seed's, what it hits depends on
the machine.
"""

from __future__ import annotations

import http.server
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stamina
from kafka import TopicPartition

from dataset_catalog.catalog import Catalog
from dataset_catalog.manifest import DatasetManifest
from dataset_catalog.verify import verify
from evenload.local_cluster import LocalCluster
from evenload.local_cluster.settings import free_ports
from kafka_connection import Connection
from kafka_connection.clients import open_admin
from kafka_plugin.balance import execute_balance
from kafka_plugin.balance_config import BalanceConfig
from kafka_plugin.errors import BalanceError
from kafka_plugin.loader import load_dataset
from telemetry_collector.collector import sample_once
from telemetry_collector.errors import CollectorError

LOADING = Path(__file__).parent / "loading_driver.py"
ROOT = Path(__file__).parents[2]
NUM_KILLS = 10
CAPACITY_BYTES = 300 << 20
NUM_SAMPLES = 3_000
TRIES_MAX = 12


class Loads:
    """One load after the other, each by as many loaders as it takes."""

    def __init__(self, cluster: LocalCluster, collector_url: str, rng: random.Random, log: Path) -> None:
        self._log = log
        self._connection = {
            **cluster.connection.model_dump(mode="json", exclude_none=True),
            "collector_url": collector_url,
        }
        self._rng = rng
        self._process: subprocess.Popen[str] | None = None
        self._num_tries = 0
        self.names: list[str] = []
        self._options: dict[str, object] = {}

    def keep_going(self) -> None:
        """Have a loader that runs and has written something: this load's, or the next one's."""
        while True:
            if self._process is None or self._process.poll() == 0:
                self._begin()
            elif self._process.poll() is not None:
                self._start()
            assert self._process is not None
            assert self._process.stdout is not None
            if self._process.stdout.readline():
                return
            self._process.communicate()

    def finish(self) -> None:
        """Let the last load come to its end."""
        while self._process is not None:
            self._process.communicate(timeout=200)
            if self._process.returncode == 0:
                return
            assert self._process.returncode in (1, -signal.SIGKILL)
            self._start()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _begin(self) -> None:
        self.names.append(f"load-{len(self.names)}")
        self._num_tries = 0
        self._options = {
            "replication": self._rng.choice([1, 3]),
            "strategy": self._rng.choice(["balanced", "balanced", "round-robin"]),
        }
        self._start()

    def _start(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()  # it has ended, and may have been read to its end
        self._num_tries += 1
        assert self._num_tries <= TRIES_MAX, (
            f"{self.names[-1]} doesn't come to an end: {self._log.read_text()[-2000:]}"
        )
        told = {
            "connection": self._connection,
            "name": self.names[-1],
            "num_samples": NUM_SAMPLES,
            **self._options,
        }
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(LOADING), json.dumps(told)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )


class CollectorProcess:
    """`evenload collector`, always on the same port."""

    def __init__(self, cluster: LocalCluster) -> None:
        (self.port,) = free_ports(1)
        self._servers = cluster.bootstrap_servers
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = ["-c", "from evenload.cli import main; main()", "collector", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, *command, "--bootstrap-servers", self._servers, "--interval", "0.5"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Balances:
    """One `evenload balance` after the other, slow enough to be hit."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._servers = cluster.bootstrap_servers
        self._process: subprocess.Popen[bytes] | None = None

    def keep_going(self) -> None:
        """Have one that runs: gone on with, or begun."""
        if self._process is not None and self._process.poll() is None:
            return
        command = ["-c", "from evenload.cli import main; main()", "balance", "--execute"]
        self._process = subprocess.Popen(
            [sys.executable, *command, "--bootstrap-servers", self._servers, "--throttle", "400KiB/s"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Nonsense(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"brokers": [null, {"broker_id": "NaN"}]}')

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def nonsense(port: int) -> Iterator[None]:
    """Somebody else answers there."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Nonsense)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


KILLS = (
    "broker",
    "broker",
    "broker",
    "paused broker",
    "loader",
    "loader",
    "balance",
    "collector",
    "nonsense",
)


def hit(
    rng: random.Random,
    cluster: LocalCluster,
    loads: Loads,
    balances: Balances,
    collector: CollectorProcess,
) -> None:
    """Kill something, and bring it back after a while."""
    broker_id = rng.choice(cluster.broker_ids)
    match rng.choice(KILLS):
        case "broker":
            cluster.kill_broker(broker_id)
            time.sleep(rng.uniform(0, 3))
            cluster.restart_broker(broker_id)
        case "paused broker":
            cluster.pause_broker(broker_id)
            time.sleep(rng.uniform(0.5, 11))
            cluster.resume_broker(broker_id)
        case "loader":
            loads.kill()
        case "balance":
            balances.kill()
        case "collector":
            collector.kill()
            time.sleep(rng.uniform(0, 4))
            collector.start()
        case "nonsense":
            collector.kill()
            with nonsense(collector.port):
                time.sleep(rng.uniform(1, 4))
            collector.start()


def make_skew(cluster: LocalCluster, wait_until: Callable[[Callable[[], bool]], None]) -> DatasetManifest:
    """A dataset that is on broker 1 alone, 8 points of what a broker may hold."""
    samples = {"x": np.random.default_rng(1).integers(0, 255, (2_400, 10_000), np.uint8)}
    manifest = load_dataset(samples, "skewed", connection=cluster.connection, partitions=12, replication=1)
    with open_admin(cluster.connection) as admin:
        admin.alter_partition_reassignments(
            {TopicPartition(manifest.topic, number): [1] for number in range(12)}
        )
        wait_until(lambda: not admin.list_partition_reassignments())
    return manifest


def finish_moves(connection: Connection) -> None:
    """Go on with what a dead balance has left, until brokers are level."""
    for attempt in stamina.retry_context(on=(BalanceError, CollectorError), timeout=120.0):
        with attempt:
            execute_balance(connection, config=BalanceConfig(throttle_bytes_per_s=200 << 20))


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_repeated_whatever_is_killed(
    make_cluster: Callable[..., LocalCluster],
    seed: int,
    tmp_path: Path,
    wait_until: Callable[[Callable[[], bool]], None],
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    rng = random.Random(seed)
    cluster = make_cluster(capacity_bytes=[CAPACITY_BYTES] * 3)
    connection = cluster.connection
    skewed = make_skew(cluster, wait_until)
    collector = CollectorProcess(cluster)
    loads = Loads(cluster, collector.url, rng, tmp_path / "loaders.log")
    balances = Balances(cluster)
    try:
        collector.start()
        for _ in range(NUM_KILLS):
            balances.keep_going()
            loads.keep_going()
            time.sleep(rng.uniform(0, 2))
            hit(rng, cluster, loads, balances, collector)
        cluster.wait_until_ready(60)
        loads.finish()
    finally:
        balances.kill()
        collector.kill()
        loads.kill()
    finish_moves(connection)
    assert (throttle_settings(connection), reassignments(connection)) == ({}, {})
    assert sample_once(connection).utilisation_spread < 0.01
    assert verify(connection, skewed).is_clean
    catalog = Catalog(connection)
    for name in loads.names:
        manifest = catalog.get(name)
        report = verify(connection, manifest)
        assert report.is_clean, (name, report)
        assert manifest.num_samples == NUM_SAMPLES
