"""The collector service dies, lies, sleeps or belongs to others while a load runs: the load is whole."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.verify import verify
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import LoaderConfig
from evenload.kafka_plugin.loading import loader
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.telemetry_collector import CollectorConfig
from evenload.telemetry_collector.opening import AnyCollector
from evenload.telemetry_collector.service.client import RemoteCollector
from evenload.telemetry_collector.service.testing import FakeService
from evenload.telemetry_collector.testing import FakeCluster, make_snapshot

NUM_SAMPLES = 6_000
SMALL = LoaderConfig(transaction_bytes=4_000, block_bytes=1_000)
# What is known gets old when a test sets the clock, and no answer is given up because the machine is busy.
SOON = CollectorConfig(
    interval_s=0.2,
    full_interval_s=1.0,
    deadline_s=60.0,
    full_deadline_s=60.0,
    age_max_s=1000.0,
    backoff_initial_s=0.1,
    backoff_max_s=0.3,
)
OLD_S = 600.0

WaitUntil = Callable[[Callable[[], bool]], None]


class Opened:
    """The collectors that loads have opened, what they were at last, and their clock."""

    def __init__(self) -> None:
        self.collectors: list[RemoteCollector] = []
        self.ahead_s = 0.0

    def clock(self) -> float:
        return time.monotonic() + self.ahead_s

    @property
    def latest(self) -> RemoteCollector:
        return self.collectors[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Loads' collectors can be looked at, and have a clock that can be set forward."""
    kept = Opened()

    def keep(connection: Connection, *arguments: Any, **keywords: Any) -> AnyCollector:
        kept.collectors.append(RemoteCollector(connection, *arguments, **keywords, clock=kept.clock))
        return kept.latest

    monkeypatch.setattr(loader, "open_collector", keep)
    monkeypatch.setattr(loader, "_COLLECTING", SOON)
    return kept


@pytest.fixture
def real_service(connection: Connection, wait_until: WaitUntil) -> Iterator[FakeService]:
    """A service that measures the session's brokers, and can be told to misbehave."""
    with FakeService(connection) as service:
        wait_until(lambda: service.service.latest is not None)
        yield service


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=60) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError:
        return False


def _source() -> dict[str, Any]:
    return {"n": np.arange(NUM_SAMPLES), "text": [f"sample {n}" for n in range(NUM_SAMPLES)]}


def _load(
    connection: Connection, url: str, name: str, *, at: dict[float, Callable[[], None]]
) -> DatasetManifest:
    """Load a dataset, and do something at some parts of it."""
    to_do = sorted(at.items())

    def progress(done: int, total: int, _: int) -> None:
        while to_do and done >= to_do[0][0] * total:
            to_do.pop(0)[1]()

    with_service = connection.model_copy(update={"collector_url": url})
    manifest = load_dataset(_source(), name, connection=with_service, config=SMALL, progress=progress)
    assert not to_do
    return manifest


def _check(connection: Connection, manifest: DatasetManifest) -> None:
    assert manifest.num_samples == NUM_SAMPLES
    assert verify(connection, manifest).is_clean


def test_a_service_killed_in_the_middle_of_a_load_and_started_again(
    connection: Connection,
    start_collector: Callable[..., Any],
    topic_name: str,
    opened: Opened,
    wait_until: WaitUntil,
) -> None:
    service = start_collector(connection)
    wait_until(lambda: _is_ready(service.url))

    def kill() -> None:
        assert not opened.latest.is_without_service
        assert service.end(signal.SIGKILL) == -signal.SIGKILL
        opened.ahead_s += OLD_S
        wait_until(lambda: opened.latest.is_without_service)

    def start_again() -> None:
        service.start()
        wait_until(lambda: not opened.latest.is_without_service)

    manifest = _load(connection, service.url, topic_name, at={0.3: kill, 0.6: start_again})
    assert opened.latest.num_without_service == 1
    _check(connection, manifest)


@pytest.mark.parametrize("misbehaviour", [FakeService.garbage, FakeService.fault, FakeService.hang_up])
def test_a_service_that_answers_garbage_in_the_middle_of_a_load(
    connection: Connection,
    real_service: FakeService,
    topic_name: str,
    opened: Opened,
    misbehaviour: Any,
    wait_until: WaitUntil,
) -> None:
    def misbehave() -> None:
        assert not opened.latest.is_without_service
        real_service.misbehave = misbehaviour
        opened.ahead_s += OLD_S
        wait_until(lambda: opened.latest.is_without_service)

    def behave() -> None:
        real_service.misbehave = None
        wait_until(lambda: not opened.latest.is_without_service)

    manifest = _load(connection, real_service.url, topic_name, at={0.3: misbehave, 0.6: behave})
    assert opened.latest.num_without_service == 1
    _check(connection, manifest)


def test_a_service_that_takes_longer_than_anybody_waits(
    connection: Connection,
    real_service: FakeService,
    topic_name: str,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader, "_COLLECTING", SOON.model_copy(update={"deadline_s": 0.5}))
    real_service.misbehave = FakeService.silence
    manifest = _load(connection, real_service.url, topic_name, at={})
    assert opened.latest.num_without_service == 1
    assert opened.latest.statistics.failures["collector_service"] == "no answer within 0.5 s"
    _check(connection, manifest)


def test_the_service_of_another_cluster(
    connection: Connection, topic_name: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeService(FakeCluster(make_snapshot([10, 20, 30]))) as others:
        manifest = _load(connection, others.url, topic_name, at={})
        assert opened.latest.num_without_service == 1
        assert "it measures cluster 'test-cluster', but the brokers at" in caplog.text
        assert others.service.intents == []
    _check(connection, manifest)


def test_without_a_service_a_load_is_even_and_whole_and_measures_nothing(
    connection: Connection, real_service: FakeService, topic_name: str, opened: Opened
) -> None:
    real_service.misbehave = FakeService.fault
    manifest = _load(connection, real_service.url, topic_name, at={})
    assert opened.latest.num_without_service == 1
    assert opened.latest.cache.latest() is None
    _check(connection, manifest)
