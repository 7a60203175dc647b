from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition

from evenload.kafka_connection import Connection, resolve_connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer, open_admin
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.errors import UnknownBrokerError, WrongBrokerCountError

MIB = 1 << 20


def test_three_brokers_serve_and_their_capacities_are_known(cluster: LocalCluster) -> None:
    with open_admin(cluster.connection) as admin:
        brokers = admin.describe_cluster()["brokers"]

    assert [broker["broker_id"] for broker in brokers] == [1, 2, 3] == list(cluster.broker_ids)
    assert cluster.connection.capacity_bytes_by_broker == {1: 2 << 30, 2: 2 << 30, 3: 2 << 30}
    assert cluster.is_running
    assert sorted(cluster.pids) == ["broker-1", "broker-2", "broker-3", "controller"]


def test_a_block_of_4_mib_is_written_to_three_replicas_and_read_back(
    cluster: LocalCluster, connection: Connection, topic_name: str
) -> None:
    value = os.urandom(4 * MIB)
    with open_admin(connection) as admin:
        admin.create_topics({topic_name: {"num_partitions": 1, "replication_factor": 3}})
    producer = confluent_producer(connection, message_max_bytes=8 * MIB)
    producer.produce(topic_name, value, partition=0)
    assert producer.flush(60) == 0

    assert _read_values(connection, topic_name, 1) == [value]
    logs = [cluster.data_path(b) / f"{topic_name}-0" / f"{0:020d}.log" for b in cluster.broker_ids]
    assert all(log.stat().st_size > len(value) for log in logs)


def test_transactions_work_and_internal_topics_have_three_replicas(
    connection: Connection, topic_name: str
) -> None:
    with open_admin(connection) as admin:
        admin.create_topics({topic_name: {"num_partitions": 1, "replication_factor": 1}})
        producer = confluent_producer(connection, transactional_id=topic_name)
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic_name, b"committed", partition=0)
        producer.commit_transaction(30)
        (described,) = admin.describe_topics(["__transaction_state"])

    assert _read_values(connection, topic_name, 1) == [b"committed"]
    assert {len(partition["replica_nodes"]) for partition in described["partitions"]} == {3}


def test_nobody_makes_a_topic_by_asking_for_it(connection: Connection, topic_name: str) -> None:
    producer = confluent_producer(connection)
    producer.list_topics(topic_name, timeout=60)

    assert topic_name not in producer.list_topics(timeout=60).topics


def test_an_unknown_broker_is_refused_with_those_there_are(cluster: LocalCluster) -> None:
    with pytest.raises(UnknownBrokerError, match=r"broker 9: the cluster has brokers \[1, 2, 3\]"):
        cluster.broker_pid(9)


def test_start_by_a_program_that_ends_is_one_cluster_for_all_until_stopped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start = (
        "import sys; from pathlib import Path; from evenload.local_cluster import LocalCluster;"
        "LocalCluster(Path(sys.argv[1]), capacity_bytes=[5 << 30]).start()"
    )
    subprocess.run([sys.executable, "-c", start, str(home)], check=True, timeout=300)
    cluster = LocalCluster.load(home)
    try:
        pids = cluster.pids
        assert cluster.is_running
        assert resolve_connection(home=home) == cluster.connection
        assert cluster.connection.capacity_bytes_by_broker == {1: 5 << 30}
        # A session of its own: Ctrl-C where it was started doesn't reach it.
        assert os.getsid(pids["broker-1"]) != os.getsid(0)

        assert LocalCluster(home).start().pids == pids
        with pytest.raises(WrongBrokerCountError, match="made with 1 brokers and can't be started with 3"):
            LocalCluster(home, num_brokers=3).start()
        assert cluster.pids == pids
    finally:
        cluster.stop()

    assert cluster.pids == {}
    assert not any(_is_alive(pid) for pid in pids.values())
    cluster.stop()


def test_capacity_and_properties_of_one_broker_are_kept_for_the_next_start(tmp_path: Path) -> None:
    racks = {1: {"broker.rack": "a"}, 2: {"broker.rack": "b"}}
    LocalCluster(tmp_path, capacity_bytes=[1 << 30, 3 << 30], properties_by_broker=racks).start().stop()

    with LocalCluster(tmp_path) as cluster, open_admin(cluster.connection) as admin:
        assert [broker["rack"] for broker in admin.describe_cluster()["brokers"]] == ["a", "b"]
        assert cluster.connection.capacity_bytes_by_broker == {1: 1 << 30, 2: 3 << 30}


def test_nothing_is_left_of_a_temporary_cluster() -> None:
    with temporary_cluster(num_brokers=1) as cluster:
        pids = cluster.pids.values()
        assert cluster.home.exists()

    assert not any(_is_alive(pid) for pid in pids)
    assert not cluster.home.exists()


def _read_values(connection: Connection, topic: str, count: int) -> list[bytes]:
    consumer = confluent_consumer(connection, group_id=uuid.uuid4().hex)
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [record.value() for record in consumer.consume(count, timeout=60)]
    finally:
        consumer.close()


def _is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
