"""Loads and moves under a random schedule of faults, by seed: of brokers, loaders, balances, the collector.

Whatever dies, in whatever order: what a load says it has loaded is there, once, and when moves have come to
their end no throttle is left. 20 seeds of 10 kills each; the schedule is the seed's, what it hits depends on
the machine.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import stamina
from kafka.errors import KafkaError

from evenload.dataset_catalog.catalog import Catalog
from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection, KafkaConnectionError
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.balancing.balance import execute_balance
from evenload.kafka_plugin.balancing.config import BalanceConfig
from evenload.kafka_plugin.errors import BalanceError
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.local_cluster import LocalCluster
from evenload.telemetry_collector.collector import sample_once
from evenload.telemetry_collector.errors import CollectorError
from evenload.telemetry_collector.service.testing import FakeService
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot

LOADING = Path(__file__).parent / "loading_driver.py"
ROOT = Path(__file__).parents[3]
NUM_KILLS = 10
CAPACITY_BYTES = 300 << 20
NUM_SAMPLES = 3_000
TRIES_MAX = 12
SLOW_BYTES_PER_S = 50_000
# Of the kills of a seed, so many at least come while a loader writes, and while replicas are on their way.
NUM_MET_MIN = 7

WaitUntil = Callable[[Callable[[], bool]], None]
SlowLink = Callable[[LocalCluster, int, int], AbstractContextManager[None]]


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

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()  # it may have been read to its end

    def _begin(self) -> None:
        self.names.append(f"load-{len(self.names)}")
        self._num_tries = 0
        self._options = {
            "replication": self._rng.choice([1, 3]),
            "strategy": self._rng.choice(["balanced", "balanced", "round-robin"]),
        }
        self._start()

    def _start(self) -> None:
        self._num_tries += 1
        assert self._num_tries <= TRIES_MAX, (
            f"{self.names[-1]} doesn't come to an end: {self._log.read_text()[-2000:]}"
        )
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()  # it has ended, and may have been read to its end
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


class Balances:
    """One `evenload balance` after the other, slow enough to be hit."""

    def __init__(self, cluster: LocalCluster, make_skew: Callable[[], None], wait_until: WaitUntil) -> None:
        self._cluster = cluster
        self._make_skew = make_skew
        self._wait_until = wait_until
        self._process: subprocess.Popen[bytes] | None = None

    def keep_going(self) -> None:
        """Have replicas on their way: gone on with, or begun."""
        self._wait_until(self._is_at_it)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _is_at_it(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            if self._process is None or self._process.returncode == 0:
                self._make_skew()
            self._start()
        return are_replicas_moving(self._cluster.connection)

    def _start(self) -> None:
        command = ["-c", "from evenload.cli import main; main()", "balance", "--execute"]
        self._process = subprocess.Popen(
            [sys.executable, *command, "--throttle", "200KiB/s"],
            cwd=ROOT,
            env={**os.environ, "EVENLOAD_HOME": str(self._cluster.home)},  # that knows the capacities
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


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


@contextmanager
def nobody(port: int) -> Iterator[None]:  # noqa: ARG001
    """Nobody answers there."""
    yield


def stranger(port: int) -> AbstractContextManager[object]:
    """The collector of another cluster answers there."""
    return FakeService(FakeCluster(make_snapshot([10, 20, 30])), port=port)


IN_ITS_PLACE = {"collector": nobody, "nonsense": nonsense, "stranger": stranger}
KILLS = (
    "broker",
    "broker",
    "broker",
    "two brokers",
    "paused broker",
    "slow broker",
    "loader",
    "loader",
    "balance",
    "balance",
    *IN_ITS_PLACE,
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault, and what was going on when it came."""

    kill: str
    is_loading: bool
    are_replicas_moving: bool


