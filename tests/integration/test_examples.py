"""The examples, each run as a process against brokers that were uneven before: all records, level brokers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, confluent_producer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.telemetry_collector.collector import sample_once

EXAMPLES = Path(__file__).parents[2] / "examples"
MIB = 1 << 20
CAPACITY_BYTES = 128 * MIB
HELD_BYTES = 12 * MIB  # on broker 1, before the example runs
NUM_PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three brokers that hold little else, so an example sends more than a twentieth of their capacity.

    Less than that is only levelled in part until a measurement has shown that nobody else writes.
    """
    with temporary_cluster(num_brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def connection(cluster: LocalCluster) -> Connection:
    return cluster.connection


@pytest.fixture
def uneven_topic(cluster: LocalCluster, topic_name: str, tmp_path: Path) -> tuple[str, Path]:
    """An empty topic with two partitions on each broker, and a connection file with capacities.

    Broker 1 then holds 12 MiB more than the one that holds least, whatever earlier tests left.
    """
    connection = cluster.connection
    _make_topic(connection, f"held-{topic_name}", [(1,), (2,), (3,)])
    _make_topic(connection, topic_name, [(1,), (2,), (3,)] * (NUM_PARTITIONS // 3))
    used = {broker_id: each.used_bytes for broker_id, each in sample_once(connection).brokers.items()}
    wanted = {broker_id: max(used.values()) + HELD_BYTES * (broker_id == 1) for broker_id in used}
    producer = confluent_producer(connection)
    for broker_id in used:
        for _ in range((wanted[broker_id] - used[broker_id]) // 100_000):
            producer.produce(f"held-{topic_name}", bytes(100_000), partition=broker_id - 1)
    assert producer.flush(60) == 0
    file = tmp_path / "connection.json"
    capacities = dict.fromkeys(used, max(wanted.values()) + CAPACITY_BYTES)
    file.write_text(
        json.dumps(
            {
                "bootstrap_servers": connection.bootstrap_servers,
                "capacity_bytes_by_broker": capacities,
            }
        )
    )
    return topic_name, file


def _make_topic(connection: Connection, topic: str, assignments: list[tuple[int, ...]]) -> None:
    create_topic(
        connection,
        topic,
        num_partitions=len(assignments),
        replication=None,
        assignments=assignments,
        configs={},
        timeout_s=60,
    )


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _stored(connection: Connection, topic: str, num_records: int) -> list[bytes]:
    """The values of all records, and that there are no more of them."""
    consumer = confluent_consumer(connection)
    topic_partitions = [TopicPartition(topic, number, 0) for number in range(NUM_PARTITIONS)]
    num_stored = sum(consumer.get_watermark_offsets(each, timeout=60)[1] for each in topic_partitions)
    assert num_stored == num_records
    consumer.assign(topic_partitions)
    values: list[bytes] = []
    while len(values) < num_records:
        found = consumer.consume(min(1000, num_records - len(values)), 60)
        assert found, f"{len(values)} of {num_records} records after a minute of silence"
        values += [message.value() for message in found]
    consumer.close()
    return values


def _spread_points(file: Path) -> float:
    """Highest less lowest utilisation, in points of the room that was left."""
    connection = Connection.model_validate_json(file.read_text())
    used = [each.used_bytes for each in sample_once(connection).brokers.values()]
    return 100 * (max(used) - min(used)) / CAPACITY_BYTES


@pytest.mark.parametrize("name", ["confluent_kafka_app.py", "kafka_python_app.py", "datasets_stream.py"])
def test_an_example_says_what_it_does(name: str) -> None:
    assert "--bootstrap-servers" in _run(name, "--help")


def test_a_confluent_kafka_application_levels_brokers(
    connection: Connection, uneven_topic: tuple[str, Path], tmp_path: Path
) -> None:
    topic, file = uneven_topic
    chance = random.Random(0)
    events = [
        {
            "kind": "heartbeat" if number % 50 == 0 else "order",
            "number": number,
            "items": chance.randbytes(600).hex(),
        }
        for number in range(30_000)
    ]
    orders = tmp_path / "orders.jsonl"
    orders.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert _spread_points(file) > 9

    told = _run("confluent_kafka_app.py", str(orders), "--topic", topic, "--connection", str(file))

    assert told == "29400 events stored, 0 not\n"
    stored = sorted(json.loads(value)["number"] for value in _stored(connection, topic, 29_400))
    assert stored == [number for number in range(30_000) if number % 50]
    assert _spread_points(file) < 1.0


def test_a_kafka_python_application_levels_brokers(
    connection: Connection, uneven_topic: tuple[str, Path]
) -> None:
    topic, file = uneven_topic
    assert _spread_points(file) > 9

    told = _run(
        "kafka_python_app.py",
        "--sensors",
        "60",
        "--readings",
        "1200",
        "--topic",
        topic,
        "--connection",
        str(file),
    )

    assert told == "72000 readings stored, 0 not\n"
    stored = [json.loads(value) for value in _stored(connection, topic, 72_000)]
    found = sorted((each["sensor"], each["number"]) for each in stored)
    assert found == [(sensor, number) for sensor in range(60) for number in range(1200)]
    assert _spread_points(file) < 1.0


def test_a_stream_of_a_dataset_levels_brokers(
    connection: Connection, uneven_topic: tuple[str, Path], tmp_path: Path
) -> None:
    import datasets

    topic, file = uneven_topic
    chance = random.Random(0)
    rows = {"text": [chance.randbytes(900).hex() for _ in range(30_000)], "label": list(range(30_000))}
    source = tmp_path / "reviews.parquet"
    datasets.Dataset.from_dict(rows).to_parquet(source)
    assert _spread_points(file) > 9

    told = _run("datasets_stream.py", str(source), "--topic", topic, "--connection", str(file))

    assert told == "30000 rows stored, 0 not\n"
    stored = [json.loads(value) for value in _stored(connection, topic, 30_000)]
    assert sorted(each["label"] for each in stored) == rows["label"]
    assert all(each["text"] == rows["text"][each["label"]] for each in stored)
    assert _spread_points(file) < 1.0
