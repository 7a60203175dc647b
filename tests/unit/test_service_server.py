"""What the collector service answers, to those who ask properly and to those who don't."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from kafka_connection import Connection
from telemetry_collector import ClusterSnapshot, CollectorConfig
from telemetry_collector.collector import Collector
from telemetry_collector.reports import Intent, RouteReport
from telemetry_collector.service.answers import Answers
from telemetry_collector.service.collector_service import CollectorService
from telemetry_collector.service.config import ServiceConfig
from telemetry_collector.service.server import SERVICE, make_app
from telemetry_collector.service.wire import CLIENT_HEADER, SnapshotAnswer, decode_answer
from telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot
from telemetry_collector.weights import Weights
from telemetry_collector.weights_file import WeightsFile

CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
SELDOM = CollectorConfig(interval_s=600.0, full_interval_s=600.0, age_max_s=1000.0, deadline_s=0.2)
TOKEN = {"Authorization": "Bearer secret"}
CONFIG = ServiceConfig(token=SecretStr("secret"), measure_wait_s=0.5, weights_poll_s=0.05)

Client = TestClient[web.Request, web.Application]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Served:
    """A service before brokers that are made up, and a client of it."""

    def __init__(self, cluster: FakeCluster, service: CollectorService, client: Client) -> None:
        self.cluster = cluster
        self.service = service
        self.client = client

    async def snapshot(self, query: str = "", **headers: str) -> SnapshotAnswer:
        response = await self.client.get(f"/v1/snapshot{query}", headers=headers)
        assert response.status == 200, await response.text()
        return decode_answer(await response.read())


def _cluster() -> FakeCluster:
    topics = {"clicks": [(1, 2), (2, 3)], "views": [(3, 1)]}
    return FakeCluster(make_snapshot([100, 200, 300], topics=topics, stored_bytes={("clicks", 0): 7}))


@asynccontextmanager
async def _serving(
    config: ServiceConfig = CONFIG,
    *,
    cluster: FakeCluster | None = None,
    weights_path: Path | None = None,
    clock: Callable[[], float] | None = None,
    is_measured: bool = True,
    more_routes: tuple[web.RouteDef, ...] = (),
) -> AsyncIterator[Served]:
    cluster = cluster or _cluster()
    collector = Collector(CONNECTION, SELDOM, [], sources=cluster.sources())
    more: dict[str, Any] = {} if clock is None else {"clock": clock}
    weights_file = WeightsFile(weights_path) if weights_path is not None else None
    with collector:
        if is_measured:
            await asyncio.to_thread(collector.snapshot)
        service = CollectorService(collector, config, weights_file=weights_file, **more)
        async with TestClient(TestServer(make_app(service, more_routes))) as client:
            house = asyncio.create_task(service.keep_house())
            yield Served(cluster, service, client)
            house.cancel()


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))  # type: ignore[arg-type]


async def _error(response: ClientResponse, status: int) -> str:
    document = json.loads(await response.read())
    assert response.status == status
    assert list(document) == ["error"]
    return str(document["error"])


# Snapshots.


def test_totals_of_brokers_need_no_topic_and_topics_come_when_they_are_named() -> None:
    async def test() -> None:
        async with _serving() as served:
            totals = (await served.snapshot()).snapshot
            assert {b: broker.used_bytes for b, broker in totals.brokers.items()} == {1: 100, 2: 200, 3: 300}
            assert totals.topics == {}
            assert totals.cluster_id == "test-cluster"
            named = (await served.snapshot("?topics=clicks")).snapshot
            assert set(named.topics) == {"clicks"}
            assert named.brokers[2].bytes_by_topic_partition["clicks", 0] == 7  # type: ignore[index]
            await served.snapshot("?topics=views")
            assert set((await served.snapshot("?topics=*")).snapshot.topics) == {"clicks", "views"}

    _run(test)


def test_what_has_not_changed_is_not_sent_again_and_what_was_said_since_is() -> None:
    async def test() -> None:
        async with _serving() as served:
            tag = (await served.client.get("/v1/snapshot")).headers["ETag"]
            again = await served.client.get("/v1/snapshot", headers={"If-None-Match": tag})
            assert again.status == 304
            assert await again.read() == b""
            await served.client.put("/v1/intents", data=_intent("l").model_dump_json())
            changed = await served.client.get("/v1/snapshot", headers={"If-None-Match": tag})
            assert changed.status == 200
            served.cluster.snapshot = make_snapshot([101, 200, 300])
            tag = changed.headers["ETag"]
            measured = await served.client.get("/v1/snapshot?max_age_s=0", headers={"If-None-Match": tag})
            assert measured.status == 200

    _run(test)


def test_a_snapshot_is_encoded_once_for_all_who_ask_for_the_same() -> None:
    async def test() -> None:
        async with _serving() as served:
            await served.snapshot("?topics=clicks,views")
            before = served.service.answers.num_encoded
            queries = ["?topics=views,clicks", "?topics=clicks,views"] * 10
            await asyncio.gather(*map(served.snapshot, queries))
            assert served.service.answers.num_encoded == before

    _run(test)


def test_nothing_is_kept_of_an_older_snapshot_though_nobody_asks_for_the_same_again() -> None:
    class Watched(ClusterSnapshot):  # the class itself has slots, and none for weak references
        pass

    def made() -> ClusterSnapshot:
        snapshot = make_snapshot([1])
        return Watched(**{field.name: getattr(snapshot, field.name) for field in fields(snapshot)})

    async def test() -> None:
        answers = Answers(max_sets=64)
        older = made()
        is_kept = weakref.ref(older)
        await answers.encoded(older, frozenset({"clicks"}))
        del older
        await answers.encoded(made(), frozenset({"views"}))
        gc.collect()
        assert is_kept() is None

    _run(test)


def test_an_answer_is_compressed_for_whoever_takes_it_and_says_the_same() -> None:
    async def test() -> None:
        async with _serving() as served:
            plain = await served.client.get("/v1/snapshot", headers={"Accept-Encoding": "identity"})
            assert "Content-Encoding" not in plain.headers
            packed = await served.client.get(
                "/v1/snapshot", headers={"Accept-Encoding": "gzip"}, auto_decompress=False
            )
            assert packed.headers["Content-Encoding"] == "gzip"
            unpacked = decode_answer(gzip.decompress(await packed.read()))
            assert unpacked.snapshot == decode_answer(await plain.read()).snapshot

    _run(test)


def test_the_age_is_counted_to_the_requests_arrival() -> None:
    async def test() -> None:
        async with _serving() as served:
            first = await served.snapshot()
            assert 0 <= first.age_s < 10
            assert (await served.snapshot()).age_s > first.age_s
            assert (await served.snapshot("?max_age_s=0")).age_s <= 0  # measured while it waited

    _run(test)


def test_many_who_want_it_measured_anew_share_measurements() -> None:
    async def test() -> None:
        cluster = _cluster()
        layout, log_dirs = cluster.sources()
        with Collector(CONNECTION, SELDOM, [], sources=[layout, log_dirs]) as collector:
            await asyncio.to_thread(collector.snapshot)
            service = CollectorService(collector, CONFIG)
            assert isinstance(log_dirs, FakeSource)
            before = len(log_dirs.questions)
            await asyncio.gather(*(service.measure() for _ in range(100)))
            assert len(log_dirs.questions) - before <= 3 * 3  # brokers, times two or three measurements

    _run(test)


def test_brokers_that_do_not_answer_keep_nobody_waiting_for_long() -> None:
    async def test() -> None:
        async with _serving(ServiceConfig(measure_wait_s=0.2)) as served:
            served.cluster.paused |= {1, 2, 3}
            answer = await served.snapshot("?topics=clicks")
            assert answer.snapshot.topics == {}

    _run(test)


def test_topics_nobody_asks_for_any_more_are_not_measured_any_more() -> None:
    async def test() -> None:
        clock = Clock()
        async with _serving(clock=clock) as served:
            await served.snapshot("?topics=clicks,views")
            clock.now_s += CONFIG.topic_lifetime_s - 1
            await served.snapshot("?topics=views")
            clock.now_s += 2
            while "clicks" in served.service.collector._topics:  # type: ignore[operator]
                await asyncio.sleep(0.01)
            assert served.service.collector._topics == {"views"}

    _run(test)


def test_more_topics_than_are_measured_for_others_are_refused() -> None:
    async def test() -> None:
        async with _serving(ServiceConfig(topics_max=2, measure_wait_s=0.1)) as served:
            assert "3 of them are more" in await _error(
                await served.client.get("/v1/snapshot?topics=a,b,c"), 400
            )
            await served.snapshot("?topics=clicks,views")
            refused = await served.client.get("/v1/snapshot?topics=clicks,more")
            assert await _error(refused, 429) == (
                "2 topics are measured already, and no more are; ask for fewer"
            )

    _run(test)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("?max_age_s=soon", "max_age_s: 'soon' is not a number of seconds from 0 on"),
        ("?max_age_s=-1", "max_age_s: '-1' is not"),
        ("?max_age_s=nan", "max_age_s: 'nan' is not"),
        ("?topics=" + 250 * "x", "can't be a topic's name"),
        ("?topics=a%00b", "can't be a topic's name"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(query: str, sentence: str) -> None:
    async def test() -> None:
        async with _serving() as served:
            assert sentence in await _error(await served.client.get(f"/v1/snapshot{query}"), 400)

    _run(test)


# Health.


def test_it_is_ready_when_there_is_a_fresh_snapshot_and_says_why_it_is_not() -> None:
    async def test() -> None:
        cluster = _cluster()
        cluster.killed |= {1, 2, 3}
        async with _serving(cluster=cluster, is_measured=False) as served:
            assert (await served.client.get("/healthz")).status == 200
            await asyncio.sleep(0.05)
            sentence = "nothing has been measured yet; cluster_metadata: connection refused"
            assert await _error(await served.client.get("/readyz"), 503) == sentence
            assert await _error(await served.client.get("/v1/snapshot"), 503) == sentence
            cluster.killed.clear()
            served.service.collector.refresh()
            while (await served.client.get("/readyz")).status != 200:
                await asyncio.sleep(0.01)

    _run(test)


# Weights.


def test_weights_are_changed_with_the_token_and_told_to_all() -> None:
    async def test() -> None:
        async with _serving() as served:
            assert await (await served.client.get("/v1/weights")).json() == {}
            assert (await served.snapshot()).weights is None
            document = {"goals": {"disk_usage": 2.0}, "brokers": {"2": 0.0}}
            changed = await served.client.put("/v1/weights", json=document, headers=TOKEN)
            assert changed.status == 200
            assert await (await served.client.get("/v1/weights")).json() == document
            weights = Weights(goals={"disk_usage": 2.0}, brokers={2: 0.0})
            assert (await served.snapshot()).weights == weights

    _run(test)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"goals": {"disk_usage": -1}}', "goals.disk_usage: Input should be greater than or equal to 0"),
        ('{"brokers": {"1": 1.5}}', "less than or equal to 1"),
        ('{"brokers": {"2147483648": 0.5}}', "less than 2147483648"),
        ('{"brokers": {"-1": 0.5}}', "greater than or equal to 0"),
        ('{"brokers": {"1": NaN}}', "finite"),
        ('{"more": 1}', "more: Extra inputs are not permitted"),
        ("[" * 5000, "Invalid JSON"),
        ("", "Invalid JSON"),
    ],
)
def test_bad_weights_are_refused_and_the_old_ones_stay(content: str, sentence: str) -> None:
    async def test() -> None:
        async with _serving() as served:
            await served.client.put("/v1/weights", json={"brokers": {"1": 0.5}}, headers=TOKEN)
            refused = await served.client.put("/v1/weights", data=content, headers=TOKEN)
            said = await _error(refused, 400)
            assert sentence in said
            assert said.endswith("the weights in force are kept")
            assert await (await served.client.get("/v1/weights")).json() == {"brokers": {"1": 0.5}}

    _run(test)


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Basic secret", "Bearer s\udce9cret", "secret"]
)
def test_weights_are_not_changed_without_the_token(authorization: str | None) -> None:
    async def test() -> None:
        async with _serving() as served:
            headers = {} if authorization is None else {"Authorization": authorization}
            refused = await served.client.put("/v1/weights", json={}, headers=headers)
            assert "Authorization: Bearer TOKEN" in await _error(refused, 401)

    _run(test)


def test_a_service_without_a_token_lets_nobody_change_weights() -> None:
    async def test() -> None:
        async with _serving(ServiceConfig()) as served:
            refused = await served.client.put("/v1/weights", json={}, headers={"Authorization": "Bearer "})
            assert "started without a token" in await _error(refused, 403)

    _run(test)


def test_weights_are_kept_in_a_file_and_follow_it_when_it_is_edited(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"

    async def test() -> None:
        async with _serving(weights_path=path) as served:
            await served.client.put("/v1/weights", json={"brokers": {"1": 0.5}}, headers=TOKEN)
        async with _serving(weights_path=path) as served:
            assert served.service.weights == Weights(brokers={1: 0.5})
            path.write_text('{"brokers": {"1": 0.25}}')
            while served.service.weights != Weights(brokers={1: 0.25}):
                await asyncio.sleep(0.01)
            path.write_text("{")
            weights_file = served.service._weights_file
            assert weights_file is not None
            while weights_file.complaint is None:
                await asyncio.sleep(0.01)
            assert served.service.weights == Weights(brokers={1: 0.25})
            assert [child.name for child in tmp_path.iterdir()] == ["weights.json"]

    _run(test)


def test_weights_that_were_set_while_the_file_was_looked_at_stay_in_force(tmp_path: Path) -> None:
    looking, may_go_on = threading.Semaphore(0), threading.Semaphore(1)

    class SlowFile(WeightsFile):
        def latest(self) -> Weights | None:
            found = super().latest()
            looking.release()
            assert may_go_on.acquire(timeout=10)
            return found

    async def test() -> None:
        weights_file = SlowFile(tmp_path / "weights.json")
        with Collector(CONNECTION, SELDOM, [], sources=_cluster().sources()) as collector:
            service = CollectorService(collector, CONFIG, weights_file=weights_file)
            looking.acquire()
            house = asyncio.create_task(service.keep_house())
            await asyncio.to_thread(looking.acquire)
            setting = asyncio.create_task(service.set_weights(Weights(brokers={1: 0.5})))
            await asyncio.wait([setting], timeout=0.1)
            may_go_on.release()
            await setting
            await asyncio.to_thread(looking.acquire)
            assert service.weights == Weights(brokers={1: 0.5})
            may_go_on.release()
            house.cancel()

    _run(test)


def test_weights_that_can_not_be_kept_are_not_put_in_force(tmp_path: Path) -> None:
    async def test() -> None:
        async with _serving(weights_path=tmp_path / "gone" / "weights.json") as served:
            refused = await served.client.put("/v1/weights", json={"brokers": {"1": 0}}, headers=TOKEN)
            assert "they can't be kept (No such file or directory)" in await _error(refused, 500)
            assert served.service.weights is None

    _run(test)


# Intents and reports.


def _intent(load: str, size_bytes: int = 10, lifetime_s: float = 60.0) -> Intent:
    return Intent(load=load, topic="t", bytes_by_broker={1: size_bytes}, lifetime_s=lifetime_s)


def test_what_loads_announce_is_told_to_all_until_it_expires() -> None:
    async def test() -> None:
        clock = Clock()
        async with _serving(clock=clock) as served:
            for intent in (_intent("a", 5), _intent("a", 10), _intent("b", 20), _intent("c", 30, 600.0)):
                told = await served.client.put("/v1/intents", data=intent.model_dump_json())
                assert told.status == 204
            assert (await served.client.delete("/v1/intents?load=b")).status == 204
            assert (await served.snapshot()).announced == {1: 40}
            clock.now_s += 60.0
            assert (await served.snapshot()).announced == {1: 30}

    _run(test)


def test_who_asks_may_leave_out_loads_of_its_own() -> None:
    async def test() -> None:
        async with _serving() as served:
            for intent in (_intent("a", 5), _intent("b, c", 20), _intent("d", 100)):
                await served.client.put("/v1/intents", data=intent.model_dump_json())
            for query, left in (("", 125), ("?without=b%2C+c", 105), ("?without=a&without=d&without=e", 20)):
                assert (await served.snapshot(query)).announced == {1: left}
            assert (await served.snapshot("?without=a&without=a&without=b,+c&without=d")).announced == {}

    _run(test)


def test_loads_that_announce_more_than_there_is_do_not_make_answers_unreadable() -> None:
    async def test() -> None:
        async with _serving() as served:
            for number in range(20):
                told = _intent(f"load {number}", 1 << 60).model_dump_json()
                assert (await served.client.put("/v1/intents", data=told)).status == 204
            assert (await served.snapshot()).announced[1] >= 1 << 60

    _run(test)


def test_more_loads_than_are_counted_are_refused_and_one_that_is_counted_is_not() -> None:
    async def test() -> None:
        async with _serving(ServiceConfig(intents_max=2)) as served:
            statuses = [
                (await served.client.put("/v1/intents", data=_intent(load).model_dump_json())).status
                for load in ("a", "b", "c", "a")
            ]
            assert statuses == [204, 204, 429, 204]

    _run(test)


@pytest.mark.parametrize(
    ("path", "content", "sentence"),
    [
        ("intents", "x", "Invalid JSON"),
        ("intents", '{"load": "a", "topic": "t", "bytes_by_broker": {"1": -1}}', "bytes_by_broker.1"),
        ("intents", '{"load": "a", "topic": "t", "bytes_by_broker": {"1": 9' + 30 * "0" + "}}", "bytes_by"),
        ("intents", '{"load": "a", "topic": "t", "bytes_by_broker": {"2147483648": 1}}', "broker's id"),
        ("reports", "{}", "valid array"),
        ("reports", '[{"producer": "p"}]', "0.topic: Field required"),
    ],
)
def test_what_can_not_be_is_not_taken(path: str, content: str, sentence: str) -> None:
    async def test() -> None:
        async with _serving() as served:
            assert sentence in await _error(await served.client.put(f"/v1/{path}", data=content), 400)
            assert not served.service.intents
            assert not served.service.reports

    _run(test)


def _reports(*reports: RouteReport) -> str:
    return "[" + ",".join(report.model_dump_json() for report in reports) + "]"


def test_routes_that_producers_report_are_kept_for_a_while_and_their_fallbacks_add_up() -> None:
    async def test() -> None:
        clock = Clock()
        async with _serving(clock=clock) as served:
            for producer, num_fallbacks in (("p", 2), ("p", 5), ("q", 1), ("p", 3)):
                report = RouteReport(
                    producer=producer,
                    topic="t",
                    shares={0: 1.0},
                    num_fallbacks=num_fallbacks,
                    put_aside={"moody": "it raised"},
                )
                assert (await served.client.put("/v1/reports", data=_reports(report))).status == 204
            assert {report.producer: report.num_fallbacks for report in served.service.reports} == {
                "p": 3,
                "q": 1,
            }
            metrics = await _metrics(served)
            assert metrics["evenload_route_fallbacks_total", ()] == 5 + 1 + 3  # p was another one at last
            assert metrics["evenload_function_put_aside_routes", (("function", "moody"),)] == 2
            clock.now_s += CONFIG.report_lifetime_s
            assert served.service.reports == []

    _run(test)


def test_a_large_request_is_refused() -> None:
    async def test() -> None:
        async with _serving(ServiceConfig(body_max_bytes=1024)) as served:
            refused = await served.client.put("/v1/intents", data=b"x" * 2000)
            assert await _error(refused, 413) == "the request is larger than 1024 bytes"

    _run(test)


# All of it.


async def _metrics(served: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = await (await served.client.get("/metrics")).text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_metrics_show_the_brokers_and_the_service() -> None:
    async def test() -> None:
        async with _serving() as served:
            for client in ("a", "b", "a"):
                await served.snapshot(**{CLIENT_HEADER: client})
            await served.client.get("/no/such/page", headers={CLIENT_HEADER: "a"})
            await served.client.put("/v1/intents", data=_intent("l", 10).model_dump_json())
            metrics = await _metrics(served)
            assert metrics["evenload_broker_used_bytes", (("broker_id", "2"),)] == 200
            requests = "evenload_service_requests_total"
            assert metrics[requests, (("route", "/v1/snapshot"), ("status", "200"))] == 3
            assert metrics[requests, (("route", "other"), ("status", "404"))] == 1
            assert metrics["evenload_service_clients", ()] == 3  # with whoever asks for metrics
            assert metrics["evenload_service_loads", ()] == 1
            assert metrics["evenload_broker_announced_bytes", (("broker_id", "1"),)] == 10

    _run(test)


def test_whatever_is_asked_wrongly_is_a_sentence_in_json() -> None:
    async def fails(_: web.Request) -> web.Response:
        raise ZeroDivisionError("a bug")

    async def test() -> None:
        async with _serving(more_routes=(web.get("/fails", fails),)) as served:
            assert "Not Found" in await _error(await served.client.get("/no/such/page"), 404)
            wrong = await served.client.post("/v1/weights")
            assert "POST /v1/weights: Method Not Allowed" in await _error(wrong, 405)
            assert wrong.headers["Allow"] == "GET,HEAD,PUT"
            assert "a fault of the collector service" in await _error(await served.client.get("/fails"), 500)
            assert "load: say whose" in await _error(await served.client.delete("/v1/intents"), 400)

    _run(test)


def test_further_pages_find_the_service() -> None:
    async def page(request: web.Request) -> web.Response:
        latest = request.app[SERVICE].latest
        assert latest is not None
        return web.Response(text=latest.snapshot.cluster_id)

    async def test() -> None:
        async with _serving(more_routes=(web.get("/", page),)) as served:
            assert await (await served.client.get("/")).text() == "test-cluster"

    _run(test)
