"""One contract, kept by the fake sources and by the real ones."""

from __future__ import annotations

import asyncio
import http.server
import json
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest
from kafka.admin import ConfigResource, NewTopic

from evenload.kafka_connection import Connection
from evenload.kafka_connection.clients import open_admin
from evenload.telemetry_collector import BrokerUnreachableError, CollectorClosedError, SourceError
from evenload.telemetry_collector.pushed.client_figures import ClientFigures
from evenload.telemetry_collector.pushed.pushed_clients import PushedClients, PushingClient
from evenload.telemetry_collector.snapshot import ReplicationThrottles, TopicConfig
from evenload.telemetry_collector.sources.broker_metrics import BrokerMetrics
from evenload.telemetry_collector.sources.client_statistics import ClientStatisticsSource
from evenload.telemetry_collector.sources.cluster_metadata import ClusterMetadataSource
from evenload.telemetry_collector.sources.kafka_requests import KafkaRequests
from evenload.telemetry_collector.sources.log_dirs import LogDirsSource
from evenload.telemetry_collector.sources.observation import BrokerStorage, ClusterLayout
from evenload.telemetry_collector.sources.prometheus_scrape import PrometheusScrapeSource
from evenload.telemetry_collector.sources.pushed_metrics import PushedMetricsSource
from evenload.telemetry_collector.sources.source import Question, Source
from evenload.telemetry_collector.sources.throttles import ThrottlesSource
from evenload.telemetry_collector.sources.topic_configs import TopicConfigsSource
from evenload.telemetry_collector.testing import FakeCluster, FakeMetricsSource, make_snapshot

UNKNOWN_BROKER_ID = 99


@dataclass
class _Open:
    """A cluster's two sources, and how to close all that belongs to them."""

    layout: Source
    storage: Source
    close: Callable[[], Awaitable[None]]


_Opener = Callable[[], _Open]


def _fake(cluster: FakeCluster) -> _Open:
    layout, storage = cluster.sources()

    async def close() -> None:
        await layout.close()
        await storage.close()

    return _Open(layout, storage, close)


def _real(connection: Connection) -> _Open:
    requests = KafkaRequests(connection)
    layout = ClusterMetadataSource(requests, hedge_delay_s=0.2, rng=random.Random(0))
    storage = LogDirsSource(requests, capacity_bytes_by_broker=connection.capacity_bytes_by_broker)

    async def close() -> None:
        await layout.close()
        await storage.close()
        await requests.close()

    return _Open(layout, storage, close)


@pytest.fixture(params=["fake", "real"])
def healthy(request: pytest.FixtureRequest) -> _Opener:
    """Sources of three brokers that answer."""
    if request.param == "fake":
        return lambda: _fake(FakeCluster(make_snapshot([1, 2, 3], topics={"t": [(1,)]})))
    connection = request.getfixturevalue("connection")
    return lambda: _real(connection)


@pytest.fixture(params=["fake", "real"])
def silent(request: pytest.FixtureRequest) -> Iterator[_Opener]:
    """Sources of a cluster that accepts connections and never answers."""
    if request.param == "fake":
        yield lambda: _fake(FakeCluster(make_snapshot([1]), paused={1}))
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        yield lambda: _real(Connection(bootstrap_servers=address))


def _question(broker_id: int | None, timeout_s: float = 5.0, **changed: Any) -> Question:
    fields = {"topics": None, "is_full": True, "layout": None, **changed}
    return Question(broker_id=broker_id, timeout_s=timeout_s, **fields)


class _Closable(Protocol):
    async def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closable)


def _run(opener: Callable[[], _Opened], scenario: Callable[[_Opened], Awaitable[None]]) -> None:
    """Run a scenario, close, and demand that no task and no thread is left."""

    async def run() -> None:
        opened = opener()
        try:
            await scenario(opened)
        finally:
            await opened.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    threads = set(threading.enumerate())
    asyncio.run(run())
    assert set(threading.enumerate()) <= threads


