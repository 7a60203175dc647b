"""Java producers, old and new, follow the shares that a service decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.key_partition import java_partition
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster.jars import KAFKA_VERSIONS
from evenload.telemetry_collector.collector import sample_once

Service = Any
StartSender = Callable[..., Any]

RECORD_BYTES, TURN_BYTES = 1000, 16_384
# Of route.py, and a turn more as producers begin at different places.
OFF_MAX_BYTES = 1.5 * (TURN_BYTES + RECORD_BYTES) + TURN_BYTES


def make_topic(connection: Connection, topic: str, num_partitions: int = 4) -> None:
    create_topic(
        connection,
        topic,
        num_partitions=num_partitions,
        replication=1,
        assignments=None,
        configs={},
        timeout_s=60,
    )


def settings_of(connection: Connection, url: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": connection.bootstrap_servers, "evenload.url": url, **more}


def off_by(stored: dict[int, int], shares: list[float]) -> float:
    """By how many bytes a partition is off its share, at most."""
    total = sum(stored.values())
    return RECORD_BYTES * max(
        abs(stored.get(partition, 0) - share * total) for partition, share in enumerate(shares)
    )


@pytest.mark.parametrize("client_version", KAFKA_VERSIONS)
def test_shares_hold_in_bytes_and_are_told(
    connection: Connection,
    topic_name: str,
    service: Service,
    start_sender: StartSender,
    wait_until: Callable[[Callable[[], bool]], None],
    client_version: str,
) -> None:
    make_topic(connection, topic_name)
    shares = [0.4, 0.3, 0.2, 0.1]
    service.say(shares)
    sender = start_sender(settings_of(connection, service.url), topic_name, client_version=client_version)
    stored = sender.send(20_000)
    assert off_by(stored, shares) <= OFF_MAX_BYTES

    def all_is_told() -> bool:
        if not service.reports:
            return False
        told = service.reports[-1]["sent_bytes_by_partition"]
        untold = [count * RECORD_BYTES - told.get(str(partition), 0) for partition, count in stored.items()]
        # A client before 4.0 may just have asked for a record for the first time.
        return all(-RECORD_BYTES <= size <= TURN_BYTES + RECORD_BYTES for size in untold)

    wait_until(all_is_told)
    told = service.reports[-1]
    assert (told["topic"], told["reason"], told["num_fallbacks"]) == (topic_name, None, 0)
    assert told["sent_bytes"] == sum(told["sent_bytes_by_partition"].values())


def test_other_shares_are_followed_from_their_hearing_on(
    connection: Connection,
    topic_name: str,
    service: Service,
    start_sender: StartSender,
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    make_topic(connection, topic_name)
    service.say([1.0, 0.0, 0.0, 0.0])
    sender = start_sender(settings_of(connection, service.url), topic_name)
    assert set(sender.send(1000)) == {0}
    service.say([0.0, 1.0, 1.0, 0.0], version=2)

    def is_followed() -> bool:
        before = sender.send(100)
        return sender.send(100).get(0) == before.get(0)

    wait_until(is_followed)
    before = sender.send(0)
    after = sender.send(2000)
    assert {partition for partition in after if after[partition] != before.get(partition)} == {1, 2}


def test_keys_stay_where_kafka_puts_them(
    connection: Connection, topic_name: str, service: Service, start_sender: StartSender
) -> None:
    make_topic(connection, topic_name)
    service.say([1.0, 0.0, 0.0, 0.0])
    sender = start_sender(settings_of(connection, service.url), topic_name, keyed=True)
    expected = [0] * 4
    for number in range(2000):
        expected[java_partition(number.to_bytes(8, "big"), 4)] += 1
    assert sender.send(2000) == dict(enumerate(expected))


def test_shares_are_even_without_a_service_and_followed_once_it_is_there(
    connection: Connection,
    topic_name: str,
    service: Service,
    start_sender: StartSender,
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    make_topic(connection, topic_name)
    sender = start_sender(settings_of(connection, service.url), topic_name)
    assert off_by(sender.send(2000), [0.25] * 4) <= OFF_MAX_BYTES
    service.say([0.0, 0.0, 0.0, 1.0])

    def is_followed() -> bool:
        before = sender.send(100)
        after = sender.send(100)
        return after[3] - before[3] == 100

    wait_until(is_followed)


def test_a_route_of_another_cluster_is_never_followed(
    connection: Connection, topic_name: str, service: Service, start_sender: StartSender
) -> None:
    make_topic(connection, topic_name)
    service.say([1.0, 0.0, 0.0, 0.0], cluster_id="another")
    sender = start_sender(settings_of(connection, service.url), topic_name)
    assert off_by(sender.send(2000), [0.25] * 4) <= OFF_MAX_BYTES
    sender.send(2000)
    assert sender.log.count("measures cluster another") == 1


def test_nonsense_is_refused_and_said_once(
    connection: Connection,
    topic_name: str,
    service: Service,
    start_sender: StartSender,
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    make_topic(connection, topic_name)
    service.say([-1.0, 2.0, 0.0, 0.0])
    sender = start_sender(settings_of(connection, service.url), topic_name)
    assert off_by(sender.send(2000), [0.25] * 4) <= OFF_MAX_BYTES
    wait_until(lambda: "its route can't be read: shares" in sender.log)
    asked = len(service.asked)
    wait_until(lambda: len(service.asked) > asked and sender.send(10) != {})
    assert sender.log.count("has no route for topic") == 1


def test_a_real_service_is_followed(
    connection: Connection,
    topic_name: str,
    tmp_path: Path,
    start_collector: Callable[..., Any],
    start_sender: StartSender,
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    make_topic(connection, topic_name, 6)
    weights = tmp_path / "weights.json"
    weights.write_text('{"brokers": {"1": 0}}')
    url = start_collector(connection, "--weights", str(weights)).url
    sender = start_sender(settings_of(connection, url), topic_name)
    layout = sample_once(connection, [topic_name]).topics[topic_name]
    drained = {number for number, placed in layout.items() if placed.leader_id == 1}
    before: dict[int, int] = {}

    def is_spared() -> bool:
        nonlocal before
        earlier, before = before, sender.send(500)
        grown = {number for number, count in before.items() if count > earlier.get(number, 0)}
        return bool(earlier) and grown == set(layout) - drained

    wait_until(is_spared)
    assert "can't be used" not in sender.log


def test_settings_that_cant_be_are_a_sentence_at_the_start(
    connection: Connection, topic_name: str, start_sender: StartSender
) -> None:
    sender = start_sender(settings_of(connection, "ftp://nowhere"), topic_name)
    assert "has to be like https://collector:9405" in sender.complaint()
