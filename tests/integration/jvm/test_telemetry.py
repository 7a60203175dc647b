"""What real clients push through real brokers, old and new, is known of these by a collector service."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from evenload.jvm.broker_plugin import plugin_properties
from evenload.jvm.jar import evenload_jar
from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import confluent_producer, open_admin
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.local_cluster.jars import KAFKA_VERSIONS
from evenload.local_cluster.settings import free_ports, release_ports
from evenload.telemetry_collector.errors import SubscriptionError
from evenload.telemetry_collector.pushed.client_figures import METRICS
from evenload.telemetry_collector.subscription import (
    SUBSCRIPTIONS,
    subscribe,
    subscriptions,
    unsubscribe,
)

StartSender = Callable[..., Any]
WaitUntil = Callable[[Callable[[], bool]], None]

MAIN = "from evenload.cli import main; main()"
PATIENCE_S = 60
BROKERS = {1, 2}
TOPIC = "events"
NUM_EACH = 3
# What a client says when a broker has answered so that it won't push again: Java's, librdkafka's.
SILENCED = ("disable telemetry", "disabling telemetry", "Stopping telemetry")
# What the plugin says of a client's push, or of the collector's answer.
UNREADABLE = ("can't be read", "without an answer")
# What a broker says of a plugin that has thrown something.
THROWN = "Error exporting client metrics"


class Place(NamedTuple):
    """Brokers with the plugin, and the port that they were told."""

    cluster: LocalCluster
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module", params=KAFKA_VERSIONS[1:])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Two brokers of each version whose clients push, with the plugin, and a topic on both."""
    (port,) = free_ports(1)
    with temporary_cluster(
        kafka_version=request.param,
        num_brokers=2,
        broker_properties=plugin_properties(request.param, f"http://127.0.0.1:{port}"),
        extra_jars=[evenload_jar()],
    ) as cluster:
        subscribe(cluster.connection, interval_s=1, by_topic=True)
        create_topic(
            cluster.connection,
            TOPIC,
            num_partitions=2,
            replication=1,
            assignments=[(1,), (2,)],
            configs={},
            timeout_s=60,
        )
        yield Place(cluster, port)
    release_ports([port])


@contextmanager
def collector(place: Place) -> Iterator[None]:
    """A collector service where brokers look for it."""
    command = ["collector", "--json", "--port", str(place.port), "--interval", "0.5"]
    command += ["--bootstrap-servers", place.cluster.bootstrap_servers]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while line := process.stdout.readline():
            if line.rstrip() == "}":
                break
        assert line, "it ended before it served"
        yield
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def overview(place: Place) -> dict[str, Any]:
    with urllib.request.urlopen(f"{place.url}/v1/overview", timeout=PATIENCE_S) as response:
        document: dict[str, Any] = json.load(response)
    return document


def felt(place: Place) -> dict[str, dict[str, Any]]:
    return {each["client"]: each for each in overview(place)["producers"]}


def test_what_producers_feel_is_known_of_the_right_brokers(
    place: Place, start_sender: StartSender, wait_until: WaitUntil
) -> None:
    servers = place.cluster.bootstrap_servers
    with ExitStack() as producing, collector(place):
        settings = {"bootstrap.servers": servers, "evenload.url": place.url}
        senders = [start_sender(settings, TOPIC, logs_telemetry=True) for _ in range(NUM_EACH)]
        logs: list[str] = []
        others = [
            confluent_producer(
                place.cluster.connection,
                debug="telemetry",
                logger=_Heard(logs),
                client_id=f"other-{number}",
            )
            for number in range(NUM_EACH)
        ]
        for other in others:
            producing.callback(other.flush, PATIENCE_S)

        def all_have_pushed() -> bool:
            for sender in senders:
                sender.send(200)
            for other in others:
                _send(other)
            known = felt(place)
            return all(
                kind in known
                and known[kind]["num_clients"] == NUM_EACH
                and {int(broker_id) for broker_id in known[kind]["latency_s_by_broker"]} == BROKERS
                for kind in ("java", "librdkafka")
            )

        wait_until(all_have_pushed)
        known = felt(place)
        assert known["java"]["queue_time_s"] is not None
        wait_until(lambda: all(broker["request_latency_s"] for broker in overview(place)["brokers"]))

        for sender in senders:
            sender.close()
        wait_until(lambda: "java" not in felt(place))
        said = "".join(sender.log for sender in senders) + "".join(logs)
        # While the collector is there: as it ends, it may leave what is on its way without an answer.
        logged = [_of_the_plugin(place.cluster.log_path(each)) for each in place.cluster.broker_ids]
    assert "elemetry" in "".join(sender.log for sender in senders)
    assert "elemetry" in "".join(logs)
    assert not [word for word in SILENCED if word in said]
    for broker_id in place.cluster.broker_ids:
        assert THROWN not in place.cluster.log_path(broker_id).read_text()
    assert not [word for word in UNREADABLE if any(word in each for each in logged)]


