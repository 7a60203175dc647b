"""What loads and producers tell the collector service: kept for a while, within bounds, and summed up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evenload.telemetry_collector.reports import Intent, RouteReport
from evenload.telemetry_collector.service.config import ServiceConfig

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]
Clock = Any


def _intent(load: str, size_bytes: int = 10, lifetime_s: float = 60.0) -> Intent:
    return Intent(load=load, topic="t", bytes_by_broker={1: size_bytes}, lifetime_s=lifetime_s)


def _reports(*reports: RouteReport) -> str:
    return "[" + ",".join(report.model_dump_json() for report in reports) + "]"


def test_what_loads_announce_is_told_to_all_until_it_expires(
    clock: Clock, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving(clock=clock) as served:
            for intent in (_intent("a", 5), _intent("a", 10), _intent("b", 20), _intent("c", 30, 600.0)):
                told = await served.client.put("/v1/intents", data=intent.model_dump_json())
                assert told.status == 204
            assert (await served.client.delete("/v1/intents?load=b")).status == 204
            assert (await served.snapshot()).announced == {1: 40}
            clock.now_s += 60.0
            assert (await served.snapshot()).announced == {1: 30}

    run(test)


def test_who_asks_may_leave_out_loads_of_its_own(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            for intent in (_intent("a", 5), _intent("b, c", 20), _intent("d", 100)):
                await served.client.put("/v1/intents", data=intent.model_dump_json())
            for query, left in (("", 125), ("?without=b%2C+c", 105), ("?without=a&without=d&without=e", 20)):
                assert (await served.snapshot(query)).announced == {1: left}
            assert (await served.snapshot("?without=a&without=a&without=b,+c&without=d")).announced == {}

    run(test)


def test_loads_that_announce_more_than_there_is_do_not_make_answers_unreadable(
    serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            for number in range(20):
                told = _intent(f"load {number}", 1_000_000).model_dump_json()
                assert (await served.client.put("/v1/intents", data=told)).status == 204
            assert (await served.snapshot()).announced == {1: 20_000_000}

    run(test)


def test_more_loads_than_are_counted_are_refused_and_one_that_is_counted_is_not(
    serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving(ServiceConfig(intents_max=2)) as served:
            statuses = [
                (await served.client.put("/v1/intents", data=_intent(load).model_dump_json())).status
                for load in ("a", "b", "c", "a")
            ]
            assert statuses == [204, 204, 429, 204]

    run(test)


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
def test_what_can_not_be_is_not_taken(
    path: str, content: str, sentence: str, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            assert sentence in await served.error(await served.client.put(f"/v1/{path}", data=content), 400)
            assert not served.service.intents
            assert not served.service.reports

    run(test)


def test_routes_that_producers_report_are_kept_for_a_while_and_their_fallbacks_add_up(
    clock: Clock, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving(clock=clock) as served:
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
            metrics = await served.metrics()
            assert metrics["evenload_route_fallbacks_total", ()] == 5 + 1 + 3  # p was another one at last
            assert metrics["evenload_function_put_aside_routes", (("function", "moody"),)] == 2
            clock.now_s += served.service.config.report_lifetime_s
            assert served.service.reports == []

    run(test)
