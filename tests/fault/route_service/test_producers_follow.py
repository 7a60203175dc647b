"""Services die, sleep, lie or measure other brokers while producers follow them; every record is stored."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.routing import followed_routes
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.router.route import Route

WaitUntil = Callable[[Callable[[], bool]], None]
StartCollector = Callable[..., Any]

VALUE = bytes(1000)
TOKEN = "to-operate"


def make_topic(connection: Connection, topic: str, num_partitions: int = 6, **more: Any) -> None:
    wanted: dict[str, Any] = {"replication": 1, "assignments": None, "configs": {}, **more}
    create_topic(connection, topic, num_partitions=num_partitions, timeout_s=60, **wanted)


class Writer:
    """Writes to a topic by the services' routes, a little each time a test looks.

    Attributes:
        stored: how many records each partition got.
    """

    def __init__(self, connection: Connection, topic: str, *urls: str) -> None:
        described = connection.model_copy(update={"collector_url": ",".join(urls)})
        self.producer = BalancedProducer(
            {"bootstrap.servers": connection.bootstrap_servers}, connection=described
        )
        self._topic = topic
        self.stored: Counter[int] = Counter()
        self._num_sent = 0
        self._problems: list[str] = []

    def __enter__(self) -> Writer:
        self.write()
        assert self.producer.flush(60) == 0
        return self

    def __exit__(self, *error: object) -> None:
        self.producer.close()
        if error[0] is None:
            assert self._problems == []
            assert sum(self.stored.values()) == self._num_sent

    @property
    def route(self) -> Route:
        known = self.producer._routes.find(self._topic)
        assert known is not None
        return known.route

    def write(self) -> None:
        for _ in range(20):
            self.producer.produce(self._topic, VALUE, on_delivery=self._told)
            self._num_sent += 1
        self.producer.poll(0)

    def is_followed(self, is_so: Callable[[Route], bool]) -> Callable[[], bool]:
        """Whether a route is followed that is so; writes, as who doesn't write doesn't ask."""

        def look() -> bool:
            self.write()
            return is_so(self.route)

        return look

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._problems.append(error.str())
        else:
            partition = message.partition()
            assert partition is not None
            self.stored[partition] += 1


def is_decided(route: Route) -> bool:
    return route.reason is None and bool(route.batch_bytes) and not route.is_fallback


def set_weights(url: str, **weights: Any) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"{url}/v1/weights", json.dumps(weights).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=60):
        pass


def leaders(connection: Connection, topic: str) -> dict[int, int]:
    """Broker ids by partition."""
    with open_admin(connection) as admin:
        (found,) = admin.describe_topics([topic])
    return {each["partition_index"]: each["leader_id"] for each in found["partitions"]}


@pytest.fixture
def shares_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if shares of services expired after a second, and not after half a minute."""
    ask = followed_routes.RouteClient.ask

    def asked(self: Any, topic: str) -> Any:
        heard = ask(self, topic)
        return heard._replace(answer=heard.answer.model_copy(update={"expires_s": 1.0}))

    monkeypatch.setattr(followed_routes.RouteClient, "ask", asked)


@pytest.fixture
def start_service(start_collector: StartCollector, tmp_path: Path) -> StartCollector:
    """Start services whose weights may be changed."""
    (tmp_path / "token").write_text(TOKEN)
    return partial(_start, start_collector, tmp_path / "token")


def _start(start_collector: StartCollector, token_path: Path, connection: Connection) -> Any:
    return start_collector(connection, "--operate-token-file", str(token_path))


@pytest.fixture
def writer(
    connection: Connection, topic_name: str, start_service: StartCollector, wait_until: WaitUntil
) -> Iterator[tuple[Writer, Any]]:
    """A writer that follows a service, and the service's process."""
    make_topic(connection, topic_name)
    service = start_service(connection)
    with Writer(connection, topic_name, service.url) as made:
        wait_until(made.is_followed(is_decided))
        yield made, service


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.usefixtures("shares_end_soon")
def test_a_service_that_dies_or_hangs_and_is_there_again(
    writer: tuple[Writer, Any], wait_until: WaitUntil, how: signal.Signals
) -> None:
    writing, service = writer
    if how == signal.SIGKILL:
        service.end(how)
    else:
        service.process.send_signal(how)
    producer = writing.producer
    wait_until(
        writing.is_followed(lambda route: route.reason == "expired" and producer.num_without_service == 1)
    )
    if how == signal.SIGKILL:
        service.start()
    else:
        service.process.send_signal(signal.SIGCONT)
    wait_until(writing.is_followed(is_decided))


@pytest.mark.usefixtures("shares_end_soon")
def test_of_two_services_either_may_die_and_both_together(
    connection: Connection, topic_name: str, start_service: StartCollector, wait_until: WaitUntil
) -> None:
    make_topic(connection, topic_name)
    services = [start_service(connection) for _ in range(2)]
    with Writer(connection, topic_name, *(service.url for service in services)) as writing:
        for dies, stays in (services, services[::-1]):
            dies.end(signal.SIGKILL)
            set_weights(stays.url, brokers={"1": 0.0 if dies is services[0] else 1.0})
            drained = [n for n, broker_id in leaders(connection, topic_name).items() if broker_id == 1]
            is_drained = dies is services[0]
            wait_until(
                writing.is_followed(
                    lambda route, drained=drained, is_drained=is_drained: (
                        is_decided(route) and all((n not in route.shares) is is_drained for n in drained)
                    )
                )
            )
            dies.start()
        assert writing.producer.num_without_service == 0
        for service in services:
            service.end(signal.SIGKILL)
        wait_until(writing.is_followed(lambda route: route.reason == "expired"))
        services[1].start()
        wait_until(writing.is_followed(is_decided))