def test_a_collector_that_is_gone_silences_nobody(
    place: Place, start_sender: StartSender, wait_until: WaitUntil
) -> None:
    settings = {"bootstrap.servers": place.cluster.bootstrap_servers, "evenload.url": place.url}
    sender = start_sender({**settings, "evenload.first.route.timeout.ms": 0}, TOPIC, logs_telemetry=True)
    paths = [place.cluster.log_path(broker_id) for broker_id in place.cluster.broker_ids]
    before = [len(_of_the_plugin(path)) for path in paths]

    def has_pushed() -> bool:
        sender.send(100)
        return felt(place).get("java", {}).get("num_clients") == 1

    with collector(place):
        wait_until(has_pushed)

    def is_in_trouble() -> bool:
        sender.send(100)
        said = [_of_the_plugin(path)[size:] for path, size in zip(paths, before, strict=True)]
        return any("doesn't take clients' metrics" in each for each in said)

    wait_until(is_in_trouble)
    with collector(place):
        wait_until(has_pushed)
    assert not [word for word in SILENCED if word in sender.log]


def test_the_command_asks_shows_and_asks_no_more(place: Place) -> None:
    def metrics(*arguments: str) -> str:
        command = [sys.executable, "-c", MAIN, "metrics", *arguments]
        command += ["--bootstrap-servers", place.cluster.bootstrap_servers]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def names() -> set[str]:
        return {each["name"] for each in json.loads(metrics("show", "--json"))["subscriptions"]}

    with open_admin(place.cluster.connection) as admin:
        kind = ConfigResourceType.CLIENT_METRICS
        told = {"metrics": "org.apache.kafka.producer.topic.", "interval.ms": "60000"}
        admin.alter_configs(
            [ConfigResource(kind, "theirs", dict(told))], raise_on_unknown=False, incremental=True
        )
        try:
            assert metrics("unsubscribe").startswith("clients are asked no more")
            assert metrics("unsubscribe").startswith("clients weren't asked")
            assert names() == {"theirs"}
            said = metrics("subscribe", "--interval", "1", "--by-topic")
            assert (
                "'evenload-java' asks clients with client_software_name=apache-kafka-java, every 1 s" in said
            )
            assert names() == {"theirs", *SUBSCRIPTIONS}
            found = {each.name: each for each in subscriptions(place.cluster.connection)}
            assert {name for name, each in found.items() if each.may_silence} == {"theirs", "evenload-java"}
            assert found["evenload-java"].metrics == tuple(sorted(METRICS))
            assert found["evenload-librdkafka"].interval_s == 1.0
        finally:
            operations = dict.fromkeys(told, (AlterConfigOp.DELETE, None))
            admin.alter_configs(
                [ConfigResource(kind, "theirs", operations)], raise_on_unknown=False, incremental=True
            )
            subscribe(place.cluster.connection, interval_s=1, by_topic=True)


def test_brokers_that_would_silence_clients_or_are_too_old_are_refused(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    small = make_cluster(num_brokers=1, broker_properties={"telemetry.max.bytes": "100000"})
    with pytest.raises(SubscriptionError, match="takes pushes of 100000 bytes"):
        subscribe(small.connection)
    assert subscriptions(small.connection) == []
    old = make_cluster(num_brokers=1, kafka_version=KAFKA_VERSIONS[0])
    for ask in (subscribe, subscriptions, unsubscribe):
        with pytest.raises(SubscriptionError, match=r"older than Kafka 3\.7"):
            ask(old.connection)


def test_only_who_may_configure_the_cluster_may_subscribe(account: Callable[..., Connection]) -> None:
    stranger, looking = account("DESCRIBE CLUSTER"), account("DESCRIBE_CONFIGS CLUSTER")
    with pytest.raises(SubscriptionError, match="it needs DESCRIBE_CONFIGS on the cluster"):
        subscriptions(stranger)
    assert subscriptions(looking) == []
    with pytest.raises(SubscriptionError, match="it needs ALTER_CONFIGS on the cluster"):
        subscribe(looking)


class _Heard:
    """What librdkafka logs."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def log(self, level: int, message: str, *arguments: Any) -> None:  # noqa: ARG002
        self._lines.append(message % arguments if arguments else message)


def _send(producer: Producer) -> None:
    for partition in (0, 1):
        producer.produce(TOPIC, b"value", partition=partition)
    producer.poll(0)


def _of_the_plugin(log_path: Path) -> str:
    return "\n".join(line for line in log_path.read_text().splitlines() if "io.evenload" in line)
