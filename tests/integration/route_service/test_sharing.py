"""Services beside each other share what they are told, by a topic; any of them may die."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenload.kafka_connection.clients import confluent_producer
from evenload.local_cluster import LocalCluster, temporary_cluster
from evenload.route_service.sharing import TOLD_TOPIC

WaitUntil = Callable[[Callable[[], bool]], None]

DRAINING = {"brokers": {"1": 0.0}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Of its own: what is shared is shared with all services of a cluster."""
    with temporary_cluster(num_brokers=1) as cluster:
        yield cluster


@pytest.fixture
def services(
    cluster: LocalCluster, start_collector: Callable[..., Any], tmp_path: Path, wait_until: WaitUntil
) -> list[Any]:
    (tmp_path / "token").write_text("secret")
    options = ("--share", "--operate-token-file", str(tmp_path / "token"))
    started = [start_collector(cluster.connection, *options) for _ in range(2)]
    for each in started:
        wait_until(lambda url=each.url: ask(url, "GET", "/v1/snapshot") is not None)
        put_weights(each.url, {})
    return started


def ask(url: str, method: str, path: str, document: object = None) -> Any:
    """The answer; None: it refuses."""
    body = None if document is None else json.dumps(document).encode()
    headers = {"Authorization": "Bearer secret"}
    request = urllib.request.Request(url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            said = response.read()
    except urllib.error.HTTPError:
        return None
    return json.loads(said) if said else {}


def put_weights(url: str, weights: dict[str, Any]) -> None:
    assert ask(url, "PUT", "/v1/weights", weights) == weights


def announced(url: str) -> dict[str, int]:
    """Stored bytes by broker."""
    found: dict[str, int] = ask(url, "GET", "/v1/snapshot")["announced"]
    return found


def test_weights_set_at_one_service_are_in_force_at_all(services: list[Any], wait_until: WaitUntil) -> None:
    first, second = services
    put_weights(first.url, DRAINING)
    wait_until(lambda: ask(second.url, "GET", "/v1/weights") == DRAINING)
    put_weights(second.url, {"brokers": {"1": 0.5}})
    wait_until(lambda: ask(first.url, "GET", "/v1/weights") == {"brokers": {"1": 0.5}})


def test_a_service_that_is_killed_has_the_weights_again_when_it_is_back(
    services: list[Any], wait_until: WaitUntil
) -> None:
    first, second = services
    first.end(signal.SIGKILL)
    put_weights(second.url, DRAINING)
    first.start()
    wait_until(lambda: ask(first.url, "GET", "/v1/weights") == DRAINING)


def test_what_a_load_announces_to_one_service_all_count_until_it_is_withdrawn(
    services: list[Any], wait_until: WaitUntil
) -> None:
    first, second = services
    told = {"load": "a-load", "topic": "t", "bytes_by_broker": {"1": 1 << 20, "77": 5}}
    ask(first.url, "PUT", "/v1/intents", told)
    wait_until(lambda: announced(second.url) == {"1": 1 << 20})
    assert announced(first.url) == {"1": 1 << 20}
    second.end(signal.SIGKILL)
    second.start()
    wait_until(lambda: announced(second.url) == {"1": 1 << 20})
    ask(second.url, "DELETE", "/v1/intents?load=a-load")
    wait_until(lambda: announced(first.url) == {})


def test_what_no_service_wrote_is_left_out(
    services: list[Any], cluster: LocalCluster, wait_until: WaitUntil
) -> None:
    first, second = services
    put_weights(first.url, DRAINING)
    hostile = confluent_producer(cluster.connection)
    intent = {"load": "x", "topic": "t", "bytes_by_broker": {"1": 1 << 70}}
    for key, value in (
        (b"weights", b"{"),
        (b"weights", b'{"weights": {"brokers": {"1": 7}}}'),
        (b"weights", b'{"weights": []}'),
        (b"intent x", json.dumps({"by": "b", "at_s": 1e12, "intent": intent}).encode()),
        (b"intent y", json.dumps({"by": "b", "at_s": 1e12, "intent": {**intent, "load": "z"}}).encode()),
        (b"intent \xff", b"[]"),
        (b"", b""),
        (b"another", b"x" * 500_000),
    ):
        hostile.produce(TOLD_TOPIC, value, key)
    assert hostile.flush(60) == 0
    told = {"load": "last", "topic": "t", "bytes_by_broker": {"1": 9}}
    ask(second.url, "PUT", "/v1/intents", told)
    wait_until(lambda: announced(first.url) == {"1": 9})  # all before it was read
    assert [ask(each.url, "GET", "/v1/weights") for each in services] == [DRAINING, DRAINING]
    ask(second.url, "DELETE", "/v1/intents?load=last")


def test_without_brokers_weights_stay_as_they_are_and_cannot_be_changed(
    services: list[Any], cluster: LocalCluster, wait_until: WaitUntil
) -> None:
    first, _ = services
    put_weights(first.url, DRAINING)
    cluster.kill_broker(1)
    assert ask(first.url, "PUT", "/v1/weights", {}) is None
    assert ask(first.url, "GET", "/v1/weights") == DRAINING
    cluster.restart_broker(1)
    wait_until(lambda: ask(first.url, "PUT", "/v1/weights", {"brokers": {"1": 0.25}}) is not None)