def test_a_service_of_another_cluster_is_never_followed(
    connection: Connection,
    topic_name: str,
    start_collector: StartCollector,
    wait_until: WaitUntil,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_topic(connection, topic_name)
    with temporary_cluster(num_brokers=1) as other:
        make_topic(other.connection, topic_name, 3)
        url = start_collector(other.connection).url
        with Writer(connection, topic_name, url) as writing:
            wait_until(lambda: writing.producer.num_without_service == 1)
            assert set(writing.route.shares) == set(range(6))  # and not three of them
    assert "but the producer writes to cluster" in caplog.text


def test_weights_reach_a_producer_and_the_broker_gets_nothing_from_then_on(
    writer: tuple[Writer, Any], connection: Connection, topic_name: str, wait_until: WaitUntil
) -> None:
    writing, service = writer
    drained = {number for number, leader_id in leaders(connection, topic_name).items() if leader_id == 2}
    set_weights(service.url, brokers={"2": 0})
    wait_until(writing.is_followed(lambda route: is_decided(route) and not drained & route.shares.keys()))
    writing.producer.flush(60)
    before = sum(writing.stored[number] for number in drained)
    for _ in range(50):
        writing.write()
    writing.producer.flush(60)
    assert sum(writing.stored[number] for number in drained) == before


def test_partitions_that_are_added_are_used(
    writer: tuple[Writer, Any], connection: Connection, topic_name: str, wait_until: WaitUntil
) -> None:
    writing, _ = writer
    with open_admin(connection) as admin:
        admin.create_partitions({topic_name: 9})
    wait_until(writing.is_followed(lambda route: set(route.shares) == set(range(9))))
    writing.producer.flush(60)
    assert set(writing.stored) >= set(range(6))


def test_fifty_new_topics_at_once_lose_nothing(
    connection: Connection, topic_name: str, start_collector: StartCollector
) -> None:
    topics = [f"{topic_name}-{number}" for number in range(50)]
    problems: list[str] = []
    stored: Counter[str | None] = Counter()

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            problems.append(error.str())
        else:
            stored[message.topic()] += 1

    described = connection.model_copy(update={"collector_url": start_collector(connection).url})
    settings = {"bootstrap.servers": connection.bootstrap_servers}
    with BalancedProducer(settings, connection=described) as producer, open_admin(connection) as admin:
        admin.create_topics({topic: {"num_partitions": 12, "replication_factor": 1} for topic in topics})
        for number in range(60):
            for topic in topics:
                partition = number % 12 if number % 3 == 0 else -1
                producer.produce(topic, b"%d" % number, partition=partition, on_delivery=told)
        assert producer.flush(120) == 0
        assert producer.num_without_service == 0
        admin.delete_topics(topics)
    assert problems == []
    assert stored == dict.fromkeys(topics, 60)


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    """Brokers that may be killed."""
    with temporary_cluster(num_brokers=3) as cluster:
        yield cluster


def test_leaders_that_move_while_a_broker_is_dead(
    own_cluster: LocalCluster, topic_name: str, start_collector: StartCollector, wait_until: WaitUntil
) -> None:
    connection = own_cluster.connection
    make_topic(connection, topic_name, replication=2, assignments=[(1, 2), (2, 3), (3, 1)] * 2)
    url = start_collector(connection).url
    with Writer(connection, topic_name, url) as writing:
        wait_until(writing.is_followed(is_decided))
        own_cluster.kill_broker(1)
        wait_until(lambda: 1 not in leaders(connection, topic_name).values())
        for _ in range(20):
            writing.write()
        assert writing.producer.flush(120) == 0
        own_cluster.restart_broker(1)
        wait_until(writing.is_followed(is_decided))


def test_a_partition_whose_replicas_fall_out_of_sync_gets_nothing_until_they_are_back(
    own_cluster: LocalCluster, topic_name: str, start_collector: StartCollector, wait_until: WaitUntil
) -> None:
    connection = own_cluster.connection
    assignments = [(1, 2), (2, 3), (3, 2), (3, 1)]
    make_topic(
        connection,
        topic_name,
        4,
        replication=2,
        assignments=assignments,
        configs={"min.insync.replicas": "2"},
    )
    lagging = {number for number, ids in enumerate(assignments) if 1 in ids}
    url = start_collector(connection).url
    with Writer(connection, topic_name, url) as writing:
        wait_until(writing.is_followed(lambda route: set(route.shares) == set(range(4))))
        own_cluster.kill_broker(1)
        wait_until(writing.is_followed(lambda route: is_decided(route) and not lagging & route.shares.keys()))
        own_cluster.restart_broker(1)
        wait_until(writing.is_followed(lambda route: set(route.shares) == set(range(4))))
        assert writing.producer.flush(120) == 0
