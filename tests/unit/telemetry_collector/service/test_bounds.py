"""What strangers can make a collector service do, hold and say: bounded, whatever they send."""

from __future__ import annotations

import asyncio
import json
import random
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr, TypeAdapter, ValidationError

from evenload.http_edge import bodies
from evenload.http_edge.bodies import objects_bytes
from evenload.router.router import Router
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service import answers as answers_module
from evenload.telemetry_collector.service.answers import Answers
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]
NewCluster = Callable[[], FakeCluster]
Clock = Any

# Nobody measures a fourth time within an hour, and whoever wants that waits for a moment.
THRICE = {"measure_pause_s": 3600.0, "measure_wait_s": 0.2}


def _intent(load: str, **bytes_by_broker: int) -> str:
    by_id = {int(name.removeprefix("b")): size for name, size in bytes_by_broker.items()}
    return Intent(load=load, topic="t", bytes_by_broker=by_id).model_dump_json()


# Measuring.


async def _num_measurements(config: ServiceConfig, cluster: FakeCluster, act: Callable[..., Any]) -> int:
    """How often brokers were measured while something was done to a service, beside once before."""
    from aiohttp.test_utils import TestClient, TestServer

    from evenload.kafka_connection import Connection
    from evenload.telemetry_collector import CollectorConfig
    from evenload.telemetry_collector.service.http.server import make_app

    seldom = CollectorConfig(
        interval_s=3600.0, full_interval_s=3600.0, age_max_s=10_000.0, deadline_s=60.0, full_deadline_s=60.0
    )
    layout, log_dirs = cluster.sources()
    assert isinstance(layout, FakeSource)
    nowhere = Connection(bootstrap_servers="127.0.0.1:1")
    with Collector(nowhere, seldom, [], sources=[layout, log_dirs]) as collector:
        while collector.cache.latest() is None:
            await asyncio.sleep(0.01)
        service = CollectorService(collector, config)
        async with TestClient(TestServer(make_app(service))) as client:  # type: ignore[var-annotated]
            before = len(layout.questions)
            await act(client)
            return len(layout.questions) - before


@pytest.mark.parametrize(
    "paths",
    [
        ["/v1/snapshot?max_age_s=0"] * 10,
        [f"/v1/snapshot?topics=made-up-{number}" for number in range(10)],
        [f"/v1/snapshot?topics=clicks,made-up-{number}&max_age_s=0" for number in range(10)],
    ],
)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_ten_requests_cost_three_measurements_until_the_pause_is_over(
    paths: list[str], is_at_once: bool, run: Run, new_cluster: NewCluster
) -> None:
    async def ask(client: Any) -> None:
        if is_at_once:
            answers = await asyncio.gather(*(client.get(path) for path in paths))
        else:
            answers = [await client.get(path) for path in paths]
        assert {answer.status for answer in answers} == {200}

    async def test() -> None:
        assert 1 <= await _num_measurements(ServiceConfig(**THRICE), new_cluster(), ask) <= 3

    run(test)


def test_who_comes_while_one_is_waited_for_shares_it(run: Run, new_cluster: NewCluster) -> None:
    async def ask(client: Any) -> None:
        answers = await asyncio.gather(*(client.get("/v1/snapshot?max_age_s=0") for _ in range(50)))
        assert all([(await answer.json())["age_s"] <= 0 for answer in answers])

    async def test() -> None:
        config = ServiceConfig(measure_pause_s=0.0, measure_wait_s=60.0)
        assert await _num_measurements(config, new_cluster(), ask) <= 2

    run(test)


def test_a_producer_that_begins_with_a_topic_has_it_measured_without_waiting_for_the_pause(
    run: Run, new_cluster: NewCluster
) -> None:
    async def ask(client: Any) -> None:
        for path in ("/v1/snapshot?topics=clicks", "/v1/snapshot?topics=clicks&max_age_s=0"):
            answer = await (await client.get(path)).json()
            assert answer["age_s"] <= 0
            assert answer["topics"].keys() == {"clicks"}

    async def test() -> None:
        config = ServiceConfig(measure_pause_s=3600.0, measure_wait_s=60.0)
        assert await _num_measurements(config, new_cluster(), ask) == 2

    run(test)