def test_the_layout_names_all_brokers_and_topics_and_each_broker_tells_its_storage(healthy: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        layout = await opened.layout.answer(_question(None))
        assert isinstance(layout, ClusterLayout)
        assert set(layout.racks) == {1, 2, 3}
        assert layout.topics is not None
        storages = await asyncio.gather(*(opened.storage.answer(_question(b)) for b in layout.racks))
        for storage in storages:
            assert isinstance(storage, BrokerStorage)
            assert storage.bytes_by_topic_partition is not None
            assert storage.capacity_bytes is not None

    _run(healthy, scenario)


def test_figures_that_were_not_asked_for_are_none_rather_than_empty(healthy: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        layout = await opened.layout.answer(_question(None, is_full=False))
        assert isinstance(layout, ClusterLayout)
        assert layout.topics is None
        named = await opened.layout.answer(_question(None, is_full=False, topics=frozenset({"no-such"})))
        assert isinstance(named, ClusterLayout)
        assert named.topics == {}

    _run(healthy, scenario)


def test_a_broker_that_is_not_there_is_unreachable_and_others_still_answer(healthy: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        await opened.layout.answer(_question(None))
        with pytest.raises(BrokerUnreachableError) as raised:
            await opened.storage.answer(_question(UNKNOWN_BROKER_ID))
        assert raised.value.broker == UNKNOWN_BROKER_ID
        assert isinstance(await opened.storage.answer(_question(1)), BrokerStorage)

    _run(healthy, scenario)


def test_silence_is_an_error_after_the_time_given(silent: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        for timeout_s in (0.2, 0.4):
            asked_at_s = time.monotonic()
            with pytest.raises(SourceError):
                await opened.layout.answer(_question(None, timeout_s))
            assert time.monotonic() >= asked_at_s + 0.9 * timeout_s

    _run(silent, scenario)


def test_cancelling_a_question_is_safe(silent: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        for _ in range(3):
            asking = asyncio.ensure_future(opened.layout.answer(_question(None, 0.3)))
            await asyncio.sleep(0.02)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        with pytest.raises(SourceError):
            await opened.layout.answer(_question(None, 0.3))

    _run(silent, scenario)


def test_closing_while_a_question_is_open_ends_it(silent: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        asking = asyncio.ensure_future(opened.layout.answer(_question(None, 1.0)))
        await asyncio.sleep(0.02)
        await opened.close()
        with pytest.raises((SourceError, CollectorClosedError)):
            await asking

    _run(silent, scenario)


def test_after_closing_nothing_is_answered(healthy: _Opener) -> None:
    async def scenario(opened: _Open) -> None:
        await opened.layout.answer(_question(None))
        await opened.close()
        await opened.close()
        for source, broker_id in ((opened.layout, None), (opened.storage, 1)):
            with pytest.raises(CollectorClosedError):
                await source.answer(_question(broker_id))

    _run(healthy, scenario)


def test_limits_of_topics_are_told_once_the_layout_is_known_and_not_after_closing(
    connection: Connection, topic_name: str
) -> None:
    with open_admin(connection) as admin:
        admin.create_topics(
            [
                NewTopic(
                    topic_name,
                    num_partitions=1,
                    replication_factor=1,
                    topic_configs={"retention.bytes": "1000", "segment.bytes": "2000000"},
                )
            ]
        )

    async def scenario() -> None:
        requests = KafkaRequests(connection)
        layout_source = ClusterMetadataSource(requests, hedge_delay_s=0.2, rng=random.Random(0))
        source = TopicConfigsSource(requests, rng=random.Random(0))
        try:
            assert (await source.answer(_question(None))).topic_configs == {}
            gives_up_at_s = time.monotonic() + 120.0
            heard = None
            while heard is None or not heard.topic_configs:  # a new topic isn't known everywhere yet
                if time.monotonic() > gives_up_at_s:
                    pytest.fail("the topic's configuration never became known")
                layout = await layout_source.answer(_question(None, topics=frozenset({topic_name})))
                heard = await source.answer(_question(None, layout=layout))
                await asyncio.sleep(0.05)
            assert heard.topic_configs == {
                topic_name: TopicConfig(
                    partition_max_bytes=2_001_000,
                    max_age_s=7 * 86_400.0,
                    segment_bytes=2_000_000,
                    min_in_sync=1,
                )
            }
            await source.close()
            with pytest.raises(CollectorClosedError):
                await source.answer(_question(None, layout=layout))
        finally:
            await requests.close()

    asyncio.run(scenario())


def test_throttles_are_told_once_the_layout_is_known_and_not_after_closing(
    connection: Connection, topic_name: str
) -> None:
    rate, listed = "follower.replication.throttled.rate", "follower.replication.throttled.replicas"
    with open_admin(connection) as admin:
        admin.create_topics([NewTopic(topic_name, num_partitions=1, replication_factor=1)])
        set_on_broker = ConfigResource("broker", "1", {rate: "77000"})
        admin.alter_configs([set_on_broker], raise_on_unknown=False)
        admin.alter_configs([ConfigResource("topic", topic_name, {listed: "0:1"})], raise_on_unknown=False)

    async def scenario() -> None:
        now_s = 0.0
        requests = KafkaRequests(connection)
        layout_source = ClusterMetadataSource(requests, hedge_delay_s=0.2, rng=random.Random(0))
        source = ThrottlesSource(requests, rng=random.Random(0), clock=lambda: now_s)
        try:
            assert (await source.answer(_question(None))).throttles is None
            gives_up_at_s = time.monotonic() + 120.0
            while True:  # brokers hear of what was set a moment later
                if time.monotonic() > gives_up_at_s:
                    pytest.fail("what was set never became known")
                layout = await layout_source.answer(_question(None, topics=frozenset({topic_name})))
                now_s += 100.0
                told = (await source.answer(_question(None, layout=layout))).throttles
                if told is not None and told.bytes_per_s and told.num_replicas:
                    break
                await asyncio.sleep(0.05)
            assert told == ReplicationThrottles(
                bytes_per_s={1: 77000}, num_replicas={topic_name: 1}, num_moving=0
            )
            await source.close()
            with pytest.raises(CollectorClosedError):
                await source.answer(_question(None, layout=layout))
        finally:
            await requests.close()

    asyncio.run(scenario())
    with open_admin(connection) as admin:
        taken_off = ConfigResource("broker", "1", {rate: ("DELETE", None)})
        admin.alter_configs([taken_off], raise_on_unknown=False)


# Sources of metrics, which aren't essential: the same, but that they may know nothing.

EXPORTED = b"""
kafka_server_brokertopicmetrics_bytesin_total 100
kafka_server_brokertopicmetrics_replicationbytesin_total 20
kafka_network_requestmetrics_totaltimems_count{request="Produce"} 3
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.50"} 7
"""
STATISTICS = {"brokers": {"b:9092/1": {"nodeid": 1, "rtt": {"avg": 7000, "cnt": 3}}}}


class _Exporter(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(EXPORTED)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def exporter_url() -> Iterator[str]:
    """What serves the metrics of one broker."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Exporter) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        serving.join()


@pytest.fixture(params=["fake", "scrape", "client", "pushed"])
def telling(request: pytest.FixtureRequest, exporter_url: str) -> Callable[[], Source]:
    """A source that knows the latency of broker 1, 7 ms, and nothing of others."""

    def make() -> Source:
        if request.param == "fake":
            cluster = FakeCluster(make_snapshot([1, 2]), metrics={1: BrokerMetrics(request_latency_s=0.007)})
            return FakeMetricsSource(cluster)
        if request.param == "scrape":
            return PrometheusScrapeSource({1: exporter_url})
        if request.param == "pushed":
            clients = PushedClients()
            for number in range(3):
                who = PushingClient(instance_id=str(number), address="10.0.0.1")
                told = ClientFigures(kind="java", latency_s_by_broker={1: 0.007, 9: 0.001})
                clients.hear(who, told)
            return PushedMetricsSource("java", clients)
        source = ClientStatisticsSource(age_max_s=60.0)
        source.feed(json.dumps(STATISTICS))
        return source

    return make


@pytest.fixture(params=["fake", "scrape"])
def mute(request: pytest.FixtureRequest) -> Iterator[Callable[[], Source]]:
    """A source whose questions about broker 1 are accepted and never answered."""

    def fake() -> Source:
        source = FakeMetricsSource(FakeCluster(make_snapshot([1])))
        source.is_silent = True
        return source

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        yield fake if request.param == "fake" else lambda: PrometheusScrapeSource({1: url})


def test_metrics_are_told_where_they_are_known_and_are_empty_elsewhere(
    telling: Callable[[], Source],
) -> None:
    async def scenario(source: Source) -> None:
        known, unknown = await asyncio.gather(*(source.answer(_question(b)) for b in (1, 2)))
        assert isinstance(known, BrokerMetrics)
        assert known.request_latency_s == pytest.approx(0.007)
        assert unknown == BrokerMetrics()
        assert not source.is_essential

    _run(telling, scenario)


def test_after_closing_no_metrics_are_told(telling: Callable[[], Source]) -> None:
    async def scenario(source: Source) -> None:
        await source.answer(_question(1))
        await source.close()
        await source.close()
        with pytest.raises(CollectorClosedError):
            await source.answer(_question(1))

    _run(telling, scenario)


def test_silence_about_metrics_is_an_error_after_the_time_given(mute: Callable[[], Source]) -> None:
    async def scenario(source: Source) -> None:
        for timeout_s in (0.2, 0.4):
            asked_at_s = time.monotonic()
            with pytest.raises(SourceError):
                await source.answer(_question(1, timeout_s))
            assert time.monotonic() >= asked_at_s + 0.9 * timeout_s

    _run(mute, scenario)


def test_asking_for_metrics_may_be_cancelled_and_closed_at_any_time(mute: Callable[[], Source]) -> None:
    async def scenario(source: Source) -> None:
        for _ in range(3):
            asking = asyncio.ensure_future(source.answer(_question(1, 0.3)))
            await asyncio.sleep(0.02)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        asking = asyncio.ensure_future(source.answer(_question(1, 1.0)))
        await asyncio.sleep(0.02)
        await source.close()
        with pytest.raises((SourceError, CollectorClosedError)):
            await asking

    _run(mute, scenario)
