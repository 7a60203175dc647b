"""Routes of a service are followed while it says something usable; whatever else it does, nobody waits."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.routing import followed_routes
from evenload.kafka_plugin.routing.followed_routes import FollowedRoutes
from evenload.kafka_plugin.routing.topic_route import TopicRoute

WaitUntil = Callable[[Callable[[], bool]], None]

MIB = 1 << 20
CONFIG = ProducerConfig(refresh_s=0.02, report_s=0.05, first_snapshot_timeout_s=60.0)


class Service:
    """Answers as it is told to, over HTTP.

    Attributes:
        answer: what it says of a topic; None: nothing, with status 503.
        age: its header, if any.
        reports: what it was told.
        asked: about which topics, with which tag.
    """

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = {
            "schema_version": 1,
            "cluster_id": "ours",
            "topic": "t",
            "version": 1,
            "shares": [0.0, 1.0],
            "expires_s": 30,
            "turn_max_bytes": MIB,
            "poll_s": 0.02,
            "report_bytes": MIB,
            "reason": None,
        }
        self.age: str | None = "0.5"
        self.reports: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str | None]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                tag = self.headers["If-None-Match"]
                service.asked.append((self.path, tag))
                if service.answer is None:
                    self.reply(503, b'{"error": "nothing yet"}')
                    return
                now = f'W/"{service.answer["version"]}"'
                if tag == now:
                    self.reply(304, b"", now)
                else:
                    self.reply(200, json.dumps(service.answer).encode(), now)

            def do_PUT(self) -> None:
                service.reports += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(204, b"")

            def reply(self, status: int, body: bytes, tag: str | None = None) -> None:
                self.send_response(status)
                if tag is not None:
                    self.send_header("ETag", tag)
                    if service.age is not None:
                        self.send_header("Evenload-Age", service.age)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def say(self, **fields: Any) -> None:
        assert self.answer is not None
        self.answer = {**self.answer, "version": self.answer["version"] + 1, **fields}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Service]]:
    monkeypatch.setattr(followed_routes, "_BACKOFF_MAX_S", 0.05)
    monkeypatch.setattr(followed_routes, "_ASK_MIN_S", 0.01)
    monkeypatch.setattr(followed_routes, "_IDLE_FACTOR", 100)
    monkeypatch.setattr(followed_routes, "_REPORT_MIN_S", 0.0)
    made = [Service(), Service()]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def service(services: list[Service]) -> Service:
    return services[0]


@pytest.fixture
def follow(services: list[Service]) -> Iterator[Callable[..., FollowedRoutes]]:
    made: list[FollowedRoutes] = []

    def follow_one(
        url: str | None = None, *, cluster_id: str | None = "ours", num_known: int = 2
    ) -> FollowedRoutes:
        connection = Connection(bootstrap_servers="127.0.0.1:1", collector_url=url or services[0].url)
        made.append(
            FollowedRoutes(
                connection,
                CONFIG,
                count_partitions=lambda *_: num_known,
                ask_cluster_id=lambda: cluster_id,
            )
        )
        return made[-1]

    yield follow_one
    for each in made:
        each.close()


Follow = Callable[..., FollowedRoutes]


def goes_to(route: TopicRoute) -> set[int]:
    """Where some turns go."""
    return {route.partition_for(CONFIG.batch_bytes) for _ in range(4)}


def test_the_first_record_goes_by_what_the_service_decided(follow: Follow) -> None:
    route = follow().add("t", 2)
    assert goes_to(route) == {1}
    assert (route.num_fallbacks, route.route.batch_bytes) == (0, MIB)


def test_another_decision_is_followed_and_the_same_is_not_sent_again(
    service: Service, follow: Follow, wait_until: WaitUntil
) -> None:
    route = follow().add("t", 2)

    def is_followed(partition: int) -> bool:
        return route.partition_for(MIB) == partition

    wait_until(lambda: is_followed(1) and len(service.asked) > 4)
    assert [tag for _, tag in service.asked[:4]] == [None, None, 'W/"1"', 'W/"1"']
    before = route.route
    assert is_followed(1)
    assert route.route is before
    service.say(shares=[3.0, 0.0])
    wait_until(lambda: is_followed(0))


def test_who_sends_nothing_asks_for_nothing(service: Service, follow: Follow, wait_until: WaitUntil) -> None:
    routes = follow()
    idle = routes.add("t", 2)
    service.say(topic="busy")
    busy = routes.add("busy", 2)
    num_idle = sum(path.endswith("/t") for path, _ in service.asked)
    for _ in range(5):
        busy.partition_for(1)
        before = len(service.asked)
        wait_until(lambda before=before: len(service.asked) > before)
    assert sum(path.endswith("/t") for path, _ in service.asked) == num_idle
    assert idle.own_bytes.total_sent == 0


def test_the_service_hears_what_is_sent_and_still_to_come(
    service: Service, follow: Follow, wait_until: WaitUntil
) -> None:
    routes = follow()
    routes.expect("t", 10 * MIB)
    route = routes.add("t", 2)
    route.partition_for(4 * MIB)
    wait_until(lambda: bool(service.reports))
    told = service.reports[-1]
    assert (told["topic"], told["sent_bytes_by_partition"]) == ("t", {"1": 4 * MIB})
    assert told["remaining_bytes"] == 6 * MIB


def test_shares_end_when_the_service_is_gone_for_long_and_it_is_used_when_it_is_back(
    service: Service, follow: Follow, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    service.say(expires_s=0.2, shares=[0.0, 1.0])
    service.age = "0"
    routes = follow()
    route = routes.add("t", 2)
    said, service.answer = service.answer, None

    def is_even() -> bool:
        return goes_to(route) == {0, 1}

    wait_until(lambda: is_even() and routes.num_without_service == 1)
    assert route.route.reason == "expired"
    assert route.num_fallbacks >= 1
    service.answer = said
    service.say(expires_s=30)
    wait_until(lambda: not is_even())
    (gone, back) = [r.getMessage() for r in caplog.records if "collector service" in r.getMessage()]
    assert "has no route for topic t: it answered with status 503: nothing yet; shares are followed" in gone
    assert back.endswith("has a route for topic t again")


def test_a_topic_that_is_refused_keeps_no_other_from_its_route(
    service: Service, follow: Follow, wait_until: WaitUntil
) -> None:
    routes = follow()
    service.say(topic="good")
    bad = routes.add("bad", 2)  # it is answered about another
    good = routes.add("good", 2)
    assert goes_to(bad) == {0, 1}
    assert goes_to(good) == {1}
    service.say(shares=[1.0, 0.0])
    wait_until(lambda: good.partition_for(MIB) == 0 and bad.partition_for(MIB) in (0, 1))
    assert routes.num_without_service == 1


def test_a_route_that_is_over_already_is_refused_and_not_asked_for_without_pause(
    service: Service, follow: Follow, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_routes, "_BACKOFF_MAX_S", 30.0)
    service.age = "31"
    routes = follow()
    route = routes.add("t", 2)
    assert goes_to(route) == {0, 1}
    wait_until(lambda: routes.num_without_service == 1)
    num_asked = len(service.asked)
    for _ in range(100):
        route.partition_for(4 * MIB)
    assert len(service.asked) - num_asked <= 1


def test_a_topic_with_long_pauses_keeps_its_route(
    service: Service, follow: Follow, wait_until: WaitUntil
) -> None:
    service.age = "0"
    service.say(expires_s=0.5)
    route = follow().add("t", 2)
    route.partition_for(MIB)
    num_asked = len(service.asked)
    wait_until(lambda: len(service.asked) > num_asked + 4)  # though nothing is sent
    assert route.partition_for(MIB) == 1
    assert route.num_fallbacks == 0


def test_a_service_that_is_gone_for_days_is_still_asked_now_and_then(follow: Follow) -> None:
    (service,) = follow("http://127.0.0.1:1")._services
    for _ in range(5000):
        service.miss(1000.0)
    assert 1000.0 < service.retry_at_s <= 1000.0 + followed_routes._BACKOFF_MAX_S


def test_without_a_service_from_the_start_shares_are_even(follow: Follow) -> None:
    routes = follow("http://127.0.0.1:1")
    route = routes.add("t", 2)
    assert goes_to(route) == {0, 1}
    assert routes.num_without_service == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        {"shares": [0.0, 0.0]},
        {"shares": [-1.0, 2.0]},
        {"shares": [float("nan"), 1.0]},
        {"shares": "many"},
        {"schema_version": 2},
        {"topic": "another"},
        {"expires_s": 1e9},
    ],
)
def test_nonsense_is_refused_and_the_route_stays(
    service: Service, follow: Follow, wait_until: WaitUntil, nonsense: dict[str, Any]
) -> None:
    routes = follow()
    route = routes.add("t", 2)
    service.say(**nonsense)

    def is_refused() -> bool:
        assert route.partition_for(MIB) == 1
        return routes.num_without_service == 1

    wait_until(is_refused)
    assert route.partition_for(MIB) == 1


@pytest.mark.parametrize("age", [None, "-1", "nan", "a while", "1e9"])
def test_a_route_without_an_age_that_can_be_is_refused(
    service: Service, follow: Follow, age: str | None
) -> None:
    service.age = age
    routes = follow()
    route = routes.add("t", 2)
    assert goes_to(route) == {0, 1}
    assert routes.num_without_service == 1


def test_a_reason_for_having_no_shares_is_a_fallback(service: Service, follow: Follow) -> None:
    service.age = None
    service.say(shares=[], reason="unknown_topic")
    routes = follow()
    route = routes.add("t", 2)
    assert goes_to(route) == {0, 1}
    assert (route.route.reason, routes.num_without_service) == ("unknown_topic", 0)


def test_routes_of_another_cluster_are_never_used(follow: Follow, caplog: pytest.LogCaptureFixture) -> None:
    routes = follow(cluster_id="another")
    route = routes.add("t", 2)
    assert goes_to(route) == {0, 1}
    (said,) = [r.getMessage() for r in caplog.records if "collector service" in r.getMessage()]
    assert "it measures cluster 'ours', but the producer writes to cluster 'another'" in said


def test_of_two_services_the_other_is_asked_when_one_fails_and_both_are_told(
    services: list[Service], follow: Follow, wait_until: WaitUntil
) -> None:
    services[1].say(shares=[1.0, 0.0])
    routes = follow(f"{services[0].url},{services[1].url}")
    route = routes.add("t", 2)
    assert route.partition_for(MIB) == 1
    wait_until(lambda: all(service.reports for service in services))
    services[0].answer = None
    wait_until(lambda: route.partition_for(MIB) == 0)
    assert routes.num_without_service == 0


def test_added_partitions_are_used_once_the_client_knows_them(
    service: Service, follow: Follow, wait_until: WaitUntil
) -> None:
    routes = follow(num_known=3)
    route = routes.add("t", 2)
    service.say(shares=[0.0, 0.0, 1.0])
    wait_until(lambda: route.partition_for(MIB) == 2)
    routes.recount(route, 2)
    assert route.partition_for(MIB) < 2
    wait_until(lambda: route.partition_for(MIB) == 2)


def test_nothing_is_left_of_it_when_it_is_closed(follow: Follow) -> None:
    routes = follow()
    routes.add("t", 2)
    routes.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "evenload-routing"]


def test_who_follows_routes_loads_neither_a_solver_nor_another_kafka_client() -> None:
    probe = (
        "import sys; from evenload import BalancedProducer\n"
        "from evenload.kafka_plugin.routing.followed_routes import FollowedRoutes\n"
        "producer = BalancedProducer({'bootstrap.servers': '127.0.0.1:1', 'log_level': 0})\n"
        "producer.produce('t', b'x'); producer.purge(); producer.poll(0); producer.close()\n"
        "print([name for name in ('aiohttp', 'kafka', 'numpy', 'scipy') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", probe],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env={"EVENLOAD_COLLECTOR_URL": "http://127.0.0.1:1"},
    ).stdout
    assert printed.strip() == "[]"