def test_a_measurement_that_nobody_waits_for_any_more_is_still_the_only_one(
    run: Run, new_cluster: NewCluster
) -> None:
    async def test() -> None:
        cluster = new_cluster()

        async def ask(client: Any) -> None:
            cluster.delay_s = {1: 2.0}
            for _ in range(10):
                assert (await client.get("/v1/snapshot?max_age_s=0")).status == 200

        config = ServiceConfig(measure_pause_s=3600.0, measure_wait_s=0.05)
        assert 1 <= await _num_measurements(config, cluster, ask) <= 3

    run(test)


# Topics.


def test_names_that_strangers_make_up_keep_no_topic_out(serving: Serving, run: Run) -> None:
    config = ServiceConfig(topics_max=2000, measure_pause_s=0.0, measure_wait_s=60.0)

    async def test() -> None:
        async with serving(config) as served:
            assert set((await served.snapshot("?topics=clicks")).snapshot.topics) == {"clicks"}
            for number in range(5):
                names = ",".join(f"made-up-{number}-{name}" for name in range(500))
                assert (await served.client.get(f"/v1/snapshot?topics={names}")).status == 200
            for topic in ("views", "clicks"):
                assert set((await served.snapshot(f"?topics={topic}")).snapshot.topics) == {topic}

    run(test)


