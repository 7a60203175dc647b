"""What the collector service says about brokers and topics, how old it is, and how often it is made."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import ClusterSnapshot, CollectorConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.reports import Intent
from evenload.telemetry_collector.service.answers import Answers
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.service.wire import decode_answer
from evenload.telemetry_collector.testing import FakeCluster, FakeSource, make_snapshot

CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
SELDOM = CollectorConfig(
    interval_s=3600.0, full_interval_s=3600.0, age_max_s=10_000.0, deadline_s=60.0, full_deadline_s=60.0
)

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]
NewCluster = Callable[[], FakeCluster]
Clock = Any


def test_totals_of_brokers_need_no_topic_and_topics_come_when_they_are_named(
    serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            totals = (await served.snapshot()).snapshot
            assert {b: broker.used_bytes for b, broker in totals.brokers.items()} == {1: 100, 2: 200, 3: 300}
            assert totals.topics == {}
            assert totals.cluster_id == "test-cluster"
            named = (await served.snapshot("?topics=clicks")).snapshot
            assert set(named.topics) == {"clicks"}
            assert named.brokers[2].bytes_by_topic_partition["clicks", 0] == 7  # type: ignore[index]
            await served.snapshot("?topics=views")
            assert set((await served.snapshot("?topics=*")).snapshot.topics) == {"clicks", "views"}

    run(test)


def test_what_has_not_changed_is_not_sent_again_and_what_was_said_since_is(
    serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            tag = (await served.client.get("/v1/snapshot")).headers["ETag"]
            again = await served.client.get("/v1/snapshot", headers={"If-None-Match": tag})
            assert again.status == 304
            assert await again.read() == b""
            intent = Intent(load="l", topic="t", bytes_by_broker={1: 10})
            await served.client.put("/v1/intents", data=intent.model_dump_json())
            changed = await served.client.get("/v1/snapshot", headers={"If-None-Match": tag})
            assert changed.status == 200
            served.cluster.snapshot = make_snapshot([101, 200, 300])
            tag = changed.headers["ETag"]
            measured = await served.client.get("/v1/snapshot?max_age_s=0", headers={"If-None-Match": tag})
            assert measured.status == 200

    run(test)


def test_a_snapshot_is_encoded_once_for_all_who_ask_for_the_same(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            await served.snapshot("?topics=clicks,views")
            before = served.service.answers.num_encoded
            queries = ["?topics=views,clicks", "?topics=clicks,views"] * 10
            await asyncio.gather(*map(served.snapshot, queries))
            assert served.service.answers.num_encoded == before

    run(test)


def test_nothing_is_kept_of_an_older_snapshot_though_nobody_asks_for_the_same_again(run: Run) -> None:
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

    run(test)


def test_an_answer_is_compressed_for_whoever_takes_it_and_says_the_same(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            plain = await served.client.get("/v1/snapshot", headers={"Accept-Encoding": "identity"})
            assert "Content-Encoding" not in plain.headers
            packed = await served.client.get(
                "/v1/snapshot", headers={"Accept-Encoding": "gzip"}, auto_decompress=False
            )
            assert packed.headers["Content-Encoding"] == "gzip"
            unpacked = decode_answer(gzip.decompress(await packed.read()))
            assert unpacked.snapshot == decode_answer(await plain.read()).snapshot

    run(test)


def test_the_age_is_counted_to_the_requests_arrival(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            first = await served.snapshot()
            assert first.age_s >= 0
            assert (await served.snapshot()).age_s > first.age_s
            assert (await served.snapshot("?max_age_s=0")).age_s <= 0  # measured while it waited

    run(test)


def test_many_who_want_it_measured_anew_share_measurements(run: Run, new_cluster: NewCluster) -> None:
    async def test() -> None:
        cluster = new_cluster()
        layout, log_dirs = cluster.sources()
        with Collector(CONNECTION, SELDOM, [], sources=[layout, log_dirs]) as collector:
            await asyncio.to_thread(collector.snapshot)
            service = CollectorService(collector, ServiceConfig(measure_wait_s=60.0))
            assert isinstance(log_dirs, FakeSource)
            before = len(log_dirs.questions)
            await asyncio.gather(*(service.measure() for _ in range(100)))
            assert len(log_dirs.questions) - before <= 3 * 3  # brokers, times two or three measurements

    run(test)


def test_brokers_that_do_not_answer_keep_nobody_waiting_for_long(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(ServiceConfig(measure_wait_s=0.2)) as served:
            served.cluster.paused |= {1, 2, 3}
            answer = await served.snapshot("?topics=clicks")
            assert answer.snapshot.topics == {}

    run(test)


def test_topics_nobody_asks_for_any_more_are_not_measured_any_more(
    clock: Clock, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving(clock=clock) as served:
            await served.snapshot("?topics=clicks,views")
            clock.now_s += served.service.config.topic_lifetime_s - 1
            await served.snapshot("?topics=views")
            clock.now_s += 2
            while "clicks" in served.service.collector._topics:  # type: ignore[operator]
                await asyncio.sleep(0.01)
            assert served.service.collector._topics == {"views"}

    run(test)


def test_more_topics_than_are_measured_for_others_are_refused(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(ServiceConfig(topics_max=2, measure_wait_s=0.1)) as served:
            assert "3 of them are more" in await served.error(
                await served.client.get("/v1/snapshot?topics=a,b,c"), 400
            )
            await served.snapshot("?topics=clicks,views")
            refused = await served.client.get("/v1/snapshot?topics=clicks,more")
            assert await served.error(refused, 429) == (
                "2 topics are measured at most, and others need them; ask for fewer"
            )

    run(test)


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
def test_a_question_that_makes_no_sense_is_refused(
    query: str, sentence: str, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            assert sentence in await served.error(await served.client.get(f"/v1/snapshot{query}"), 400)

    run(test)