def hit(
    rng: random.Random,
    cluster: LocalCluster,
    loads: Loads,
    balances: Balances,
    collector: Any,
    slow_link: SlowLink,
) -> Hit:
    """Kill something, and bring it back after a while."""
    broker_id, another_id = rng.sample(cluster.broker_ids, 2)
    kill = rng.choice(KILLS)
    met = Hit(kill, loads.is_running, are_replicas_moving(cluster.connection))
    match kill:
        case "broker":
            cluster.kill_broker(broker_id)
            time.sleep(rng.uniform(0, 3))
            cluster.restart_broker(broker_id)
        case "two brokers":  # of three: the catalog can't be written without them
            for each in (broker_id, another_id):
                cluster.kill_broker(each)
            time.sleep(rng.uniform(0, 8))
            for each in (broker_id, another_id):
                cluster.restart_broker(each)
        case "paused broker":
            cluster.pause_broker(broker_id)
            time.sleep(rng.uniform(0.5, 11))
            cluster.resume_broker(broker_id)
        case "slow broker":
            with slow_link(cluster, broker_id, SLOW_BYTES_PER_S):
                time.sleep(rng.uniform(1, 11))
        case "loader":
            loads.kill()
        case "balance":
            balances.kill()
        case _:
            collector.end(signal.SIGKILL)
            with IN_ITS_PLACE[kill](urlsplit(collector.url).port or 0):
                time.sleep(rng.uniform(0, 4))
            collector.start()
    return met


def are_replicas_moving(connection: Connection) -> bool:
    """Asked again where a broker that has only just come back doesn't answer yet."""
    for attempt in stamina.retry_context(on=(KafkaError, KafkaConnectionError), timeout=60.0):
        with attempt, open_admin(connection) as admin:
            return bool(admin.list_partition_reassignments())
    raise AssertionError("retrying ends with a result or an error")


def load_skewed(connection: Connection) -> DatasetManifest:
    """A dataset that, once it is gathered, is 8 points of what a broker may hold."""
    samples = {"x": np.random.default_rng(1).integers(0, 255, (2_400, 10_000), np.uint8)}
    return load_dataset(samples, "skewed", connection=connection, partitions=12, replication=1)


def finish_moves(connection: Connection) -> None:
    """Go on with what a dead balance has left, until brokers are level."""
    for attempt in stamina.retry_context(on=(BalanceError, CollectorError), timeout=300.0):
        with attempt:
            execute_balance(connection, config=BalanceConfig(throttle_bytes_per_s=200 << 20))


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_repeated_whatever_is_killed(
    slow_link: SlowLink,  # before the brokers
    make_cluster: Callable[..., LocalCluster],
    without_bursts: dict[str, str],
    seed: int,
    tmp_path: Path,
    wait_until: WaitUntil,
    start_collector: Callable[..., Any],
    gather: Callable[[Connection, DatasetManifest, int], None],
    throttle_settings: Callable[[Connection], dict[str, str]],
    reassignments: Callable[[Connection], dict[Any, Any]],
) -> None:
    rng = random.Random(seed)
    cluster = make_cluster(capacity_bytes=[CAPACITY_BYTES] * 3, broker_properties=without_bursts)
    connection = cluster.connection
    skewed = load_skewed(connection)
    collector = start_collector(connection)
    loads = Loads(cluster, collector.url, rng, tmp_path / "loaders.log")
    balances = Balances(cluster, lambda: gather(connection, skewed, 1), wait_until)
    hits = []
    try:
        for _ in range(NUM_KILLS):
            while not (loads.is_running and are_replicas_moving(connection)):
                balances.keep_going()
                loads.keep_going()
            time.sleep(rng.uniform(0, 2))
            hits.append(hit(rng, cluster, loads, balances, collector, slow_link))
        cluster.wait_until_ready(60)
        loads.finish()
    finally:
        balances.kill()
        loads.kill()
    assert sum(each.is_loading for each in hits) >= NUM_MET_MIN, hits
    assert sum(each.are_replicas_moving for each in hits) >= NUM_MET_MIN, hits
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