def test_made_up_names_are_forgotten_soon(clock: Clock, serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(clock=clock) as served:
            await served.snapshot("?topics=clicks,made-up")
            clock.now_s += served.service.config.unknown_topic_lifetime_s
            while "made-up" in served.service.collector._topics:  # type: ignore[operator]
                await asyncio.sleep(0.01)
            assert served.service.collector._topics == {"clicks"}

    run(test)


def test_who_only_reads_takes_no_place_from_those_who_produce(serving: Serving, run: Run) -> None:
    topics = {f"t{number}": [(1,)] for number in range(6)}
    cluster = FakeCluster(make_snapshot([100, 200, 300], topics=topics))
    config = ServiceConfig(
        topics_max=3, ingest_token=SecretStr("to-ingest"), measure_pause_s=0.0, measure_wait_s=60.0
    )
    producer = {"Authorization": "Bearer to-ingest"}

    async def test() -> None:
        async with serving(config, cluster=cluster) as served:
            await served.snapshot("?topics=t0,t1,t2")  # of topics that exist
            for topic in ("t3", "t4"):
                assert set((await served.snapshot(f"?topics={topic}", **producer)).snapshot.topics) == {topic}
            refused = await served.client.get("/v1/snapshot?topics=t0,t1")
            assert "3 topics are measured at most" in await served.error(refused, 429)
            assert {"t3", "t4"} <= served.service.collector._topics  # type: ignore[operator]

    run(test)


# Intents.


@pytest.mark.parametrize("size_bytes", [1_000_001, 1 << 60, 1 << 79])
def test_no_load_writes_more_to_a_broker_than_it_holds(size_bytes: int, serving: Serving, run: Run) -> None:
    cluster = FakeCluster(make_snapshot([100, 100, 100], topics={"t": [(1,), (2,), (3,)]}))

    async def test() -> None:
        async with serving(cluster=cluster) as served:
            told = await served.client.put("/v1/intents", data=_intent("l", b1=size_bytes, b2=size_bytes))
            sentence = "broker 1 holds at most 1000000 bytes, so no load can write"
            assert sentence in await served.error(told, 400)
            answer = await served.snapshot("?topics=t")
            assert answer.announced == {}
            route = Router().route(answer.snapshot, "t", num_partitions=3, remaining_bytes=None, now_s=0.0)
            assert set(route.shares) == {0, 1, 2}  # all brokers are as full as before

    run(test)


def test_a_broker_of_unknown_capacity_is_announced_no_more_than_any_holds(serving: Serving, run: Run) -> None:
    cluster = FakeCluster(make_snapshot([100, 200], None))

    async def test() -> None:
        async with serving(cluster=cluster) as served:
            told = await served.client.put("/v1/intents", data=_intent("l", b1=(1 << 50) + 1))
            await served.error(told, 400)
            assert (await served.client.put("/v1/intents", data=_intent("l", b1=1 << 50))).status == 204

    run(test)


def test_nothing_is_announced_before_anything_is_known(
    serving: Serving, run: Run, new_cluster: NewCluster
) -> None:
    async def test() -> None:
        cluster = new_cluster()
        cluster.killed |= {1, 2, 3}
        async with serving(cluster=cluster, is_measured=False) as served:
            told = await served.client.put("/v1/intents", data=_intent("l", b1=1))
            assert "nothing has been measured yet" in await served.error(told, 503)

    run(test)


def test_clients_hear_of_no_broker_that_is_not_there(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            announced = {f"b{number}": 5 for number in range(1, 1000)}
            assert (await served.client.put("/v1/intents", data=_intent("l", **announced))).status == 204
            assert (await served.snapshot()).announced == {1: 5, 2: 5, 3: 5}
            assert len(served.service.intents[0].bytes_by_broker) == 3

    run(test)


def test_nobody_hears_the_name_of_a_load_which_ends_it(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            await served.client.put("/v1/intents", data=_intent("cola@1/0a1b2c3d4e5f6071", b1=10))
            for path in ("/v1/snapshot?topics=*", "/v1/weights", "/metrics", "/readyz", "/healthz"):
                said = await (await served.client.get(path)).text()
                assert "0a1b2c3d4e5f6071" not in said
            for guess in ("cola", "cola@1", "*", "cola@1/0a1b2c3d4e5f6070"):
                ended = await served.client.delete("/v1/intents", params={"load": guess})
                assert ended.status == 204  # as if it had been one
            assert (await served.snapshot()).announced == {1: 10}

    run(test)


# Bodies.


def _text(count: int) -> dict[str, bytes]:
    """JSON texts that hold much in little."""
    shares = ",".join(f'"{number}":0.5' for number in range(count))
    return {
        "intent": b'{"load":"l","topic":"t","bytes_by_broker":{%s}}'
        % ",".join(f'"{number}":{number}00' for number in range(1000, 1000 + count)).encode(),
        "shares": b'[{"producer":"p","topic":"t","shares":{%s}}]' % shares.encode(),
        "reports": b"[%s]" % b",".join([b'{"producer":"p","topic":"t","shares":{"0":1}}'] * (count // 5)),
        "scores": b'[{"producer":"p","topic":"t","shares":{},"scores":{%s}}]'
        % ",".join(f'"{number}":{{}}' for number in range(count // 2)).encode(),
        "notes": b'[{"producer":"p","topic":"t","shares":{},"notes":[%s]}]' % b",".join([b'""'] * count),
    }


@pytest.mark.parametrize("kind", _text(10))
def test_a_body_counts_as_what_it_takes_in_memory(kind: str) -> None:
    text = _text(20_000)[kind]
    parse = Intent.model_validate_json if kind == "intent" else TypeAdapter(list[RouteReport]).validate_json
    tracemalloc.start()
    try:
        parsed = parse(text)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parsed
    assert taken_bytes <= objects_bytes(text) <= 40 * taken_bytes


@pytest.mark.parametrize("path", ["/v1/intents", "/v1/reports", "/v1/weights"])
def test_more_values_than_are_read_at_a_time_are_refused_before_they_are_parsed(
    path: str, serving: Serving, run: Run
) -> None:
    body = b"[" + b"0," * 200_000 + b"0]"

    async def test() -> None:
        async with serving() as served:
            told = await served.client.put(path, data=body, headers={"Authorization": "Bearer secret"})
            assert "more values than are read at a time" in await served.error(told, 413)

    run(test)


def test_what_is_told_together_is_bounded_by_what_it_takes_in_memory(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            statuses: list[int] = []
            while 429 not in statuses and len(statuses) < 200:
                shares = ",".join(f'"{number}":0' for number in range(50_000))
                body = f'[{{"producer":"p{len(statuses)}","topic":"t","shares":{{{shares}}}}}]'
                statuses.append((await served.client.put("/v1/reports", data=body)).status)
            assert set(statuses[:-1]) == {204}
            assert 5 < len(statuses) < 15

    run(test)


def test_a_wrong_item_ends_the_reading(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            told = await served.client.put("/v1/reports", data=b"[" + b"0," * 50_000 + b"0]")
            assert "0: Input should be" in await served.error(told, 400)

    run(test)


def test_numbers_without_bound_are_refused_and_metrics_can_be_read(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            for field in ("num_fallbacks", "sent_bytes", "remaining_bytes"):
                body = f'[{{"producer":"p","topic":"t","shares":{{}},"{field}":1{"0" * 400}}}]'
                await served.error(await served.client.put("/v1/reports", data=body), 400)
            assert (await served.client.get("/metrics")).status == 200

    run(test)
    with pytest.raises(ValidationError):
        RouteReport(producer="p", topic="t", shares={}, num_fallbacks=1 << 90)


def test_a_compressed_body_is_refused(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            told = await served.client.put(
                "/v1/reports", data=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}
            )
            assert told.status in (400, 415)
            assert not served.service.reports

    run(test)


def test_a_body_that_does_not_arrive_is_waited_for_no_longer(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(ServiceConfig(body_wait_s=0.05)) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
            writer.write(b"PUT /v1/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n[")
            answer = await reader.readuntil(b"}")
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"it didn't arrive within 0.05 s" in answer
            writer.close()

    run(test)


def test_bodies_that_arrive_at_the_same_time_share_the_room(
    serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_ARRIVING_MAX_BYTES", 300_000)
    head = b"PUT /v1/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\n"

    async def test() -> None:
        async with serving(ServiceConfig(body_wait_s=60.0)) as served:
            opened = [await asyncio.open_connection("127.0.0.1", served.client.port) for _ in range(2)]
            for _, writer in opened:
                writer.write(head + b"[" + b" " * 199_000)
                await writer.drain()
            answering = [asyncio.create_task(reader.readuntil(b"}")) for reader, _ in opened]
            done, waiting = await asyncio.wait(answering, return_when=asyncio.FIRST_COMPLETED)
            assert all(b" 503 " in answer.result() for answer in done)
            assert len(done) == len(waiting) == 1
            for (_, writer), task in zip(opened, answering, strict=True):
                if task in waiting:
                    writer.write(b" " * 998 + b"]")
            (last,) = waiting
            last.cancel()
            while (await served.client.put("/v1/reports", data="[]")).status != 204:
                await asyncio.sleep(0.01)
            for _, writer in opened:
                writer.close()

    run(test)


# Answers.


def test_encoded_answers_are_kept_within_bounds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {f"t{number}": [(1, 2)] * 50 for number in range(20)}
    snapshot = make_snapshot([100, 200], topics=topics)
    monkeypatch.setattr(answers_module, "_KEPT_MAX_BYTES", 60_000)
    rng = random.Random(7)

    async def test() -> None:
        answers = Answers(max_sets=64)
        for _ in range(64):
            chosen = frozenset(rng.sample(sorted(topics), 15))
            part = await answers.encoded(snapshot, chosen)
            assert json.loads(b"{" + part.plain)["topics"].keys() == chosen
            kept = [future.result() for future in answers._kept.values()]
            assert sum(len(part.plain) + len(part.deflated) for part in kept) <= 60_000
        before = answers.num_encoded
        await answers.encoded(snapshot, chosen)
        assert answers.num_encoded == before  # the last one is still there

    run(test)
