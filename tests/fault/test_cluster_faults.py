"""What the embedded cluster does when something is in its way, or is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer, open_admin
from evenload.local_cluster import LocalCluster, start
from evenload.local_cluster import cluster as cluster_module
from evenload.local_cluster.errors import (
    BrokerDiedError,
    BrokerTimeoutError,
    PortInUseError,
    UnknownBrokerError,
)
from evenload.local_cluster.probe import num_brokers_known
from evenload.local_cluster.settings import ClusterSettings


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of one broker, not started; killed afterwards."""
    cluster = LocalCluster(tmp_path / "home", num_brokers=1)
    yield cluster
    cluster.kill()


def test_a_port_in_use_is_named_and_nothing_is_started(one_broker: LocalCluster) -> None:
    settings = ClusterSettings.make({1: 1 << 30})
    one_broker.folder.mkdir(parents=True)
    settings.write(one_broker.folder)
    port = settings.port_by_broker[1]

    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(PortInUseError, match=rf"broker-1 can't start: .* 127\.0\.0\.1:{port}"),
    ):
        one_broker.start()

    assert one_broker.pids == {}
    one_broker.start()
    assert one_broker.is_running


def test_a_broker_of_another_cluster_that_has_got_the_port_meanwhile_is_not_taken_for_ours(
    one_broker: LocalCluster, make_cluster: Callable[..., LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = make_cluster(num_brokers=1).connection.bootstrap_servers.rpartition(":")[2]
    made = ClusterSettings.make({1: 1 << 30})
    settings = made.model_copy(update={"port_by_broker": {1: int(port)}})
    one_broker.folder.mkdir(parents=True)
    settings.write(one_broker.folder)
    # Nobody had it when we looked; and a broker opens its port last of all.
    monkeypatch.setattr(start, "_require_free_ports", lambda *_: None)

    with pytest.raises(BrokerDiedError, match="Address already in use"):
        one_broker.start()

    assert one_broker.pids == {}


def test_a_stale_pid_that_now_belongs_to_somebody_else_is_never_killed(one_broker: LocalCluster) -> None:
    with subprocess.Popen(["sleep", "60"]) as somebody:
        for server in ("controller", "broker-1"):
            (one_broker.folder / server).mkdir(parents=True)
            (one_broker.folder / server / "pid").write_text(f"{somebody.pid}\n")
        assert one_broker.pids == {}
        one_broker.stop()

        one_broker.start()
        assert one_broker.is_running
        assert somebody.pid not in one_broker.pids.values()
        one_broker.stop()

        assert somebody.poll() is None
        somebody.terminate()


@pytest.mark.parametrize(
    ("bad", "last_error"),
    [
        ({"num.io.threads": "many"}, "ConfigException: Invalid value many for configuration num.io.threads"),
        ({"listeners": "PLAINTEXT://192.0.2.1:9092"}, "BindException: Cannot assign requested address"),
    ],
)
def test_a_broker_that_dies_at_start_is_quoted_and_nothing_is_left_running(
    tmp_path: Path, bad: dict[str, str], last_error: str
) -> None:
    cluster = LocalCluster(tmp_path, num_brokers=1, properties_by_broker={1: bad})

    with pytest.raises(BrokerDiedError) as caught:
        cluster.start()

    assert last_error in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(cluster.log_path(1)) in str(caught.value)
    assert cluster.pids == {}


def test_a_broker_with_another_clusters_data_is_refused_in_its_own_words(one_broker: LocalCluster) -> None:
    one_broker.start().stop()
    meta = one_broker.data_path(1) / "meta.properties"
    meta.write_text(meta.read_text().replace("cluster.id=", "cluster.id=X"))

    with pytest.raises(BrokerDiedError, match=r"Invalid cluster\.id"):
        one_broker.start()

    assert one_broker.pids == {}


def test_a_paused_broker_answers_nothing_until_it_is_resumed(one_broker: LocalCluster) -> None:
    one_broker.start()
    port = int(one_broker.bootstrap_servers.rpartition(":")[2])
    settings = ClusterSettings.read(one_broker.folder)
    assert settings is not None
    assert num_brokers_known("127.0.0.1", port, settings.cluster_id) == 1

    one_broker.pause_broker(1)
    assert num_brokers_known("127.0.0.1", port, settings.cluster_id, timeout_s=0.3) == 0
    with pytest.raises(BrokerTimeoutError, match=r"broker-1 runs but did not answer within 0\.1 s"):
        one_broker.wait_until_ready(0.1)

    one_broker.resume_broker(1)
    one_broker.wait_until_ready(60)


def test_a_paused_broker_ends_by_itself_when_it_is_stopped(
    one_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "_GRACE_S", 120.0)  # or a busy machine's brokers are killed
    one_broker.start().pause_broker(1)

    one_broker.stop()

    assert one_broker.pids == {}
    assert (one_broker.data_path(1) / ".kafka_cleanshutdown").is_file()


def test_after_kill_9_of_everything_the_same_data_is_back(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(num_brokers=2)
    values = [b"%d" % number for number in range(200)]
    _write(cluster.connection, values)
    address_before = cluster.bootstrap_servers

    for pid in cluster.pids.values():
        os.kill(pid, signal.SIGKILL)
    cluster.start()

    assert cluster.bootstrap_servers == address_before
    assert _read(cluster.connection, len(values)) == values
    _write(cluster.connection, [b"more"], create=False)


def test_one_broker_killed_and_restarted_brings_its_partitions_back(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(num_brokers=2)
    values = [b"%d" % number for number in range(200)]
    _write(cluster.connection, values)

    for broker_id in cluster.broker_ids:
        pid = cluster.broker_pid(broker_id)
        cluster.kill_broker(broker_id)
        with pytest.raises(UnknownBrokerError, match=f"broker {broker_id}: does not run"):
            cluster.broker_pid(broker_id)
        cluster.restart_broker(broker_id)
        assert cluster.broker_pid(broker_id) != pid
    cluster.restart_broker(1)  # a running one

    assert _read(cluster.connection, len(values)) == values


def test_start_again_starts_only_the_broker_that_died(one_broker: LocalCluster) -> None:
    before = one_broker.start().pids
    os.kill(before["broker-1"], signal.SIGKILL)

    after = LocalCluster(one_broker.home).start().pids

    assert after["controller"] == before["controller"]
    assert after["broker-1"] != before["broker-1"]


def test_servers_whose_starter_died_before_it_wrote_their_pids_are_found(one_broker: LocalCluster) -> None:
    before = one_broker.start().pids

    def lose_pids() -> None:
        for server in before:
            (one_broker.folder / server / "pid").unlink()
        assert one_broker.pids == {}

    lose_pids()
    assert LocalCluster(one_broker.home).start().pids == before

    lose_pids()
    assert one_broker.stop()
    assert not any(psutil.pid_exists(pid) for pid in before.values())
    assert not one_broker.stop()


def test_another_spelling_of_its_folder_is_the_same_cluster(one_broker: LocalCluster, tmp_path: Path) -> None:
    pids = one_broker.start().pids
    (tmp_path / "link").symlink_to(one_broker.home)
    for spelling in (tmp_path / "link", tmp_path / "somewhere" / ".." / "home"):
        assert LocalCluster.load(spelling).pids == pids
    assert LocalCluster.load(tmp_path / "link").stop()
    assert one_broker.pids == {}


def test_a_temporary_cluster_dies_with_its_program_but_not_with_the_thread_that_started_it() -> None:
    program = """
import sys, threading
from contextlib import ExitStack
from evenload.local_cluster import temporary_cluster

stack = ExitStack()
clusters = []
start = lambda: clusters.append(stack.enter_context(temporary_cluster(num_brokers=1)))
thread = threading.Thread(target=start)
thread.start()
thread.join()
clusters[0].wait_until_ready(60)
print(clusters[0].home, *clusters[0].pids.values(), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        home, *pids = owner.stdout.readline().split()
        servers = [psutil.Process(int(pid)) for pid in pids]
        assert len(servers) == 2

        owner.kill()

    _, alive = psutil.wait_procs(servers, timeout=60)
    assert alive == []
    # Its folder is removed by the next temporary cluster, once nobody can be in the middle of making it.
    os.utime(Path(home) / "owner.lock", (0, 0))
    cluster_module._remove_abandoned_folders()
    assert not Path(home).exists()


def test_two_starts_at_once_are_one_cluster(one_broker: LocalCluster) -> None:
    pids: list[dict[str, int]] = []
    threads = [
        threading.Thread(
            target=lambda: pids.append(LocalCluster(one_broker.home, num_brokers=1).start().pids)
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(pids) == 2
    assert pids[0] == pids[1] == one_broker.pids


def _write(connection: Connection, values: list[bytes], *, create: bool = True) -> None:
    if create:
        with open_admin(connection) as admin:
            admin.create_topics({"numbers": {"num_partitions": 4, "replication_factor": 1}})
    failures: list[object] = []
    producer = confluent_producer(connection)
    for number, value in enumerate(values):
        producer.produce(
            "numbers", value, partition=number % 4, callback=lambda error, _: error and failures.append(error)
        )
    assert producer.flush(60) == 0
    assert failures == []


def _read(connection: Connection, count: int) -> list[bytes]:
    consumer = confluent_consumer(connection)
    consumer.assign([TopicPartition("numbers", partition, 0) for partition in range(4)])
    try:
        records = consumer.consume(count, timeout=60)
    finally:
        consumer.close()
    return sorted((record.value() for record in records), key=int)
