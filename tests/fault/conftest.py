"""What several fault tests need."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from kafka import TopicPartition

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.local_cluster import LocalCluster, process

CLONE_NEWNET = 0x40000000


@pytest.fixture(scope="session")
def may_mount() -> None:
    """Skips where nobody may mount a tmpfs; CI has to be able to."""
    if os.geteuid() != 0:
        sentence = "a disk of its own needs root"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture
def small_disk(may_mount: None, tmp_path: Path) -> Iterator[Callable[[int], Path]]:  # noqa: ARG001
    """Make real disks of a given size in bytes, each a tmpfs; they are gone after the test."""
    mounted: list[Path] = []

    def make(size_bytes: int) -> Path:
        folder = tmp_path / f"disk-{len(mounted) + 1}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
        subprocess.run(mount, check=True)
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        # Lazily: brokers of the test are ended after this.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def own_network(may_mount: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001
    """A network namespace for this test and what it starts: nobody else's loopback is touched."""
    # A thread stays in the namespace that it was made in, and so does what it starts: brokers get a new one.
    monkeypatch.setattr(process, "_spawner", ThreadPoolExecutor(1))
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    with Path("/proc/thread-self/ns/net").open() as before:
        check(libc.unshare(CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            check(libc.setns(before.fileno(), CLONE_NEWNET))


@pytest.fixture
def slow_link(own_network: None) -> Callable[[LocalCluster, int, int], AbstractContextManager[None]]:  # noqa: ARG001
    """For a while, let no more bytes a second come to a broker's port, or leave it, than this."""

    def tc(*arguments: str) -> None:
        subprocess.run(["tc", *arguments], check=True)

    @contextmanager
    def slow(cluster: LocalCluster, broker_id: int, bytes_per_s: int) -> Iterator[None]:
        port = cluster.bootstrap_servers.split(",")[broker_id - 1].rpartition(":")[2]
        rate = ["rate", f"{bytes_per_s}bps", "burst", str(bytes_per_s // 8)]
        tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb")
        tc("class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", *rate)
        for direction in ("sport", "dport"):
            match = ["match", "ip", direction, port, "0xffff"]
            tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "u32", *match, "flowid", "1:1")
        try:
            yield
        finally:
            tc("qdisc", "del", "dev", "lo", "root")

    return slow


@pytest.fixture(scope="session")
def without_bursts() -> dict[str, str]:
    """Settings of brokers that move replicas at the rate that was asked for, from the first second on."""
    # The rate is looked at before a fetch, whose answer then comes whole: let it be small.
    return {"replication.quota.window.num": "2", "replica.fetch.response.max.bytes": str(100_000)}


class Trouble:
    """A load's progress: lets somebody act at a sample, in a thread, and makes the load take long enough."""

    def __init__(self, at_sample: int, act: Callable[[], None]) -> None:
        self._at_sample = at_sample
        self._act = act
        self._thread: threading.Thread | None = None

    def __call__(self, samples_done: int, *_: int) -> None:
        if self._thread is None and samples_done >= self._at_sample:
            self._thread = threading.Thread(target=self._act)
            self._thread.start()
        time.sleep(0.02)  # so that there is a load to be hit

    def join(self) -> None:
        assert self._thread is not None, "nothing has happened"
        self._thread.join()


@pytest.fixture
def make_trouble() -> Callable[[int, Callable[[], None]], Trouble]:
    """Give a load progress that acts once so many samples are written; `join` waits until it has."""
    return Trouble


@pytest.fixture
def gather(
    wait_until: Callable[[Callable[[], bool]], None],
) -> Callable[[Connection, DatasetManifest, int], None]:
    """Put all of a dataset, one copy of it, on one broker."""

    def move(connection: Connection, manifest: DatasetManifest, broker_id: int) -> None:
        with open_admin(connection) as admin:
            (found,) = admin.describe_topics([manifest.topic])
            partitions = [
                TopicPartition(manifest.topic, each["partition_index"]) for each in found["partitions"]
            ]
            admin.alter_partition_reassignments({partition: [broker_id] for partition in partitions})
            wait_until(lambda: not admin.list_partition_reassignments())

    return move
