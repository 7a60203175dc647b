"""Java producers lose nothing while topics grow, brokers die, and services die, sleep and change tokens."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_consumer, open_admin
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster
from evenload.telemetry_collector.collector import sample_once

StartCollector = Callable[..., Any]
StartSender = Callable[..., Any]
WaitUntil = Callable[[Callable[[], bool]], None]

PREFERRED = 0  # how Kafka counts kinds of election


def make_topic(connection: Connection, topic: str, num_partitions: int = 6, **more: Any) -> None:
    wanted: dict[str, Any] = {"replication": 1, "assignments": None, "configs": {}, **more}
    create_topic(connection, topic, num_partitions=num_partitions, timeout_s=60, **wanted)


def settings_of(connection: Connection, *urls: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": connection.bootstrap_servers,
        "evenload.url": ",".join(urls),
        "metadata.max.age.ms": 500,  # by default five minutes
        **more,
    }


def led_by(connection: Connection, topic: str, broker_id: int) -> set[int]:
    layout = sample_once(connection, [topic]).topics[topic]
    return {number for number, placed in layout.items() if placed.leader_id == broker_id}


def writes_to(sender: Any, partitions: set[int]) -> Callable[[], bool]:
    """Whether it writes to these partitions and no others, each time it is asked; none may fail."""
    before: dict[int, int] = sender.send(0)

    def look() -> bool:
        nonlocal before
        earlier, before = before, sender.send(300)
        return {number for number, count in before.items() if count > earlier.get(number, 0)} == partitions

    return look


def drain(path: Path, broker_id: int) -> None:
    """What a weights file says from now on, as an operator would replace it."""
    new = path.with_suffix(".new")
    new.write_text(f'{{"brokers": {{"{broker_id}": 0}}}}')
    new.replace(path)


def test_a_topic_that_grows_is_written_whole(
    connection: Connection,
    topic_name: str,
    start_collector: StartCollector,
    start_sender: StartSender,
    wait_until: WaitUntil,
) -> None:
    make_topic(connection, topic_name)
    sender = start_sender(settings_of(connection, start_collector(connection).url), topic_name)
    wait_until(writes_to(sender, set(range(6))))
    with open_admin(connection) as admin:
        admin.create_partitions({topic_name: 9})
    wait_until(writes_to(sender, set(range(9))))


def test_a_broker_that_dies_and_is_back(
    make_cluster: Callable[..., LocalCluster],
    topic_name: str,
    start_collector: StartCollector,
    start_sender: StartSender,
    wait_until: WaitUntil,
) -> None:
    cluster = make_cluster(num_brokers=3)
    connection = cluster.connection
    make_topic(connection, topic_name, 3, assignments=[(1, 2), (2, 3), (3, 1)])
    sender = start_sender(settings_of(connection, start_collector(connection).url), topic_name)
    wait_until(writes_to(sender, {0, 1, 2}))
    cluster.kill_broker(1)
    # It writes while the client knows the dead leader.
    wait_until(lambda: sender.send(100) != {} and led_by(connection, topic_name, 1) == set())
    wait_until(writes_to(sender, {0, 1, 2}))
    cluster.restart_broker(1)

    def leads_again() -> bool:
        with open_admin(connection) as admin:
            admin.elect_leaders(PREFERRED, {topic_name: [0]}, raise_errors=False)
        return sender.send(100) != {} and led_by(connection, topic_name, 1) == {0}

    wait_until(leads_again)
    wait_until(writes_to(sender, {0, 1, 2}))
    acknowledged = sender.send(0)
    consumer = confluent_consumer(connection)
    try:
        for number, count in acknowledged.items():
            assert consumer.get_watermark_offsets(TopicPartition(topic_name, number), timeout=60)[1] == count
    finally:
        consumer.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_service_that_dies_or_hangs_and_is_there_again(
    connection: Connection,
    topic_name: str,
    tmp_path: Path,
    start_collector: StartCollector,
    start_sender: StartSender,
    wait_until: WaitUntil,
    how: signal.Signals,
) -> None:
    make_topic(connection, topic_name)
    weights = tmp_path / "weights.json"
    drain(weights, 1)
    service = start_collector(connection, "--weights", str(weights))
    sender = start_sender(settings_of(connection, service.url), topic_name)
    wait_until(writes_to(sender, set(range(6)) - led_by(connection, topic_name, 1)))
    if how == signal.SIGKILL:
        service.end(how)
    else:
        service.process.send_signal(how)
    drain(weights, 2)
    wait_until(lambda: sender.send(100) != {} and "can't be used" in sender.log)
    if how == signal.SIGKILL:
        service.start()
    else:
        service.process.send_signal(signal.SIGCONT)
    wait_until(writes_to(sender, set(range(6)) - led_by(connection, topic_name, 2)))


def test_of_two_services_either_may_die(
    connection: Connection,
    topic_name: str,
    tmp_path: Path,
    start_collector: StartCollector,
    start_sender: StartSender,
    wait_until: WaitUntil,
) -> None:
    make_topic(connection, topic_name)
    weights = tmp_path / "weights.json"
    drain(weights, 1)
    services = [start_collector(connection, "--weights", str(weights)) for _ in range(2)]
    sender = start_sender(settings_of(connection, *(each.url for each in services)), topic_name)
    wait_until(writes_to(sender, set(range(6)) - led_by(connection, topic_name, 1)))
    for drained, dies in ((2, services[0]), (3, services[1])):
        dies.end(signal.SIGKILL)
        drain(weights, drained)
        wait_until(writes_to(sender, set(range(6)) - led_by(connection, topic_name, drained)))
        dies.start()
    assert "can't be used" not in sender.log


def test_a_service_with_tls_whose_token_changes(
    connection: Connection,
    topic_name: str,
    tmp_path: Path,
    certificate: Path,
    start_collector: StartCollector,
    start_sender: StartSender,
    wait_until: WaitUntil,
) -> None:
    make_topic(connection, topic_name)
    weights, token = tmp_path / "weights.json", tmp_path / "token"
    drain(weights, 1)
    token.write_text("the-first-token")
    service = start_collector(
        connection,
        *("--weights", str(weights), "--tls-certificate", str(certificate)),
        *("--ingest-token-file", str(token), "--read-token-file", str(token)),
    )
    told = tmp_path / "producers-token"
    told.write_text("the-first-token\n")
    settings = settings_of(
        connection,
        service.url,
        **{
            "evenload.token.file": str(told),
            "evenload.ca.file": str(certificate.with_name("ca.pem")),
        },
    )
    sender = start_sender(settings, topic_name)
    wait_until(writes_to(sender, set(range(6)) - led_by(connection, topic_name, 1)))
    service.end(signal.SIGTERM)
    token.write_text("another-token")
    drain(weights, 2)
    service.start()
    wait_until(lambda: sender.send(100) != {} and "answered with status 401" in sender.log)
    told.write_text("another-token\n")
    wait_until(writes_to(sender, set(range(6)) - led_by(connection, topic_name, 2)))
