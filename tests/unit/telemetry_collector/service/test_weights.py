"""Weights at the collector service: who may change them, what is refused, and the file that keeps them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from evenload.kafka_connection import Connection
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.collector import Collector
from evenload.telemetry_collector.service.collector_service import CollectorService
from evenload.telemetry_collector.service.config import ServiceConfig
from evenload.telemetry_collector.testing import FakeCluster
from evenload.telemetry_collector.weights import Weights
from evenload.telemetry_collector.weights_file import WeightsFile

CONNECTION = Connection(bootstrap_servers="127.0.0.1:1")
SELDOM = CollectorConfig(
    interval_s=3600.0, full_interval_s=3600.0, age_max_s=10_000.0, deadline_s=60.0, full_deadline_s=60.0
)
TOKEN = {"Authorization": "Bearer secret"}
CONFIG = ServiceConfig(operate_token=SecretStr("secret"), weights_poll_s=0.05)

# What conftest.py makes.
Serving = Callable[..., Any]
Run = Callable[[Callable[[], Awaitable[None]]], None]
NewCluster = Callable[[], FakeCluster]


def test_weights_are_changed_with_the_token_and_told_to_all(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving() as served:
            assert await (await served.client.get("/v1/weights")).json() == {}
            assert (await served.snapshot()).weights is None
            document = {"goals": {"disk_usage": 2.0}, "brokers": {"2": 0.0}}
            changed = await served.client.put("/v1/weights", json=document, headers=TOKEN)
            assert changed.status == 200
            assert await (await served.client.get("/v1/weights")).json() == document
            weights = Weights(goals={"disk_usage": 2.0}, brokers={2: 0.0})
            assert (await served.snapshot()).weights == weights

    run(test)


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
def test_bad_weights_are_refused_and_the_old_ones_stay(
    content: str, sentence: str, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            await served.client.put("/v1/weights", json={"brokers": {"1": 0.5}}, headers=TOKEN)
            refused = await served.client.put("/v1/weights", data=content, headers=TOKEN)
            said = await served.error(refused, 400)
            assert sentence in said
            assert said.endswith("the weights in force are kept")
            assert await (await served.client.get("/v1/weights")).json() == {"brokers": {"1": 0.5}}

    run(test)


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Basic secret", "Bearer s\udce9cret", "secret"]
)
def test_weights_are_not_changed_without_the_token(
    authorization: str | None, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving() as served:
            headers = {} if authorization is None else {"Authorization": authorization}
            refused = await served.client.put("/v1/weights", json={}, headers=headers)
            assert "Authorization: Bearer TOKEN" in await served.error(refused, 401)

    run(test)


def test_a_service_without_a_token_lets_nobody_change_weights(serving: Serving, run: Run) -> None:
    async def test() -> None:
        async with serving(ServiceConfig()) as served:
            refused = await served.client.put("/v1/weights", json={}, headers={"Authorization": "Bearer "})
            assert "started without a token" in await served.error(refused, 403)

    run(test)


def test_an_empty_token_that_everybody_would_know_is_refused() -> None:
    with pytest.raises(ValueError, match="token"):
        ServiceConfig(operate_token=SecretStr(""))


def test_weights_are_kept_in_a_file_and_follow_it_when_it_is_edited(
    tmp_path: Path, serving: Serving, run: Run
) -> None:
    path = tmp_path / "weights.json"

    async def test() -> None:
        async with serving(weights_path=path) as served:
            await served.client.put("/v1/weights", json={"brokers": {"1": 0.5}}, headers=TOKEN)
        async with serving(weights_path=path) as served:
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

    run(test)


def test_weights_that_were_set_while_the_file_was_looked_at_stay_in_force(
    tmp_path: Path, run: Run, new_cluster: NewCluster
) -> None:
    looking, may_go_on = threading.Semaphore(0), threading.Semaphore(1)

    class SlowFile(WeightsFile):
        def latest(self) -> Weights | None:
            found = super().latest()
            looking.release()
            assert may_go_on.acquire(timeout=60)
            return found

    async def test() -> None:
        weights_file = SlowFile(tmp_path / "weights.json")
        with Collector(CONNECTION, SELDOM, [], sources=new_cluster().sources()) as collector:
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

    run(test)


def test_weights_that_can_not_be_kept_are_not_put_in_force(
    tmp_path: Path, serving: Serving, run: Run
) -> None:
    async def test() -> None:
        async with serving(weights_path=tmp_path / "gone" / "weights.json") as served:
            refused = await served.client.put("/v1/weights", json={"brokers": {"1": 0}}, headers=TOKEN)
            assert "they can't be kept (No such file or directory)" in await served.error(refused, 500)
            assert served.service.weights is None

    run(test)
