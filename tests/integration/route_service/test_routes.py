"""A collector service's routes, over HTTP, from a real cluster."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.topics import create_topic
from evenload.route_service.route_answer import AGE_HEADER, RouteAnswer, decode_route


class Answered(NamedTuple):
    """The status, what was decided if it came, its tag, and how old its measurement is."""

    status: int
    route: RouteAnswer | None
    tag: str
    age_s: float | None


def ask(url: str, topic: str, tag: str = "") -> Answered:
    request = urllib.request.Request(f"{url}/v1/routes/{topic}", headers={"If-None-Match": tag})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, body, headers = response.status, response.read(), response.headers
    except urllib.error.HTTPError as error:
        status, body, headers = error.code, b"", error.headers
    age = headers.get(AGE_HEADER)
    route = decode_route(body, topic) if body else None
    return Answered(status, route, str(headers.get("ETag")), None if age is None else float(age))


def put(url: str, path: str, document: object) -> None:
    body = json.dumps(document).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, body, method="PUT"), timeout=60):
        pass


def test_routes_follow_what_is_measured_and_what_producers_say(
    connection: Connection,
    topic_name: str,
    start_collector: Callable[..., Any],
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    create_topic(
        connection,
        topic_name,
        num_partitions=6,
        replication=1,
        assignments=None,
        configs={},
        timeout_s=60,
    )
    url = start_collector(connection).url

    def is_routed() -> bool:
        route = ask(url, topic_name).route
        return route is not None and len(route.shares) == 6

    wait_until(is_routed)
    found = ask(url, topic_name)
    assert found.route is not None
    assert (found.status, found.route.reason, sum(found.route.shares) > 0.99) == (200, None, True)
    assert found.age_s is not None
    assert found.age_s >= 0
    tag = found.tag

    def is_unchanged() -> bool:
        nonlocal tag
        again = ask(url, topic_name, tag)
        tag = again.tag
        return again.status == 304 and again.age_s is not None

    wait_until(is_unchanged)
    report = {"producer": "p", "topic": topic_name, "shares": {}, "sent_bytes_by_partition": {"0": 9}}
    put(url, "/v1/reports", [report])
    put(url, "/v1/intents", {"load": "l", "topic": "another", "bytes_by_broker": {"1": 1 << 30}})

    def is_led_away() -> bool:
        """From the broker that will have half of its capacity taken."""
        route = ask(url, topic_name).route
        return route is not None and min(route.shares) < 0.1 < max(route.shares)

    wait_until(is_led_away)
    unknown = ask(url, "no-such-topic")
    assert unknown.route is not None
    assert (unknown.status, unknown.route.shares, unknown.route.reason) == (200, (), "unknown_topic")
    assert ask(url, "no%0Atopic").status == 400
